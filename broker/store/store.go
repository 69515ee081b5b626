// Package store is the contract of the reference broker's storage. Backends are
// in the folders below; each passes storetest.Exercise.
package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Store keeps the rows of at-least-once messages for one partition.
//
// Every method is bound to the partition the store was opened for: no method
// can read, change or delete another partition's rows. All methods are safe for
// concurrent use, though the broker calls the writing ones from one goroutine.
//
// Errors: a write that fails returns *Failure, which says whether the write is
// proven absent (NotWritten) or may be there (Uncertain). Any other error is
// treated as Uncertain. Obey ctx; a write that is cancelled once begun is
// Uncertain, unless it is proven absent.
type Store interface {
	// Apply makes one batch durable, all or nothing, in the order given:
	// the group commit. When it returns nil every operation is on disk
	// under the store's flush policy. The caller leaves the batch and what
	// its rows refer to unchanged for good: after a cancelled call the store
	// may still be reading it.
	Apply(ctx context.Context, batch []Operation) error
	// Load gives what must survive a restart, without content: Payload and
	// Headers are nil, Size says how large they are. First come the IDs of
	// settled rows that are still in their window, as State SettledMarker: the
	// newest, at most settled of them, oldest first. Then come pending, dead,
	// refused and damaged rows, in order of Row.Order. Time and memory are
	// proportional to the number of rows, never to their bytes.
	//
	// A row of a payload version that this build cannot read comes as
	// RefusedVersion, one that fails its checksum as Damaged; both are left
	// untouched. A Damaged row without a message ID stands for rows that are
	// missing altogether; its Reason says how many, and how that is known.
	//
	// fn must not call the store. An error of fn ends the loading and is returned.
	Load(ctx context.Context, settled int, fn func(Row) error) error
	// Content gives whole rows, pending or dead, by message ID, in the order
	// asked for. A row that is not there is left out. One that fails its
	// checksum comes as Damaged, without content. It never waits for a write.
	// fn as in Load.
	Content(ctx context.Context, messageIDs []string, fn func(Row) error) error
	// Expired deletes this partition's pending rows whose deadline has passed at now
	// and returns their message IDs, at most limit, earliest deadlines first.
	// It also sweeps, unreported, settled markers whose window is over.
	Expired(ctx context.Context, now time.Time, limit int) ([]string, error)
	// Rows shows the selected rows for inspection in order of Row.Order. It
	// never waits for a write. fn as in Load.
	Rows(ctx context.Context, selection Selection, fn func(Row) error) error
	// Partition is the connection's name and the storage identity.
	Partition() Partition
	// Close waits for a write that is under way. Closing again does nothing.
	Close() error
}

// Certifier is an optional ability of a Store: find out what became of a write
// that was Uncertain, before the next Apply.
//
// Reading alone proves nothing. In SQLite's WAL a COMMIT whose sync failed reads
// as absent, and the row is back after a kill and restart: the frames are in the
// log. Only a later transaction that is committed and synced settles it.
type Certifier interface {
	// Reestablish commits and syncs an empty transaction and then says for
	// certain what became of the last call of Apply or Expired on this store,
	// whatever that call returned: absent means that nothing of it is stored
	// now or after any restart (also if there was no call yet), false that it
	// is stored for good. An error leaves it as uncertain as it was. It
	// means something only to the one goroutine that makes all the writes.
	Reestablish(ctx context.Context) (absent bool, err error)
}

// Durable is an optional ability of a Store: say what survives what. A store
// without it is taken to be FlushEveryCommit.
type Durable interface{ Flush() Flush }

// Flush is when a write is on disk.
type Flush uint8

const (
	FlushEveryCommit Flush = iota // before Apply returns
	FlushPeriodic                 // soon after: a power cut loses the last moments, a killed broker nothing
	FlushNever                    // kept in memory: gone with the process
)

var flushNames = [...]string{FlushEveryCommit: "every-commit", FlushPeriodic: "periodic", FlushNever: "never"}

// String is the name that settings use.
func (f Flush) String() string { return nameOf(flushNames[:], f) }

// ParseFlush gives the policy of that name that a user may ask for; "" is
// FlushEveryCommit.
func ParseFlush(name string) (Flush, error) {
	switch name {
	case "", FlushEveryCommit.String():
		return FlushEveryCommit, nil
	case FlushPeriodic.String():
		return FlushPeriodic, nil
	}
	return 0, fmt.Errorf("store: no flush policy is called %q; there are %v and %v", name, FlushEveryCommit, FlushPeriodic)
}

