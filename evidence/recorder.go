package evidence

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Recorder writes the files of a run in progress. It is a Sink, and safe for
// concurrent use.
//
// Record issues one plain write(2) per event before it returns, so that the
// event survives the SIGKILL of this process (a compressed stream would not).
// Only Close syncs to disk: the harness's machine is not under test.
//
// The first error on any file is kept, closes Failed and stops the recording: a
// run with incomplete evidence must end as a failure of the harness.
type Recorder struct {
	dir  string
	base int64

	mu        sync.Mutex // guards events, their order, and the observers
	events    appendFile
	seq       uint64
	buf       []byte
	observers []*observer
	err       error
	failed    chan struct{}
	closed    bool
	lock      *os.File // on the folder, until Close

	rowsMu   sync.Mutex
	rows     appendFile
	rowLines int

	manifestMu sync.Mutex
	manifest   Manifest // sealed once it has an End

	logsMu sync.Mutex
	logs   map[string]*runLog
}

type observer struct{ fn func(Event) }

// The names of a run's files. Line files are plain while the run goes on;
// Close compresses them.
const (
	manifestFile = "manifest.json"
	scriptFile   = "script.custody"
	eventsFile   = "events.jsonl"
	rowsFile     = "rows.jsonl"
	verdictFile  = "verdict.json"
	logsFolder   = "logs"
	packedSuffix = ".zst"
	tempSuffix   = ".tmp"
)

// maxLine bounds one line of evidence, in bytes with its newline.
const maxLine = 1 << 20

// ErrClosed: something was recorded after Close.
var ErrClosed = errors.New("evidence: recorded after the run was closed")

// Create creates the folder of a run, which must be empty if it exists, and
// starts the run's clock. It sets the manifest's Format and End, and StartedAt
// if it is zero.
func Create(dir string, m Manifest, script []byte) (*Recorder, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("evidence: the run directory could not be created: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("evidence: the run folder could not be read: %w", err)
	}
	if len(entries) > 0 {
		return nil, fmt.Errorf("evidence: folder %s is not empty (it holds %s): give each run a folder of its own", dir, entries[0].Name())
	}
	if err := m.check(); err != nil { // refuse to write what could not be read back
		return nil, fmt.Errorf("evidence: invalid manifest: %w", err)
	}
	base, err := monotonic()
	if err != nil {
		return nil, fmt.Errorf("evidence: this machine has no monotonic clock: %w", err)
	}
	m.Format, m.End, m.Versions = FormatVersion, nil, maps.Clone(m.Versions)
	if m.Versions == nil {
		m.Versions = map[string]string{}
	}
	if m.Versions[versionOfCustody] == "" {
		m.Versions[versionOfCustody] = Version()
	}
	if m.StartedAt.IsZero() {
		m.StartedAt = time.Now().UTC()
	}
	r := &Recorder{dir: dir, base: base, manifest: m, failed: make(chan struct{}), logs: map[string]*runLog{}}
	if err := r.create(script); err != nil {
		r.events.close()
		r.rows.close()
		r.lock.Close()
		return nil, fmt.Errorf("evidence: cannot begin the run in %s (is the folder writable, the disk full?): %w", dir, err)
	}
	return r, nil
}

// versionOfCustody is the key of Custody's own version in a manifest.
const versionOfCustody = "custody"

// create writes the manifest last, so that a folder with a manifest is
// complete. If two processes create the same run, the second fails to create
// the logs folder.
func (r *Recorder) create(script []byte) (err error) {
	root, err := folder(r.dir).root()
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.Mkdir(logsFolder, 0o700); err != nil {
		return err
	}
	defer func() {
		if err != nil { // leave the folder empty, so that the caller can try again
			for _, name := range []string{manifestFile, rowsFile, eventsFile, scriptFile, logsFolder} {
				_ = root.Remove(name)
			}
		}
	}()
	if r.lock, err = folder(r.dir).lock(); err != nil {
		return err
	}
	if err := folder(r.dir).replaceFile(scriptFile, script); err != nil {
		return err
	}
	if err := r.events.open(root, eventsFile); err != nil {
		return err
	}
	if err := r.rows.open(root, rowsFile); err != nil {
		return err
	}
	return r.writeManifest()
}

// Base returns the start of the run on CLOCK_MONOTONIC, in nanoseconds. A
// child process needs it to stamp events with the same clock (see
// NewPipeSink).
func (r *Recorder) Base() int64 { return r.base }

// Dir returns the run's folder.
func (r *Recorder) Dir() string { return r.dir }

// Err returns the first error of the recording, or nil.
func (r *Recorder) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Failed is closed at the first error, so that the run can stop at once.
func (r *Recorder) Failed() <-chan struct{} { return r.failed }

func (r *Recorder) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failLocked(err)
}

