package evidence

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

// SealedFile is one file of a run as it was on disk when the run ended.
type SealedFile struct {
	Name   string `json:"name"` // slash-separated path in the run's folder
	Size   int64  `json:"size"` // bytes
	SHA256 string `json:"sha256"`
}

// noSeal is the placeholder for the seal while it is computed.
var noSeal = strings.Repeat("0", 2*sha256.Size)

// sealManifest encodes manifest.json. The seal of a run that has ended is the
// SHA-256 of these bytes, with zeros in place of the seal. It covers bytes
// rather than values, so that it includes fields added by a later version, and
// a duplicated field cannot be read in two ways.
func sealManifest(m Manifest) ([]byte, error) {
	if m.End != nil {
		end := *m.End
		end.Seal, m.End = noSeal, &end
	}
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("evidence: the manifest could not be encoded: %w", err)
	}
	b = append(b, '\n')
	if m.End != nil {
		at := bytes.LastIndex(b, []byte(noSeal)) // the last field of the last object
		copy(b[at:], digest(b))
	}
	return b, nil
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// checkManifest verifies that the manifest is unchanged since the run ended.
// It accepts a run without an end, and a format without seals.
func checkManifest(b []byte, m *Manifest) error {
	switch {
	case m.End == nil:
		return nil
	case m.End.Seal == "" && len(m.End.Files) == 0 && m.Format < 2:
		return nil
	case m.End.Seal == "":
		return errors.New("it has no seal")
	case len(m.End.Seal) != len(noSeal) || bytes.Count(b, []byte(m.End.Seal)) != 1:
		return fmt.Errorf("its seal %q is malformed", m.End.Seal)
	}
	blank := bytes.Replace(b, []byte(m.End.Seal), []byte(noSeal), 1)
	if digest(blank) != m.End.Seal {
		return errors.New("it was changed after the run ended: its seal does not match")
	}
	return nil
}

// maxLogs bounds the logs that are sealed and listed. Script, events and rows
// add up to five files, since events and rows may exist plain, compressed, or
// both.
const (
	maxLogs   = 1000
	maxSealed = maxLogs + 5
)

// seal returns the sealed description of a finished run's files, sorted by
// name.
func (dir folder) seal() ([]SealedFile, error) {
	names, err := dir.sealable()
	if err != nil {
		return nil, err
	}
	files := make([]SealedFile, 0, len(names))
	for _, name := range names {
		f, info, err := dir.open(name)
		if err != nil {
			return nil, fmt.Errorf("evidence: cannot seal %s: %w", name, err)
		}
		sum, err := digestOf(f)
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, fmt.Errorf("evidence: cannot seal %s: %w", name, err)
		}
		files = append(files, SealedFile{Name: name, Size: info.Size(), SHA256: sum})
	}
	return files, nil
}

func digestOf(r io.Reader) (string, error) {
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// sealable returns the names of a run's files, sorted, except the manifest,
// which seals itself, and the verdict, which can be derived again.
func (dir folder) sealable() ([]string, error) {
	var names []string
	for _, name := range []string{eventsFile, eventsFile + packedSuffix, rowsFile, rowsFile + packedSuffix, scriptFile} {
		if dir.exists(name) {
			names = append(names, name)
		}
	}
	logs, err := dir.logs()
	if err != nil {
		return nil, err
	}
	return slices.Sorted(slices.Values(append(names, logs...))), nil
}

// logs returns the paths of the entries in the logs folder.
func (dir folder) logs() ([]string, error) {
	root, err := dir.root()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	info, err := root.Lstat(logsFolder)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case !info.IsDir():
		return nil, fmt.Errorf("%s is %s, not a folder", logsFolder, kindOf(info))
	}
	f, err := root.Open(logsFolder)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	entries, err := f.ReadDir(maxLogs + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(entries) > maxLogs {
		return nil, fmt.Errorf("%s holds more than %d files", logsFolder, maxLogs)
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, path.Join(logsFolder, e.Name()))
	}
	return names, nil
}

// maxDamage bounds the damaged files that are reported.
const maxDamage = 4

