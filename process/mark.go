package process

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/custodymq/custody/evidence"
)

// Mark identifies the process that created something which may outlive it: a
// private folder, a container. A process ID alone is not enough: it is reused,
// and means another process in another PID namespace.
type Mark struct {
	PID       int    `json:"pid"`
	Started   uint64 `json:"started"`   // clock ticks since boot; 0 if unknown
	Namespace string `json:"namespace"` // scope of the process ID: the machine's boot, and the PID namespace
}

// State is the state of the process that made a mark. Only what is known to be
// dead may be removed.
type State uint8

const (
	Unknown State = iota
	Alive         // running or stopped
	Dead
)

// ownMark returns the mark of this process.
func ownMark() Mark {
	pid := os.Getpid()
	started, _, _ := started(pid) // if unknown, what this process leaves is never known to be dead
	return Mark{PID: pid, Started: started, Namespace: namespace()}
}

// State looks up the process.
func (m Mark) State() State {
	if m.PID < 1 || m.Namespace == "" || m.Namespace != namespace() {
		return Unknown // from another boot or PID namespace
	}
	now, there, err := started(m.PID)
	switch {
	case err != nil:
		return Unknown
	case !there:
		return Dead
	case m.Started == 0:
		return Unknown
	case now != m.Started:
		return Dead // the process ID was reused
	}
	return Alive
}

// namespace returns the scope in which process IDs are unique, or "" if
// unknown.
func namespace() string {
	pids, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return ""
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id") // namespace numbers repeat after every boot
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(boot)) + " " + pids
}

// startField is the index of the start time among the fields after a process's
// name, of which the state is the first: proc(5) numbers them 22 and 3.
const startField = 22 - 3

// started returns when a process started, in clock ticks since boot. there is
// false for a process that has exited, even if it was not waited for.
func started(pid int) (ticks uint64, there bool, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, fs.ErrNotExist) {
		_, err = os.Stat("/proc/self/stat") // without /proc nothing is known
		return 0, false, err
	}
	if err != nil {
		return 0, false, err
	}
	// "pid (name) S …": the name may contain anything, so search from the last
	// bracket.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) <= startField {
		return 0, false, fmt.Errorf("process: /proc/%d/stat has %d fields behind the name", pid, len(fields))
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return 0, false, nil
	}
	ticks, err = strconv.ParseUint(fields[startField], 10, 64)
	return ticks, true, err
}

const (
	folderPrefix = "custody-run-"
	markFile     = "custody-harness.json"
	maxMark      = 4 << 10 // bytes
)

// Folder creates a private folder in the temporary directory, such as a run's
// or a server's. It is marked, so that a folder left by a killed harness is
// found. The caller removes it.
func Folder() (dir string, err error) {
	if dir, err = os.MkdirTemp("", folderPrefix); err == nil {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return "", fmt.Errorf("process: a private folder: %w", err)
	}
	mark, err := json.Marshal(ownMark())
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, markFile), mark, 0o600)
	}
	if err != nil {
		return "", errors.Join(fmt.Errorf("process: mark a private folder: %w", err), os.RemoveAll(dir))
	}
	return dir, nil
}

// Leftover is a private folder or container that has outlived its process, or
// may have.
type Leftover struct {
	Name   string
	State  State  // of that process; never Alive
	Why    string // why the state is Unknown
	Remove func(ctx context.Context) error
}

// appendLeftover omits what belongs to a living process.
func appendLeftover(all []Leftover, l Leftover, mark []byte) []Leftover {
	var m Mark
	switch err := json.Unmarshal(mark, &m); {
	case l.Why != "":
	case err != nil:
		l.Why = "it does not say which process made it"
	default:
		l.State = m.State()
		l.Why = fmt.Sprintf("process %d, which made it, was of another boot or is in another PID namespace", m.PID)
	}
	if l.State == Alive {
		return all
	}
	return append(all, l)
}

// Folders returns the leftover private folders in the temporary directory,
// except other users'.
func Folders() ([]Leftover, error) {
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), folderPrefix+"*"))
	if err != nil {
		return nil, fmt.Errorf("process: look for private folders: %w", err)
	}
	var all []Leftover
	for _, dir := range dirs {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() || !mine(info) {
			continue
		}
		l := Leftover{Name: dir, Remove: func(context.Context) error { return errors.Join(unmountAll(dir), os.RemoveAll(dir)) }}
		text, err := evidence.ReadRegular(filepath.Join(dir, markFile), maxMark)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			l.Why = err.Error()
		}
		all = appendLeftover(all, l, text)
	}
	return all, nil
}

// mine reports whether this user owns the file; root may remove everybody's.
func mine(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && (os.Geteuid() == 0 || int(stat.Uid) == os.Geteuid())
}
