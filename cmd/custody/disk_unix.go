//go:build unix

package main

import "golang.org/x/sys/unix"

// freeDisk returns the disk space available to an unprivileged user, in bytes.
func freeDisk(dir string) (uint64, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return 0, err
	}
	return uint64(stat.Bavail) * uint64(stat.Bsize), nil
}
