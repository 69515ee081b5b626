package faulty

import (
	"errors"
	"sync"
	"syscall"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/vfs"
)

// Fault is a ready-made Hook. It strikes every matching operation until it is
// disarmed; Release lets held operations continue.
type Fault struct {
	when   func(Op) bool
	before func(*Fault, Op) error
	after  func(Op, error) error

	fire     sync.Once
	fired    chan struct{}
	release  sync.Once
	released chan struct{}
}

var _ Hook = (*Fault)(nil)

// Errors that faults inject.
var (
	ErrUnreachable = errors.New("fault: storage unreachable")
	ErrReplyLost   = errors.New("fault: storage's reply lost")
)

// Unreachable refuses matching operations; they are not performed.
func Unreachable(when func(Op) bool) *Fault {
	return newFault(when, func(_ *Fault, op Op) error { return op.refused(ErrUnreachable) }, nil)
}

// Full fails matching writes for lack of space. Other operations pass.
func Full(when func(Op) bool) *Fault {
	writes := func(op Op) bool {
		return (op.Name == "write" || op.Named(store.Insert.String())) && when(op)
	}
	return newFault(writes, func(_ *Fault, op Op) error {
		if op.Layer == Files {
			return vfs.SystemError(syscall.ENOSPC, sqlite3.FULL)
		}
		return op.refused(store.ErrFull)
	}, nil)
}

// FsyncError fails matching file syncs with EIO. Earlier writes are in the file,
// but may or may not have reached the disk. Other operations pass.
func FsyncError(when func(Op) bool) *Fault {
	syncs := func(op Op) bool { return op.Layer == Files && op.Name == "sync" && when(op) }
	return newFault(syncs, func(*Fault, Op) error { return syscall.EIO }, nil)
}

// ReplyLost performs matching operations and loses their result: to the caller, a
// successful write becomes uncertain.
func ReplyLost(when func(Op) bool) *Fault {
	return newFault(when, nil, func(op Op, err error) error {
		if err != nil {
			return err
		}
		return op.unanswered(ErrReplyLost)
	})
}

// Hold blocks each matching operation before it is performed, until Release or
// for atMost, and then lets it proceed. A slow store is a hold that is never
// released.
func Hold(when func(Op) bool, atMost time.Duration) *Fault {
	return newFault(when, func(f *Fault, _ Op) error {
		timer := time.NewTimer(atMost)
		defer timer.Stop()
		select {
		case <-f.released:
		case <-timer.C:
		}
		return nil
	}, nil)
}

func newFault(when func(Op) bool, before func(*Fault, Op) error, after func(Op, error) error) *Fault {
	return &Fault{when: when, before: before, after: after, fired: make(chan struct{}), released: make(chan struct{})}
}

// Fired returns a channel that is closed when the fault first strikes; for a
// hold, when the operation starts to wait.
func (f *Fault) Fired() <-chan struct{} { return f.fired }

// Release ends all waits, current and future. It may be called repeatedly.
func (f *Fault) Release() { f.release.Do(func() { close(f.released) }) }

func (f *Fault) Before(op Op) error {
	if f.before == nil || !f.when(op) {
		return nil
	}
	f.fire.Do(func() { close(f.fired) })
	return f.before(f, op)
}

func (f *Fault) After(op Op, err error) error {
	if f.after == nil || !f.when(op) {
		return err
	}
	f.fire.Do(func() { close(f.fired) })
	return f.after(op, err)
}

// Always matches every operation.
func Always(Op) bool { return true }

// On matches operations of this name; see Op.Named.
func On(name string) func(Op) bool { return func(op Op) bool { return op.Named(name) } }

// OnFile matches operations of this name on this file.
func OnFile(name string, file File) func(Op) bool {
	return func(op Op) bool { return op.File == file && op.Name == name }
}
