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

// Limit is a cgroup with a bound on memory and none to swap to. What is started
// in it, by Command, is charged to it from its first byte.
type Limit struct {
	folder string
	files  limitFiles
}

// limitFiles are those of one version of cgroups.
type limitFiles struct {
	max, swap string
	// swap bounds memory and swap together, as in version 1
	both        bool
	peak, kills string // kills has a line oom_kill
	anonymous   string // key in memory.stat
}

var limitVersions = []struct {
	root  string // there if this version has the memory
	probe string
	files limitFiles
}{
	{"/sys/fs/cgroup", "cgroup.subtree_control", limitFiles{"memory.max", "memory.swap.max", false, "memory.peak", "memory.events", "anon"}},
	{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", limitFiles{"memory.limit_in_bytes", "memory.memsw.limit_in_bytes", true, "memory.max_usage_in_bytes", "memory.oom_control", "total_rss"}},
}

// NewLimit makes the cgroup, which needs root. An error says that memory cannot
// be limited here.
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

// set writes to a file that the kernel has made.
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

// Command is a command line that begins in the cgroup; the process keeps its ID.
func (l *Limit) Command(path string, args ...string) (string, []string) {
	return "/bin/sh", append([]string{"-c", `echo $$ >"$0" && exec "$@"`, l.path("cgroup.procs"), path}, args...)
}

// Used is what the kernel says, of all that has run in the cgroup.
type Used struct {
	Anonymous int64 `json:"anonymous"` // now, without what files have in the page cache
	Peak      int64 `json:"peak"`      // at most, with the page cache; that gives way to anything
	OOMKills  int64 `json:"oomKills"`
}

// Used reads it.
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

// field is the number on the line of a key.
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

// Close removes the cgroup, in which nothing may run any more.
func (l *Limit) Close() error {
	if l == nil {
		return nil
	}
	if err := os.Remove(l.folder); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
