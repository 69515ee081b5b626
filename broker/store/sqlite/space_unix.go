//go:build unix

package sqlite

import (
	"path/filepath"

	"golang.org/x/sys/unix"
)

// freeSpace returns the disk space available to an unprivileged user, in bytes.
func freeSpace(path string) (uint64, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(path), &stat); err != nil {
		return 0, err
	}
	return uint64(stat.Bavail) * uint64(stat.Bsize), nil
}
