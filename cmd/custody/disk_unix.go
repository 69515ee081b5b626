//go:build unix

package main

import "golang.org/x/sys/unix"

// freeDisk is what an ordinary user may still write to the folder's disk, in bytes.
func freeDisk(dir string) (uint64, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return 0, err
	}
	return uint64(stat.Bavail) * uint64(stat.Bsize), nil
}
