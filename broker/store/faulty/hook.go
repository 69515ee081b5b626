// Package faulty injects storage faults at two layers in the same way: a Hook
// runs before and after every operation, and may delay it, refuse it, or replace
// its result. Store wraps the store contract; VFS wraps the files below SQLite.
// Both have negligible overhead while no hook is armed.
package faulty

import (
	"sync/atomic"

	"github.com/custodymq/custody/broker/store"
)

// Hook intercepts operations. Its methods are called concurrently. They may block
// for a bounded time, and must not call the store.
type Hook interface {
	// Before runs before the operation. If it returns an error, the operation is
	// not performed and fails with that error.
	Before(op Op) error
	// After runs after the operation, with its result. The caller gets After's
	// result instead.
	After(op Op, err error) error
}

// Op is one operation.
type Op struct {
	Layer Layer
	// Name of the operation. In the contract: apply, load, content, expire, rows,
	// reestablish. On files: open, read, write, sync, truncate, size, delete,
	// access, lock.
	Name string

	Items []Item // apply: the operations of the batch, in order

	File   File  // the file concerned; NoFile in the contract
	Offset int64 // read, write
	Size   int64 // bytes to read or write; for truncate, the new length
}

// Item is one operation in a batch.
type Item struct {
	Name       string // insert, attempt, settle, delete, dead-letter, redrive, discard
	MessageID  string
	BusinessID string // inserts only: the others do not carry it
}

// Layer is the level at which an operation is intercepted.
type Layer uint8

const (
	Contract Layer = iota + 1 // store.Store
	Files                     // SQLite's VFS
)

// File is the role of a file. SQLite's shared memory is not covered, because its
// binding hides it from wrappers.
type File uint8

const (
	NoFile File = iota
	Database
	WAL
	Journal
	Temporary
)

// Named reports whether op has this name, or is a batch that contains an
// operation of this name.
func (op Op) Named(name string) bool {
	if op.Name == name {
		return true
	}
	for _, item := range op.Items {
		if item.Name == name {
			return true
		}
	}
	return false
}

// refused returns the error of an operation that was not performed.
func (op Op) refused(err error) error {
	if op.Layer == Contract && op.writes() {
		return &store.Failure{NotWritten: true, Err: err}
	}
	return err
}

// unanswered returns the error of an operation that was performed but whose
// result was lost.
func (op Op) unanswered(err error) error {
	if op.Layer == Contract && op.writes() {
		return &store.Failure{Err: err}
	}
	return err
}

func (op Op) writes() bool { return op.Name == "apply" || op.Name == "expire" }

// point is the place where a hook is armed.
type point struct{ hook atomic.Pointer[Hook] }

// Arm makes h intercept every operation that begins from now on, replacing any
// earlier hook. Operations in progress keep the hook with which they began.
func (p *point) Arm(h Hook) { p.hook.Store(&h) }

// Disarm removes the hook. It does not unblock operations that the hook holds.
func (p *point) Disarm() { p.hook.Store(nil) }

func (p *point) armed() (Hook, bool) {
	if h := p.hook.Load(); h != nil {
		return *h, true
	}
	return nil, false
}
