// Package faulty breaks storage on command, at two layers with one idea: a Hook
// hears of every operation before it is done and after, and may delay it, refuse
// it, or falsify its result. Store wraps the contract; VFS wraps the files below
// SQLite. Both cost nothing to speak of while nothing is armed.
package faulty

import (
	"sync/atomic"

	"github.com/custodymq/custody/broker/store"
)

// Hook is what strikes. Its methods are called from several goroutines at once.
// They may block, but must be bounded, and must not call the store.
type Hook interface {
	// Before the operation: with an error it is not done, and that is its result.
	Before(op Op) error
	// After it was done with result err: what is returned is what the caller sees.
	After(op Op, err error) error
}

// Op is one operation.
type Op struct {
	Layer Layer
	// Name at the contract: apply, load, content, expire, rows, reestablish.
	// At the files: open, read, write, sync, truncate, size, delete, access, lock.
	Name string

	Items []Item // apply: the operations of the batch, in order

	File   File  // the file struck; none at the contract
	Offset int64 // read, write
	Size   int64 // bytes to read or write; the new length for truncate
}

// Item is one operation of a batch.
type Item struct {
	Name       string // insert, attempt, settle, delete, dead-letter, redrive, discard
	MessageID  string
	BusinessID string // inserts only: the others do not carry it
}

// Layer at which an operation is seen.
type Layer uint8

const (
	Contract Layer = iota + 1 // store.Store
	Files                     // SQLite's VFS
)

// File says what a file is for. SQLite's shared memory is not among them: its
// binding does not let a wrapper see it.
type File uint8

const (
	NoFile File = iota
	Database
	WAL
	Journal
	Temporary
)

// Named says whether op has this name, or is a batch that holds an operation of
// this name.
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

// refused is the result of an operation that was not done.
func (op Op) refused(err error) error {
	if op.Layer == Contract && op.writes() {
		return &store.Failure{NotWritten: true, Err: err}
	}
	return err
}

// unanswered is the result of an operation that was done, and nobody heard.
func (op Op) unanswered(err error) error {
	if op.Layer == Contract && op.writes() {
		return &store.Failure{Err: err}
	}
	return err
}

func (op Op) writes() bool { return op.Name == "apply" || op.Name == "expire" }

// point is where a hook is armed.
type point struct{ hook atomic.Pointer[Hook] }

// Arm lets h hear of every operation that begins from now on, in place of the
// hook before. An operation that is under way keeps the one it began with.
func (p *point) Arm(h Hook) { p.hook.Store(&h) }

// Disarm takes the hook away. A hook that blocks is released by its own means.
func (p *point) Disarm() { p.hook.Store(nil) }

func (p *point) armed() (Hook, bool) {
	if h := p.hook.Load(); h != nil {
		return *h, true
	}
	return nil, false
}
