package evidence

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// Run is the folder of a run, finished or not: all evidence is read
// through it. Safe for concurrent use.
//
//	manifest.json              what the run was; with "end" once it has ended
//	script.custody             the scenario as it was run
//	events.jsonl[.zst]         one Event a line, in order of Seq
//	rows.jsonl[.zst]           a Snapshot's line, then its StoredRows, one a line
//	verdict.json               the judgement; derived from the rest, and never read
//	manifest.sig               an ed25519 signature of manifest.json, if the run was signed
//	logs/NAME.log              output of the parts
type Run struct {
	dir         folder
	manifest    Manifest
	maxEvents   uint64
	raw         []byte // bytes of manifest.json
	manifestErr error  // how it differs from what was sealed
}

// Bounds on what is read.
const (
	maxManifest = 2 << 20
	maxScript   = 1 << 20   // a longer one is not parsed
	maxList     = 4 << 10   // entries of each list in a manifest
	maxWindow   = 32 << 20  // of a compressed file
	maxRowBytes = 512 << 20 // of rows, which are held in memory; not compressed
	maxRowLines = 2 << 20   // snapshots and rows
	rowMemory   = 256       // memory overhead of a row or snapshot beyond its line's bytes
	maxEvents   = 16 << 20  // unless EventsVariable says otherwise
)

// EventsVariable names the environment variable with the number of events that
// a run may have. They are read one by one, but judging remembers each message:
// about 1 KiB of memory for an event at worst.
const EventsVariable = "CUSTODY_MAX_EVENTS"

// eventBound is how many events are read of a run.
func eventBound() (uint64, error) {
	text := os.Getenv(EventsVariable)
	if text == "" {
		return maxEvents, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("evidence: %s is %q; it must be a number of events, such as %d", EventsVariable, text, 4*maxEvents)
	}
	return n, nil
}

// unpacked bounds the uncompressed size of a file, given its compressed size:
// zstd can turn a few bytes into gigabytes. Files that Custody writes expand
// about 25 times, since IDs and digests hardly compress.
func unpacked(packed int64) int64 { return 64<<20 + 256*packed }

// ErrNewerFormat: the run was written by a later Custody.
var ErrNewerFormat = errors.New("evidence: the run is of a newer format")

// Open reads the manifest of the run in dir. It accepts older formats and
// refuses newer ones with ErrNewerFormat. The folder is untrusted: Open
// follows no link in it and reads only regular files.
func Open(dir string) (*Run, error) {
	bound, err := eventBound()
	if err != nil {
		return nil, err
	}
	r := &Run{dir: folder(dir), maxEvents: bound}
	b, err := r.dir.read(manifestFile, maxManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("evidence: %s is not a run folder: it has no %s: %w", dir, manifestFile, err)
	}
	if err != nil {
		return nil, err
	}
	r.raw = b
	at := r.dir.path(manifestFile)
	// Check the version first: the rest of a newer manifest may have other
	// types.
	var version struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(b, &version); err != nil {
		return nil, fmt.Errorf("evidence: %s cannot be read: %w", at, err)
	}
	if version.Format > FormatVersion {
		return nil, fmt.Errorf("%w: %s has format %d and this custody reads up to %d: use a newer custody", ErrNewerFormat, at, version.Format, FormatVersion)
	}
	if version.Format < 1 {
		return nil, fmt.Errorf("evidence: %s has format %d, and the oldest is 1: this is not the manifest of a custody run", at, version.Format)
	}
	if err := json.Unmarshal(b, &r.manifest); err != nil {
		return nil, fmt.Errorf("evidence: %s cannot be read: %w", at, err)
	}
	if err := r.manifest.check(); err != nil {
		return nil, fmt.Errorf("evidence: %s: %w", at, err)
	}
	r.manifestErr = checkManifest(b, &r.manifest)
	return r, nil
}

// Dir returns the run's folder.
func (r *Run) Dir() string { return string(r.dir) }

// Manifest returns the manifest as it was when the run was opened.
func (r *Run) Manifest() Manifest { return r.manifest }

// Script returns the scenario's script, as it was run.
func (r *Run) Script() ([]byte, error) { return r.dir.read(scriptFile, maxScript) }

// WriteVerdict saves a judgement, replacing any earlier one.
func (r *Run) WriteVerdict(b []byte) error { return r.dir.replaceFile(verdictFile, b) }