// Operation is one change of a batch. One on a row that is not there, or not in
// the state that the change begins in, changes nothing and is no error: after a
// crash the same change may well be asked for again. Insert is the exception.
type Operation struct {
	Kind OperationKind
	Row  Row // Insert: the whole row; others: MessageID and the fields they change
}

// OperationKind names a change.
type OperationKind uint8

const (
	Insert     OperationKind = iota + 1 // a pending row; a row with this message ID must not exist, a settled marker included
	Attempt                             // Attempts, Group and LastConsumer of a pending row
	Settle                              // a pending row is acknowledged: mark it processed (kept as history) …
	Delete                              // … or delete the row, keeping a settled marker until Row.KeepUntil (none if it is zero)
	DeadLetter                          // pending → dead, with Reason and LastConsumer
	Redrive                             // dead → pending with Attempts 0; Row.ExpiresAt is the new deadline (none if it is zero)
	Discard                             // a dead row is deleted, keeping a settled marker until Row.KeepUntil (none if it is zero)
)

var operationNames = [...]string{
	Insert: "insert", Attempt: "attempt", Settle: "settle", Delete: "delete",
	DeadLetter: "dead-letter", Redrive: "redrive", Discard: "discard",
}

// String is the name that faults and scripts use.
func (k OperationKind) String() string { return nameOf(operationNames[:], k) }

// Selection is a page of rows. The zero value selects all, without content.
type Selection struct {
	After     uint64 // rows with a greater Row.Order; the last one of the page before
	Limit     int    // at most that many; 0: all
	State     State  // only these; 0: all
	MessageID string // only this one; "": all
	Content   bool   // with Payload and Headers; otherwise neither is read
}

// Row is one stored message.
type Row struct {
	Order        uint64 // ascending in order of insertion; given by the store, ignored when written
	State        State
	MessageID    string
	BusinessID   string
	Topic        string
	Group        string // of the competitor it went to last; empty until then
	Key          string
	Headers      map[string]string
	Payload      []byte
	Size         int   // bytes of Payload and Headers as stored; filled when read
	Version      uint8 // of the protocol that wrote the payload
	InsertedAt   time.Time
	ExpiresAt    time.Time // zero: never
	Attempts     int
	LastConsumer string
	Reason       string    // why dead
	KeepUntil    time.Time // settled markers
	Partition    Partition // filled when read
}

// State of a row.
type State uint8

const (
	Pending        State = iota + 1
	Processed            // full history kept
	SettledMarker        // only the IDs are left
	Dead                 // in the dead-letter queue
	RefusedVersion       // readable by name only: IDs, topic, version and times of a payload version this build cannot read
	Damaged              // fails its checksum: what can be read of its IDs and topic, never delivered, left untouched
)

var stateNames = [...]string{
	Pending: "pending", Processed: "processed", SettledMarker: "settled",
	Dead: "dead", RefusedVersion: "refused-version", Damaged: "damaged",
}

func (s State) String() string { return nameOf(stateNames[:], s) }

func nameOf[T ~uint8](names []string, v T) string {
	if int(v) < len(names) && names[v] != "" {
		return names[v]
	}
	return "invalid"
}

// Partition is a connection's exact name plus a stable storage identity.
type Partition struct{ Connection, Identity string }

func (p Partition) String() string { return p.Connection + "@" + p.Identity }

// Failure is a write that did not succeed.
type Failure struct {
	NotWritten bool // proven: nothing of the batch is stored, nor will be after a restart
	Err        error
}

func (f *Failure) Error() string {
	if f.NotWritten {
		return "store: not written: " + f.Err.Error()
	}
	return "store: may be written: " + f.Err.Error()
}

func (f *Failure) Unwrap() error { return f.Err }

// ErrExists: a row with this message ID is stored already. It comes as an
// *ExistsError, which names it.
var ErrExists = errors.New("store: message ID exists")

// ErrFull: no space is left, or less than the reserve.
var ErrFull = errors.New("store: no space left")

// ErrFenced: the partition was written by another broker, which owns it now. The
// store takes no write any more. It comes as a *Failure with NotWritten.
var ErrFenced = errors.New("store: the partition was written by another broker")

// ErrMoved: the store's files were moved or deleted while it was open, so that
// nothing written to them would be found again. The store takes no write any
// more. It comes as a *Failure, with NotWritten if it was seen before the write.
var ErrMoved = errors.New("store: the files were moved or deleted")

// ErrClosed: the store was closed.
var ErrClosed = errors.New("store: closed")

// ExistsError names the insert that a batch failed for.
type ExistsError struct{ MessageID string }

func (e *ExistsError) Error() string { return ErrExists.Error() + ": " + e.MessageID }

func (e *ExistsError) Unwrap() error { return ErrExists }