// checkFiles reports which files differ from the seal, and how.
func (dir folder) checkFiles(sealed []SealedFile) (damage []string) {
	more := 0
	tell := func(name, format string, args ...any) {
		if len(damage) == maxDamage {
			more++
			return
		}
		damage = append(damage, name+": "+fmt.Sprintf(format, args...))
	}
	if len(sealed) > maxSealed {
		return []string{fmt.Sprintf("%s: end.files: %d, and a run has at most %d", manifestFile, len(sealed), maxSealed)}
	}
	var names []string
	for i, s := range sealed {
		switch {
		case !canBeSealed(s.Name):
			tell(manifestFile, "end.files[%d].name: %q is no file of a run", i, s.Name)
			continue
		case slices.Contains(names, s.Name):
			tell(manifestFile, "end.files[%d].name: %q is there twice", i, s.Name)
			continue
		}
		names = append(names, s.Name)
		if err := dir.checkFile(s); err != nil {
			tell(s.Name, "%s", err)
		}
	}
	for _, of := range []string{eventsFile, rowsFile} {
		if !slices.Contains(names, of) && !slices.Contains(names, of+packedSuffix) {
			tell(of, "no seal covers it")
		}
	}
	if !slices.Contains(names, scriptFile) {
		tell(scriptFile, "no seal covers it")
	}
	there, err := dir.sealable()
	if err != nil {
		tell(logsFolder, "%s", err)
	}
	for _, name := range there {
		if !slices.Contains(names, name) {
			tell(name, "it was added after the run ended")
		}
	}
	if more > 0 {
		damage = append(damage, fmt.Sprintf("and %d more", more))
	}
	return damage
}

// checkFile compares sizes first, so that it never reads more than was sealed.
func (dir folder) checkFile(s SealedFile) error {
	f, info, err := dir.open(s.Name)
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("it is missing")
	}
	if err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), s.Name+": "))
	}
	defer f.Close()
	if info.Size() != s.Size {
		return fmt.Errorf("it has %d bytes, and had %d when the run ended", info.Size(), s.Size)
	}
	sum, err := digestOf(io.LimitReader(f, s.Size))
	if err != nil {
		return err
	}
	if sum != s.SHA256 {
		return errors.New("it was changed after the run ended: its digest does not match the seal")
	}
	return nil
}

func canBeSealed(name string) bool {
	switch name {
	case scriptFile, eventsFile, eventsFile + packedSuffix, rowsFile, rowsFile + packedSuffix:
		return true
	}
	return path.Dir(name) == logsFolder && !strings.Contains(path.Base(name), "\x00")
}

// Sealed reports whether the run has a seal. Without one, damage cannot be
// detected: the format is older, the run has not ended, or the seal was
// removed.
func (r *Run) Sealed() bool { return r.manifest.End != nil && r.manifest.End.Seal != "" }

// Identity is equal for all copies of one run.
func (r *Run) Identity() string {
	if r.Sealed() {
		return r.manifest.End.Seal
	}
	return digest(r.raw)
}

// Damage reports which file changed since the run ended, and how (changed,
// truncated, replaced, extended or removed), or that the run is not sealed
// because the harness died. It returns "" if the run is intact, or of a format
// without seals.
func (r *Run) Damage() string {
	switch {
	case r.manifestErr != nil:
		return manifestFile + ": " + r.manifestErr.Error()
	case r.manifest.End == nil:
		return manifestFile + " has no end: the harness died, or it is still going on"
	case r.Sealed():
		return strings.Join(r.dir.checkFiles(r.manifest.End.Files), "; ")
	}
	return ""
}

// Unsealed returns the names in the run's folder that no seal covers, except
// the manifest and what is derived from the evidence; at most maxLogs.
func (r *Run) Unsealed() ([]string, error) {
	d, err := os.Open(string(r.dir))
	if err != nil {
		return nil, fmt.Errorf("evidence: cannot list %s: %w", r.dir, err)
	}
	defer d.Close()
	entries, err := d.ReadDir(maxLogs)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("evidence: cannot list %s: %w", r.dir, err)
	}
	known := []string{manifestFile, signatureFile, verdictFile, logsFolder}
	if r.manifest.End != nil {
		for _, s := range r.manifest.End.Files {
			known = append(known, s.Name)
		}
	}
	var names []string
	for _, e := range entries {
		if !slices.Contains(known, e.Name()) {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}
