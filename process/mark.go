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

// Mark says which process made something that may outlive it: a private folder,
// a container. A process ID alone comes again, and means another process in
// another container.
type Mark struct {
	PID       int    `json:"pid"`
	Started   uint64 `json:"started"`   // clock ticks since the boot; 0 where it cannot be told
	Namespace string `json:"namespace"` // of the process ID: the boot of the machine, and the PID namespace in it
}

// State of the process that made a mark. Whatever is not known to be dead is left alone.
type State uint8

const (
	Unknown State = iota
	Alive         // also if it is stopped
	Dead
)

// ownMark is that of this process.
func ownMark() Mark {
	pid := os.Getpid()
	started, _, _ := started(pid) // where it cannot be told, what this process leaves is never known to be dead
	return Mark{PID: pid, Started: started, Namespace: namespace()}
}

// State looks for the process.
func (m Mark) State() State {
	if m.PID < 1 || m.Namespace == "" || m.Namespace != namespace() {
		return Unknown // its process IDs are not ours
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
		return Dead // the process ID has come again
	}
	return Alive
}

// namespace in which a process ID means something. Empty where it cannot be told.
func namespace() string {
	pids, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return ""
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id") // namespaces have the same numbers after every boot
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(boot)) + " " + pids
}

// startField is that of the start time behind a process's name, and its state is
// the first: proc(5) counts them as 22 and 3.
const startField = 22 - 3

// started is when a process began, in clock ticks since the boot. One that has
// ended and was not waited for is not there.
func started(pid int) (ticks uint64, there bool, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, fs.ErrNotExist) {
		_, err = os.Stat("/proc/self/stat") // else nothing can be told
		return 0, false, err
	}
	if err != nil {
		return 0, false, err
	}
	// "pid (name) S …": the name may hold anything, so look behind its last bracket.
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

// Folder makes a private folder in the temporary folder, such as a run's or a
// server's. It is marked, so that one which a killed harness left behind is
// found again; remove it when it is done with.
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

// Leftover is a private folder or a container that outlives, or may outlive, the
// process which made it.
type Leftover struct {
	Name   string
	State  State  // of that process: not Alive
	Why    string // it is Unknown
	Remove func(ctx context.Context) error
}

// appendLeftover leaves out what is of a living process.
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

// Folders are those in the temporary folder, but for other users'.
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
		l := Leftover{Name: dir, Remove: func(context.Context) error { return os.RemoveAll(dir) }}
		text, err := evidence.ReadRegular(filepath.Join(dir, markFile), maxMark)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			l.Why = err.Error()
		}
		all = appendLeftover(all, l, text)
	}
	return all, nil
}

// mine reports whether the file is of this user; root may look after everybody's.
func mine(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && (os.Geteuid() == 0 || int(stat.Uid) == os.Geteuid())
}