func (r *Recorder) failLocked(err error) {
	if r.err == nil {
		r.err = err
		close(r.failed)
	}
}

// Record writes e and returns its Seq, from 1; At is set if it is zero. Once the
// recording has failed, it writes nothing and returns 0.
func (r *Recorder) Record(e Event) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		r.failLocked(fmt.Errorf("%w: %s of %q", ErrClosed, e.Kind, e.Actor))
	}
	if r.err != nil {
		return 0
	}
	if err := e.named(); err != nil {
		r.failLocked(err)
		return 0
	}
	e.Seq = r.seq + 1
	stamp(&e, r.base)
	r.buf = append(AppendJSON(r.buf[:0], &e), '\n')
	if err := r.events.write(r.buf); err != nil {
		r.failLocked(err)
		return 0
	}
	r.seq = e.Seq
	for _, o := range r.observers {
		o.fn(e)
	}
	return e.Seq
}

// Observe calls fn for every later event, in order of Seq and one at a time,
// once the event is written. fn runs under the recorder's lock: it must be
// quick, and must neither use the recorder nor wait for anything that does.
// Once cancel returns, fn is not running and will not be called again; fn must
// not call cancel.
func (r *Recorder) Observe(fn func(Event)) (cancel func()) {
	o := &observer{fn}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.observers = append(r.observers, o)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		for i := range r.observers {
			if r.observers[i] == o {
				r.observers = append(r.observers[:i:i], r.observers[i+1:]...)
				return
			}
		}
	}
}

// WriteSnapshot writes a snapshot's line, then one line per row. It sets Count
// from Rows, unless the source gives counts only.
func (r *Recorder) WriteSnapshot(s Snapshot) error {
	if s.Trust != CountsOnly {
		s.Count = len(s.Rows)
	} else if len(s.Rows) > 0 {
		return fmt.Errorf("evidence: snapshot %q of %s has %d rows, and with trust %q it must have none", s.Checkpoint, s.Source, len(s.Rows), s.Trust)
	}
	lines, err := appendLine(nil, s)
	for i := 0; err == nil && i < len(s.Rows); i++ {
		lines, err = appendLine(lines, s.Rows[i])
	}
	if err != nil {
		return fmt.Errorf("evidence: snapshot %q of %s cannot be written: %w", s.Checkpoint, s.Source, err)
	}
	r.rowsMu.Lock()
	defer r.rowsMu.Unlock()
	if err := r.Err(); err != nil { // never append after a failed write
		return err
	}
	r.rowLines += 1 + len(s.Rows)
	if r.rowLines > maxRowLines || r.rows.size+int64(len(lines)) > maxRowBytes {
		err = fmt.Errorf("evidence: snapshot %q of %s: a run has at most %d rows of %d bytes together: send fewer messages, or take fewer snapshots", s.Checkpoint, s.Source, maxRowLines, maxRowBytes)
	} else {
		err = r.rows.writeAll(lines)
	}
	if err != nil {
		r.fail(err)
	}
	return err
}

func appendLine(dst []byte, v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return dst, err
	}
	if len(b) >= maxLine {
		return dst, fmt.Errorf("a line of %d bytes is longer than the bound of %d", len(b), maxLine)
	}
	return append(append(dst, b...), '\n'), nil
}

// UpdateManifest applies a change that becomes known during the run, such as
// versions, and rewrites the manifest.
func (r *Recorder) UpdateManifest(change func(*Manifest)) error {
	r.manifestMu.Lock()
	defer r.manifestMu.Unlock()
	if r.manifest.End != nil {
		return fmt.Errorf("%w: a change of its manifest", ErrClosed)
	}
	change(&r.manifest)
	err := r.writeManifest()
	if err != nil {
		r.fail(err)
	}
	return err
}

func (r *Recorder) writeManifest() error {
	b, err := sealManifest(r.manifest)
	if err != nil {
		return err
	}
	return folder(r.dir).replaceFile(manifestFile, b)
}

// Close ends the run: it compresses events and rows, seals all files and
// rewrites the manifest with its End (it sets Events, Files and Seal, and
// After if zero). If the recording has failed or fails now, the end is
// EndFailed with that reason, and Close returns the error. The run stays
// readable wherever Close is interrupted. Later calls only return Err.
func (r *Recorder) Close(end End) error {
	r.mu.Lock()
	if r.closed {
		defer r.mu.Unlock()
		return r.err
	}
	r.closed, r.observers = true, nil
	end.Events = r.seq
	r.mu.Unlock()

	r.closeLogs()
	r.rowsMu.Lock()
	defer r.rowsMu.Unlock()
	for _, f := range []*appendFile{&r.events, &r.rows} {
		if err := errors.Join(f.close(), folder(r.dir).pack(f.name, f.size)); err != nil {
			r.fail(err)
		}
	}

	files, err := folder(r.dir).seal()
	if err != nil {
		r.fail(err)
	}
	end.Files = files
	if now, err := monotonic(); err == nil && end.After == 0 {
		end.After = time.Duration(now - r.base)
	}
	if err := r.Err(); err != nil {
		if end.How == EndFailed && end.Reason != "" {
			end.Reason += "; "
		} else {
			end.Reason = ""
		}
		end.How, end.Reason = EndFailed, end.Reason+err.Error()
	}
	r.manifestMu.Lock()
	defer r.manifestMu.Unlock()
	r.manifest.End = &end
	if err := errors.Join(r.writeManifest(), r.lock.Close()); err != nil {
		r.fail(err)
	}
	return r.Err()
}

