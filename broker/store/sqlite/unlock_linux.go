package sqlite

import "golang.org/x/sys/unix"

// unlockAll releases every lock taken through this open file.
func unlockAll(fd uintptr) {
	_ = unix.FcntlFlock(fd, unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_UNLCK}) // fails only for a closed file, which holds none
}
