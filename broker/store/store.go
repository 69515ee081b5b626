// Package store is the contract of the reference broker's storage. Backends are
// in the folders below; each passes storetest.Exercise.
package store

import (
	"context"
	"errors"
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
// treated as Uncertain. Obey ctx; a cancelled write is Uncertain once begun.
type Store interface {
	// Apply makes one batch durable, all or nothing, in the order given:
	// the group commit. When it returns nil every operation is on disk
	// under the store's flush policy.
	Apply(ctx context.Context, batch []Operation) error
	// Load gives what must survive a restart, in order of Row.Order: pending
	// rows and settled markers that are still in their window. Rows of an
	// older payload version come with State Refused and are left untouched.
	Load(ctx context.Context, fn func(Row) error) error
	// Expired deletes this partition's pending rows whose deadline has passed at now
	// and returns their message IDs, at most limit.
	Expired(ctx context.Context, now time.Time, limit int) ([]string, error)
	// Rows shows all rows for inspection, without changing any.
	Rows(ctx context.Context, fn func(Row) error) error
	// Partition is the connection's name and the storage identity.
	Partition() Partition
	Close() error
}

// Operation is one change of a batch.
type Operation struct {
	Kind      OperationKind
	Row       Row    // Insert: the whole row; others: MessageID and the fields they change
}

// OperationKind names a change.
type OperationKind uint8

const (
	Insert      OperationKind = iota + 1 // a pending row; a row with this message ID must not exist
	Attempt                              // Attempts and LastConsumer of a pending row
	Settle                               // acknowledged: mark processed (kept as history) …
	Delete                               // … or delete the row, keeping a settled marker until Row.KeepUntil
	DeadLetter                           // to the dead-letter queue with Reason and LastConsumer
	Redrive                              // dead → pending with Attempts 0
	Discard                              // a dead row is deleted
)

// Row is one stored message.
type Row struct {
	Order        uint64 // ascending in order of insertion
	State        State
	MessageID    string
	BusinessID   string
	Topic        string
	Group        string // of the competitor it went to last; empty until then
	Key          string
	Headers      map[string]string
	Payload      []byte
	Version      uint8     // of the protocol that wrote the payload
	InsertedAt   time.Time
	ExpiresAt    time.Time
	Attempts     int
	LastConsumer string
	Reason       string    // why dead
	KeepUntil    time.Time // settled markers
	Partition    Partition // filled when read
}

// State of a row.
type State uint8

const (
	Pending State = iota + 1
	Processed     // full history kept
	SettledMarker // only the IDs are left
	Dead
	RefusedVersion // readable by name only: an older payload version
)

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

// ErrExists: a row with this message ID is stored already.
var ErrExists = errors.New("store: message ID exists")
