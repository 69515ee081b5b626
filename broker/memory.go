package broker

import (
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
)

// DefaultMemory returns the memory limit of a Config that sets none, in bytes.
func DefaultMemory() int64 { return max(machineMemory()/4, leastMemory) }

// TuneRuntime configures Go's runtime for a process that serves one broker with
// this much memory, in bytes, and does little else.
//
// A collection occupies a core while it lasts, and on a small machine every answer
// waits for it. So the heap may grow to five times what was live instead of twice,
// as long as the process stays below twice the broker's memory. GOGC and GOMEMLIMIT
// take precedence.
//
// Go's scheduler looks at the network only every 10 ms while each of its processors
// has something to do, as under a flood. With twice as many processors as cores one
// of them is idle, and hears at once who else has something to say; the kernel
// shares out the cores, and does so by time. GOMAXPROCS takes precedence.
func TuneRuntime(memory int64) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(2 * memory)
	}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(2 * runtime.GOMAXPROCS(0))
	}
}

// machineMemory returns the memory that this process may use, in bytes: the
// minimum of the machine's memory and its cgroups' limits, or 1 GiB if none is
// known.
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

// cgroupLimit returns the minimum of the limits of a cgroup and its ancestors. In
// a container the path may be the host's, of which only the root is visible.
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
