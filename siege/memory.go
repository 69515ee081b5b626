package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Limit is a cgroup with a memory limit and no swap. A process started through
// Command is charged to it from its first byte.
type Limit struct {
	folder string
	files  limitFiles
}

// limitFiles names the control files of one cgroup version.
type limitFiles struct {
	max, swap string
	// both means that swap limits memory and swap together, as in version 1.
	both        bool
	peak, kills string // kills is a file with a line oom_kill
	anonymous   string // key in memory.stat
}

var limitVersions = []struct {
	root  string // present if this version controls memory
	probe string
	files limitFiles
}{
	{"/sys/fs/cgroup", "cgroup.subtree_control", limitFiles{"memory.max", "memory.swap.max", false, "memory.peak", "memory.events", "anon"}},
	{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", limitFiles{"memory.limit_in_bytes", "memory.memsw.limit_in_bytes", true, "memory.max_usage_in_bytes", "memory.oom_control", "total_rss"}},
}

// NewLimit creates the cgroup, with a limit in bytes. It needs root. An error
// means that memory cannot be limited on this machine.
func NewLimit(bytes int64) (*Limit, error) {
	var whys []error
	for _, v := range limitVersions {
		if _, err := os.Stat(filepath.Join(v.root, v.probe)); err != nil {
			whys = append(whys, err)
			continue
		}
		l := &Limit{filepath.Join(v.root, fmt.Sprint("custody-siege-", os.Getpid())), v.files}
		err := l.begin(v.root, bytes)
		if err == nil {
			return l, nil
		}
		whys = append(whys, err, l.Close())
	}
	return nil, fmt.Errorf("memory cannot be limited here (as root, with cgroups that may be written to, it can): %w", errors.Join(whys...))
}

func (l *Limit) begin(root string, bytes int64) error {
	if !l.files.both {
		if err := set(filepath.Join(root, "cgroup.subtree_control"), "+memory"); err != nil {
			return err
		}
	}
	if err := os.Mkdir(l.folder, 0o755); err != nil {
		return err
	}
	if err := set(l.path(l.files.max), fmt.Sprint(bytes)); err != nil {
		return err
	}
	swap := "0"
	if l.files.both {
		swap = fmt.Sprint(bytes)
	}
	err := set(l.path(l.files.swap), swap)
	if errors.Is(err, fs.ErrNotExist) && !machineSwaps() {
		return nil
	}
	return err
}

// set writes to a control file that the kernel has created.
func set(file, value string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

func machineSwaps() bool {
	text, err := os.ReadFile("/proc/swaps")
	return err != nil || strings.Count(string(text), "\n") > 1
}

func (l *Limit) path(file string) string { return filepath.Join(l.folder, file) }

// Command returns a command line that starts path inside the cgroup. exec keeps
// the process ID.
func (l *Limit) Command(path string, args ...string) (string, []string) {
	return "/bin/sh", append([]string{"-c", `echo $$ >"$0" && exec "$@"`, l.path("cgroup.procs"), path}, args...)
}

// Used is the kernel's accounting of everything that ran in the cgroup, in bytes.
type Used struct {
	Anonymous int64 `json:"anonymous"` // current, without page cache
	Peak      int64 `json:"peak"`      // maximum, with page cache, which the kernel reclaims under pressure
	OOMKills  int64 `json:"oomKills"`
}

// Used reads the accounting.
func (l *Limit) Used() (Used, error) {
	peak, err := os.ReadFile(l.path(l.files.peak))
	if err != nil {
		return Used{}, err
	}
	u := Used{}
	if u.Peak, err = strconv.ParseInt(strings.TrimSpace(string(peak)), 10, 64); err != nil {
		return u, err
	}
	if u.OOMKills, err = field(l.path(l.files.kills), "oom_kill"); err != nil {
		return u, err
	}
	u.Anonymous, err = field(l.path("memory.stat"), l.files.anonymous)
	return u, err
}

// field returns the number on the key's line.
func field(file, key string) (int64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == key {
			return strconv.ParseInt(f[1], 10, 64)
		}
	}
	return 0, fmt.Errorf("%s has no %s", file, key)
}

// Close removes the cgroup. No process may be running in it.
func (l *Limit) Close() error {
	if l == nil {
		return nil
	}
	if err := os.Remove(l.folder); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
