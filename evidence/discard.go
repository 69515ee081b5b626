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

// Discard removes the files of a run, so that it can be made anew in the same
// folder. Nothing is removed while a recorder writes there, or where something
// lies in the folder that no recorder has made: the error names it.
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

// recorded are the paths of all that lies in the folder, in the order in which
// it can be removed: the manifest, by which it is known as a run, goes last. The
// error names what no recorder has made.
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

// ownName reports whether a recorder, or judging and signing, makes files of this name.
func ownName(name string) bool {
	own := []string{manifestFile, scriptFile, eventsFile, eventsFile + packedSuffix, rowsFile, rowsFile + packedSuffix, verdictFile, signatureFile, logsFolder}
	return slices.Contains(own, name) || slices.ContainsFunc(own, func(of string) bool {
		temp, _ := path.Match("."+of+"-*"+tempSuffix, name) // what a write that was broken off has left
		return temp
	})
}

func notOurs(name string) error {
	return fmt.Errorf("it holds %s, which no run has made: move that away, or choose another folder", name)
}
