package evidence

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Discard removes the files of a run, so that the folder can be reused. It
// removes nothing while a recorder holds the folder, or if the folder contains
// anything that no recorder wrote, which the error names.
func (r *Run) Discard() error {
	refuse := func(err error) error { return fmt.Errorf("evidence: %s is not removed: %w", r.dir, err) }
	lock, err := r.dir.lock()
	if err != nil {
		return refuse(err)
	}
	defer lock.Close()
	names, err := r.dir.recorded()
	if err != nil {
		return refuse(err)
	}
	root, err := r.dir.root()
	if err != nil {
		return refuse(err)
	}
	defer root.Close()
	for _, name := range names {
		if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return refuse(err)
		}
	}
	return nil
}

// recorded returns the paths of everything in the folder in removal order. The
// manifest, which identifies the folder as a run, is last. The error names any
// entry that no recorder wrote.
func (dir folder) recorded() ([]string, error) {
	names, err := dir.logs()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if !strings.HasSuffix(name, logSuffix) {
			return nil, notOurs(name)
		}
	}
	root, err := dir.root()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	entries, err := f.ReadDir(maxLogs)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	for _, e := range entries {
		switch {
		case e.IsDir() != (e.Name() == logsFolder) || !ownName(e.Name()):
			return nil, notOurs(e.Name())
		case e.Name() != manifestFile:
			names = append(names, e.Name())
		}
	}
	return append(names, manifestFile), nil
}

// ownName reports whether the recorder, judging or signing writes files of
// this name.
func ownName(name string) bool {
	own := []string{manifestFile, scriptFile, eventsFile, eventsFile + packedSuffix, rowsFile, rowsFile + packedSuffix, verdictFile, signatureFile, logsFolder}
	return slices.Contains(own, name) || slices.ContainsFunc(own, func(of string) bool {
		temp, _ := path.Match("."+of+"-*"+tempSuffix, name) // left by an interrupted write
		return temp
	})
}

func notOurs(name string) error {
	return fmt.Errorf("it holds %s, which no run has made: move that away, or choose another folder", name)
}