// Logs returns the names that LogTail accepts, sorted.
func (r *Run) Logs() ([]string, error) {
	paths, err := r.dir.logs()
	if err != nil {
		return nil, fmt.Errorf("evidence: cannot list the logs: %w", err)
	}
	var names []string
	for _, p := range paths {
		if name, ok := strings.CutSuffix(path.Base(p), logSuffix); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// LogTail returns the last bytes of a log, at most max.
func (r *Run) LogTail(name string, max int64) ([]byte, error) {
	f, info, err := r.dir.open(path.Join(logsFolder, path.Base(name)+logSuffix))
	if err != nil {
		return nil, fmt.Errorf("evidence: cannot read log %q: %w", name, err)
	}
	defer f.Close()
	from := info.Size() - max
	if from < 0 {
		from = 0
	}
	return io.ReadAll(io.NewSectionReader(f, from, max))
}

// History returns the run for judging. It reads rows at once; each range over
// Events opens the file again. It reads the plain files of a killed harness up
// to their last complete record.
//
// Damage names a file that changed since the run ended; what is still readable
// can be shown. An unreadable event ends the sequence with an error that names
// file and line. History itself fails only if the folder cannot be read.
func (r *Run) History() (*History, error) {
	root, err := r.dir.root()
	if err != nil {
		return nil, fmt.Errorf("evidence: cannot read %s: %w", r.dir, err)
	}
	if err := root.Close(); err != nil {
		return nil, fmt.Errorf("evidence: cannot read %s: %w", r.dir, err)
	}
	h := &History{Manifest: r.manifest, Events: noEvents, Damage: r.Damage()}
	damaged := func(err error) {
		if h.Damage == "" {
			h.Damage = strings.TrimPrefix(err.Error(), "evidence: ")
		}
	}
	if events, err := r.lines(eventsFile); err != nil {
		damaged(err)
	} else {
		h.Truncated = events.torn
		want := int64(-1)
		if r.manifest.End != nil {
			want = int64(r.manifest.End.Events)
		}
		h.Events = eventsOf(events, want, r.maxEvents, r.manifest.Format)
	}
	if rows, err := r.lines(rowsFile); err != nil {
		damaged(err)
	} else {
		h.Truncated = h.Truncated || rows.torn
		if err := readSnapshots(h, rows); err != nil {
			damaged(err)
		}
	}
	return h, nil
}

func noEvents(func(*Event, error) bool) {}

// eventsOf reads the events. want is their expected number, -1 if unknown.
// Sequence numbers without a gap prove that no line was lost.
func eventsOf(f *lineFile, want int64, bound uint64, format int) iter.Seq2[*Event, error] {
	return func(yield func(*Event, error) bool) {
		var d Decoder
		var e Event
		var n uint64
		for line, err := range f.all() {
			if err == nil {
				err = d.Decode(line, &e)
			}
			if n++; err == nil && n > bound {
				err = fmt.Errorf("more than the %d events that are read; set %s to read more", bound, EventsVariable)
			} else if err == nil && want >= 0 && n > uint64(want) {
				err = fmt.Errorf("the manifest says that there are %d events", want)
			} else if err == nil && e.Seq != n {
				err = fmt.Errorf("event number %d where %d was expected: lines are missing, duplicated or reordered", e.Seq, n)
			}
			if err != nil {
				yield(nil, fmt.Errorf("evidence: %s line %d: %w", f.path, n, err))
				return
			}
			if format == 1 {
				e.fromFormat1()
			}
			if !yield(&e, nil) {
				return
			}
		}
		if want >= 0 && n != uint64(want) {
			yield(nil, fmt.Errorf("evidence: %s has %d events and the manifest says %d: take the whole folder from where it was recorded", f.path, n, want))
		}
	}
}

// readSnapshots keeps complete snapshots only: if the writer died in the middle
// of one, a missing row proves nothing.
func readSnapshots(h *History, f *lineFile) error {
	var due int // rows still expected of the last snapshot
	n := 0
	var held int64 // bytes of memory
	for line, err := range f.all() {
		n++
		held += rowMemory + int64(len(line))
		switch {
		case err != nil:
		case f.packed && held > unpacked(f.size):
			err = fmt.Errorf("more than the %d bytes of memory that %d bytes on disk may take: Custody writes no such file", unpacked(f.size), f.size)
		case n > maxRowLines:
			err = fmt.Errorf("more than the %d lines that are read", maxRowLines)
		case due > 0:
			var row StoredRow
			if err = json.Unmarshal(line, &row); err == nil && row.State == RowInvalid {
				err = errors.New("expected a stored row, which has a state")
			}
			if h.Manifest.Format == 1 {
				row.fromFormat1()
			}
			last := &h.Snapshots[len(h.Snapshots)-1]
			last.Rows = append(last.Rows, row)
			due--
		default:
			var s Snapshot
			if err = json.Unmarshal(line, &s); err == nil && s.Source == "" {
				err = errors.New("expected a snapshot, which has a source")
			}
			h.Snapshots = append(h.Snapshots, s)
			if s.Trust != CountsOnly {
				due = s.Count
			}
		}
		if err != nil {
			return fmt.Errorf("evidence: %s line %d: %w", f.path, n, err)
		}
	}
	if due > 0 {
		if f.packed {
			return fmt.Errorf("evidence: %s ends %d rows before the end of its last snapshot", f.path, due)
		}
		h.Snapshots = h.Snapshots[:len(h.Snapshots)-1]
		h.Truncated = true
	}
	return nil
}

// lineFile is a file of lines, compressed or plain.
type lineFile struct {
	dir    folder
	name   string
	path   string // for error messages
	packed bool
	size   int64 // packed: bytes on disk; plain: the end of the last complete line
	torn   bool  // plain: an incomplete line follows
	most   int64 // bound on the uncompressed bytes; 0 means none
}

// lines finds a file of the run. It prefers a compressed file, which was
// renamed into place whole, to the plain one that an interrupted Close left
// behind.
func (r *Run) lines(name string) (*lineFile, error) {
	l := &lineFile{dir: r.dir, name: name, path: r.dir.path(name)}
	if name == rowsFile {
		l.most = maxRowBytes
	}
	if packed := name + packedSuffix; r.dir.exists(packed) {
		l.name, l.path, l.packed = packed, r.dir.path(packed), true
		f, info, err := r.dir.open(packed)
		if err != nil {
			return nil, fmt.Errorf("evidence: cannot read %s: %w", l.path, err)
		}
		l.size = info.Size()
		if most := unpacked(l.size); l.most == 0 || most < l.most {
			l.most = most
		}
		return l, f.Close()
	}
	f, info, err := r.dir.open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("evidence: the run has neither %s nor %s%s: %w", l.path, name, packedSuffix, err)
	}
	if err != nil {
		return nil, fmt.Errorf("evidence: cannot read %s: %w", l.path, err)
	}
	defer f.Close()
	from := max(0, info.Size()-maxLine)
	tail := make([]byte, info.Size()-from)
	if _, err := f.ReadAt(tail, from); err != nil {
		return nil, fmt.Errorf("evidence: cannot read %s: %w", l.path, err)
	}
	end := bytes.LastIndexByte(tail, '\n')
	if end < 0 && from > 0 {
		return nil, fmt.Errorf("evidence: %s ends in a line longer than the bound of %d bytes", l.path, maxLine)
	}
	l.size = from + int64(end) + 1
	l.torn = l.size < info.Size()
	return l, nil
}

// all yields each line, valid until the next one. An error ends the sequence.
func (f *lineFile) all() iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		file, _, err := f.dir.open(f.name)
		if err != nil {
			yield(nil, err)
			return
		}
		defer file.Close()
		var in io.Reader = io.LimitReader(file, f.size)
		if f.packed {
			z, err := zstd.NewReader(file, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
			if err != nil {
				yield(nil, err)
				return
			}
			defer z.Close()
			in = z
		}
		var read int64
		lines := bufio.NewReaderSize(in, maxLine)
		for {
			line, err := lines.ReadSlice('\n')
			read += int64(len(line))
			switch {
			case err == nil && f.most > 0 && read > f.most:
				err = fmt.Errorf("more than the %d bytes that may be read of %d on disk: Custody writes no such file", f.most, f.size)
			case err == nil:
			case errors.Is(err, io.EOF) && len(line) == 0:
				return
			case errors.Is(err, io.EOF):
				err = errors.New("the file ends in the middle of it")
			case errors.Is(err, bufio.ErrBufferFull):
				err = fmt.Errorf("longer than the bound of %d bytes", maxLine)
			}
			if !yield(line, err) || err != nil {
				return
			}
		}
	}
}

