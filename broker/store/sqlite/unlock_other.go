//go:build !linux

package sqlite

// unlockAll is not supported here: what a panicked connection had locked stays
// locked until the process ends, so that writes fail.
func unlockAll(uintptr) {}
