package broker

import (
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
)

// DefaultMemory is that of a Config that names none.
func DefaultMemory() int64 { return max(machineMemory()/4, leastMemory) }

// TuneCollector sets Go's garbage collector for a process that serves a broker
// with this much memory, and does little else. A collection takes a core for as
// long as it lasts, and on a small machine everybody's answers wait for it; so it
// comes when the heap has grown to five times what was live, not to twice, but
// before the process holds twice what the broker may. GOGC and GOMEMLIMIT win.
func TuneCollector(memory int64) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(2 * memory)
	}
}

// machineMemory is what this process may use, in bytes: the least of the
// machine's memory and the limits of its cgroups. 1 GiB where nothing says.
func machineMemory() int64 {
	least := int64(math.MaxInt64)
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) == 3 && f[0] == "MemTotal:" {
				if kib, err := strconv.ParseInt(f[1], 10, 64); err == nil {
					least = kib << 10
				}
			}
		}
	}
	text, _ := os.ReadFile("/proc/self/cgroup")
	for line := range strings.Lines(string(text)) {
		// "0::/path" in version 2, "7:memory:/path" in version 1.
		id, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, path, _ := strings.Cut(rest, ":")
		switch {
		case id == "0":
			least = min(least, cgroupLimit("/sys/fs/cgroup", path, "memory.max"))
		case controllers == "memory":
			least = min(least, cgroupLimit("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes"))
		}
	}
	if least == math.MaxInt64 {
		return 1 << 30
	}
	return least
}

// cgroupLimit is the least limit of a cgroup and those above it. In a container
// the path may be one of the host's, of which only the root is to be seen.
func cgroupLimit(root, path, file string) int64 {
	least := int64(math.MaxInt64)
	for {
		text, err := os.ReadFile(filepath.Join(root, path, file))
		if n, bad := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && bad == nil {
			least = min(least, n)
		}
		if path == "/" || path == "." || path == "" {
			return least
		}
		path = filepath.Dir(path)
	}
}
