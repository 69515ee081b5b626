package sqlite

import "golang.org/x/sys/unix"

// unlockAll releases every lock that was taken through this open file.
func unlockAll(fd uintptr) {
	_ = unix.FcntlFlock(fd, unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_UNLCK}) // one that is closed has none
}