// pack replaces the first size bytes of a plain file by a compressed one. It
// removes the plain file last, so that one of the two is always complete.
func (dir folder) pack(name string, size int64) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("evidence: cannot compress %s (is the disk full?): %w", name, err)
		}
	}()
	root, err := dir.root()
	if err != nil {
		return err
	}
	defer root.Close()
	plain, err := root.Open(name)
	if err != nil {
		return err
	}
	defer plain.Close()
	err = dir.replace(name+packedSuffix, func(w io.Writer) error {
		z, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1))
		if err != nil {
			return err
		}
		n, err := io.Copy(z, io.LimitReader(plain, size))
		if err == nil && n != size {
			err = fmt.Errorf("it has %d of the %d bytes written: something else changed it", n, size)
		}
		return errors.Join(err, z.Close())
	})
	if err != nil {
		return err
	}
	return root.Remove(name)
}

// replaceFile replaces a file atomically.
func (dir folder) replaceFile(name string, content []byte) error {
	return dir.replace(name, func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	})
}

// replace writes a temporary file, fsyncs it, renames it, and fsyncs the
// folder, so that even after a machine crash there is either the old file or
// the new one. The temporary name is unpredictable, so that nobody can plant a
// link under it.
func (dir folder) replace(name string, write func(io.Writer) error) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("evidence: cannot write %s: %w", name, err)
		}
	}()
	root, err := dir.root()
	if err != nil {
		return err
	}
	defer root.Close()
	temp := "." + name + "-" + rand.Text() + tempSuffix
	f, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = write(f)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = root.Rename(temp, name)
	}
	if err != nil {
		return errors.Join(err, root.Remove(temp))
	}
	d, err := root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