// appendFile is an append-only file of lines. size counts complete writes
// only, so that the remains of a failed write are ignored.
type appendFile struct {
	name string
	f    io.WriteCloser
	size int64
}

func (a *appendFile) open(root *os.Root, name string) error {
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	a.name, a.f = name, f
	return nil
}

func (a *appendFile) write(line []byte) error {
	if len(line) > maxLine {
		return fmt.Errorf("evidence: %s: a line of %d bytes is longer than the bound of %d", a.name, len(line), maxLine)
	}
	return a.writeAll(line)
}

func (a *appendFile) writeAll(lines []byte) error {
	if _, err := a.f.Write(lines); err != nil {
		return fmt.Errorf("evidence: cannot write %s (is the disk full?): %w", a.name, err)
	}
	a.size += int64(len(lines))
	return nil
}

func (a *appendFile) close() error {
	if a.f == nil {
		return nil
	}
	return a.f.Close()
}

// maxLog bounds one log file, in bytes.
const maxLog = 8 << 20

// Log opens logs/NAME.log for the output of a process, appending after a
// restart. After 8 MiB one line says that the log was truncated, and the rest
// is dropped. Write never fails, so that the harness's disk cannot affect the
// process; the recorder's Err has the error. Safe for concurrent use. Closing
// the recorder closes it.
func (r *Recorder) Log(name string) (io.WriteCloser, error) {
	if err := FileName(name); err != nil {
		return nil, fmt.Errorf("evidence: a log: %w: use the name of an actor", err)
	}
	r.logsMu.Lock()
	defer r.logsMu.Unlock()
	if r.logs == nil {
		return nil, fmt.Errorf("%w: log %q", ErrClosed, name)
	}
	if r.logs[name] != nil {
		return nil, fmt.Errorf("evidence: log %q is open already: close it before its process is started again", name)
	}
	root, err := folder(r.dir).root()
	if err != nil {
		return nil, fmt.Errorf("evidence: cannot open log %q: %w", name, err)
	}
	defer root.Close()
	f, err := root.OpenFile(path.Join(logsFolder, name+logSuffix), os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("evidence: cannot open log %q: %w", name, err)
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("evidence: cannot open log %q: %w", name, err)
	}
	l := &runLog{r: r, name: name, f: f, left: max(0, maxLog-info.Size())}
	r.logs[name] = l
	return l, nil
}

func (r *Recorder) closeLogs() {
	r.logsMu.Lock()
	open := r.logs
	r.logs = nil
	r.logsMu.Unlock()
	for _, l := range open {
		_ = l.Close()
	}
}

const logSuffix = ".log"

type runLog struct {
	r    *Recorder
	name string

	mu   sync.Mutex
	f    *os.File
	left int64 // bytes left until it is truncated; 0 afterwards
	done bool
}

func (l *runLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left == 0 || l.done {
		return len(p), nil
	}
	kept := p[:min(int64(len(p)), l.left)]
	l.left -= int64(len(kept))
	if l.left == 0 {
		kept = fmt.Appendf(kept[:len(kept):len(kept)], "\n[custody: log cut here, at its bound of %d bytes]\n", maxLog)
	}
	if _, err := l.f.Write(kept); err != nil {
		l.left = 0
		l.r.fail(fmt.Errorf("evidence: cannot write log %q (is the disk full?): %w", l.name, err))
	}
	return len(p), nil
}

func (l *runLog) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done {
		return nil
	}
	l.done = true
	l.r.logsMu.Lock()
	delete(l.r.logs, l.name)
	l.r.logsMu.Unlock()
	return l.f.Close()
}

// stamp sets e.At, unless a child process already has.
func stamp(e *Event, base int64) {
	if e.At == 0 {
		e.At = Now(base)
	}
}

// monotonic reads the clock that all processes of a machine share. time.Now
// may use the same clock, but does not expose its origin.
func monotonic() (int64, error) {
	var ts unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return ts.Nano(), err
}

// Now returns the time since base on the clock of events; see Recorder.Base.
func Now(base int64) time.Duration {
	now, _ := monotonic() // checked when the run began
	return time.Duration(now - base)
}
