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

// Fault is a ready-made Hook. It strikes each operation that it was told to,
// until it is disarmed; Release sets free what it holds.
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

// What the faults answer with.
var (
	ErrUnreachable = errors.New("fault: storage unreachable")
	ErrReplyLost   = errors.New("fault: storage's reply lost")
)

// Unreachable refuses the operations: nothing is done.
func Unreachable(when func(Op) bool) *Fault {
	return newFault(when, func(_ *Fault, op Op) error { return op.refused(ErrUnreachable) }, nil)
}

// Full refuses writes for want of space. Other operations are left alone.
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

// FsyncError fails the syncs of files with EIO. What was written before is in
// the file, and on the disk or not. Other operations are left alone.
func FsyncError(when func(Op) bool) *Fault {
	syncs := func(op Op) bool { return op.Layer == Files && op.Name == "sync" && when(op) }
	return newFault(syncs, func(*Fault, Op) error { return syscall.EIO }, nil)
}

// ReplyLost lets the operations be done and hides it: a write that succeeded
// may have been written, as far as its caller can tell.
func ReplyLost(when func(Op) bool) *Fault {
	return newFault(when, nil, func(op Op, err error) error {
		if err != nil {
			return err
		}
		return op.unanswered(ErrReplyLost)
	})
}

// Hold keeps each operation waiting before it is done, until Release, at most
// for a time; then it goes its way. A slow store is a hold that nobody releases.
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

// Fired is closed when the fault first strikes: for a hold, as the operation
// begins to wait.
func (f *Fault) Fired() <-chan struct{} { return f.fired }

// Release ends every wait, now and to come. Releasing again does nothing.
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

// Always strikes every operation.
func Always(Op) bool { return true }

// On strikes the operations of this name; see Op.Named.
func On(name string) func(Op) bool { return func(op Op) bool { return op.Named(name) } }

// OnFile strikes the operations of this name on this file.
func OnFile(name string, file File) func(Op) bool {
	return func(op Op) bool { return op.File == file && op.Name == name }
}
