//go:build unix

package sqlite

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// lock takes the file's lock, which ends with the open file: false if another has it.
func lock(file *os.File) (bool, error) {
	err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

// unlock gives the lock back. Closing the file alone does not: a child process
// that is being started has a copy of it until its program runs.
func unlock(file *os.File) { _ = unix.Flock(int(file.Fd()), unix.LOCK_UN) }
