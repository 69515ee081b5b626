// Package store is the contract of the reference broker's storage. Its
// subpackages are the backends, each of which passes storetest.Exercise.
package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Store keeps the rows of at-least-once messages for one partition.
//
// Every method is bound to the partition for which the store was opened and
// cannot read, change or delete another partition's rows. All methods are safe
// for concurrent use, but the broker calls the writing ones from a single
// goroutine.
//
// A write that fails returns *Failure, which says whether it is proven absent
// (NotWritten) or may be stored (uncertain). Any other error is treated as
// uncertain. Methods honour ctx; a write cancelled after it has begun is
// uncertain, unless it is proven absent.
type Store interface {
	// Apply makes one batch durable, all or nothing and in the given order (group
	// commit). When it returns nil, every operation is on disk as the store's
	// flush policy demands. The caller must never modify the batch or what its
	// rows refer to afterwards: after a cancelled call the store may still be
	// reading it.
	Apply(ctx context.Context, batch []Operation) error
	// Load reads what must survive a restart, without content: Payload and
	// Headers are nil, and Size is their size. First come the IDs of settled rows
	// that are still in their window, as State SettledMarker: at most settled of
	// them, the newest, oldest first. Then come pending, dead, refused and
	// damaged rows in the order of Row.Order. Time and memory are proportional to
	// the number of rows, not to their size.
	//
	// A row of a payload version that this build cannot read is passed as
	// RefusedVersion, one that fails its checksum as Damaged; both are left
	// untouched. A Damaged row without a message ID stands for rows that are
	// missing altogether; its Reason says how many, and how that is known.
	//
	// fn must not call the store. An error of fn stops the load and is returned.
	Load(ctx context.Context, settled int, fn func(Row) error) error
	// Content reads complete rows, pending or dead, by message ID and in the
	// given order. Rows that do not exist are omitted. A row that fails its
	// checksum is passed as Damaged, without content. Content never waits for a
	// write. The rules for fn are those of Load.
	Content(ctx context.Context, messageIDs []string, fn func(Row) error) error
	// Expired ends this partition's pending rows whose deadline has passed at now,
	// as Delete with EndExpired and this KeepUntil does, and returns their message
	// IDs, at most limit, earliest deadline first. It also sweeps settled markers
	// whose window is over, without reporting them.
	Expired(ctx context.Context, now, keepUntil time.Time, limit int) ([]string, error)
	// Rows reads the selected rows for inspection, in the order of Row.Order. It
	// never waits for a write. The rules for fn are those of Load.
	Rows(ctx context.Context, selection Selection, fn func(Row) error) error
	// Partition is the connection's name and the storage identity.
	Partition() Partition
	// Close waits for a write in progress. It may be called repeatedly.
	Close() error
}

// Certifier is an optional interface of a Store. It determines what became of an
// uncertain write before the next Apply.
//
// Reading alone proves nothing. In SQLite's WAL mode, a COMMIT whose sync failed
// reads as absent, but the row is back after a kill and restart, because its
// frames are in the WAL. Only a later transaction that is committed and synced
// settles the question.
type Certifier interface {
	// Reestablish commits and syncs an empty transaction, and then reports
	// definitively what became of the last call of Apply or Expired on this
	// store, whatever that call returned. absent means that nothing of it is
	// stored now or after any restart (or that there was no call yet), false that
	// it is stored permanently. After an error the outcome is as uncertain as
	// before. The result is meaningful only to the goroutine that makes all the
	// writes.
	Reestablish(ctx context.Context) (absent bool, err error)
}

// Durable is an optional interface of a Store: it reports the flush policy. A
// store without it is assumed to use FlushEveryCommit.
type Durable interface{ Flush() Flush }

// Flush is a policy for when a write reaches the disk.
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
	Row  Row // Insert: the complete row; otherwise MessageID and the fields that change
}

// OperationKind is the kind of a change.
type OperationKind uint8

const (
	Insert     OperationKind = iota + 1 // a pending row; a row with this message ID must not exist, a settled marker included
	Attempt                             // Attempts, Group and LastConsumer of a pending row
	Settle                              // a pending row has ended, as Reason says: mark it processed (kept as history) …
	Delete                              // … or delete the row, keeping a settled marker with Reason until Row.KeepUntil (none if it is zero)
	DeadLetter                          // pending → dead, with Reason and LastConsumer
	Redrive                             // dead → pending with Attempts 0; Row.ExpiresAt is the new deadline (none if it is zero)
	Discard                             // a dead row is deleted, keeping a settled marker with Reason until Row.KeepUntil (none if it is zero)
)

var operationNames = [...]string{
	Insert: "insert", Attempt: "attempt", Settle: "settle", Delete: "delete",
	DeadLetter: "dead-letter", Redrive: "redrive", Discard: "discard",
}

// String returns the name used by faults and scripts.
func (k OperationKind) String() string { return nameOf(operationNames[:], k) }

// Selection selects a page of rows. The zero value selects all, without content.
type Selection struct {
	After     uint64 // rows with a greater Row.Order than this, the last one of the previous page
	Limit     int    // maximum number of rows; 0: no limit
	State     State  // only rows in this state; 0: any
	MessageID string // only this row; "": any
	Content   bool   // read Payload and Headers
}

// Row is one stored message.
type Row struct {
	Order        uint64 // ascending in insertion order; assigned by the store, ignored in writes
	State        State
	MessageID    string
	BusinessID   string
	Topic        string
	Group        string // of the competitor that last received it; empty before that
	Key          string
	Headers      map[string]string
	Payload      []byte
	Size         int   // bytes of Payload and Headers as stored; set by reads
	Version      uint8 // protocol version that wrote the payload
	InsertedAt   time.Time
	ExpiresAt    time.Time // zero: never
	Attempts     int
	LastConsumer string
	Reason       string    // why it is dead; what ended a processed or settled one, such as EndExpired
	KeepUntil    time.Time // of settled markers
	Partition    Partition // set by reads
}

// State is the state of a row.
type State uint8

const (
	Pending        State = iota + 1
	Processed            // kept with its full history
	SettledMarker        // only the IDs are kept, and what ended the message
	Dead                 // in the dead-letter queue
	RefusedVersion       // of a payload version that this build cannot read: only IDs, topic, version and times are given
	Damaged              // fails its checksum: IDs and topic as far as readable; never delivered, left untouched
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

// What ended a message: the Reason of its processed row or settled marker. With any
// other it is not known, as in rows of builds that did not record it.
const (
	EndAcknowledged = "acknowledged"
	EndExpired      = "expired"
	EndDiscarded    = "discarded" // from the dead letters, by command
)

// Expiry is the operation by which Expired ends a message.
func Expiry(messageID string, keepUntil time.Time) Operation {
	return Operation{Kind: Delete, Row: Row{MessageID: messageID, Reason: EndExpired, KeepUntil: keepUntil}}
}

// Partition is a connection's exact name plus a stable storage identity.
type Partition struct{ Connection, Identity string }

func (p Partition) String() string { return p.Connection + "@" + p.Identity }

// Failure is the error of a write that did not succeed.
type Failure struct {
	NotWritten bool // proven: nothing of the batch is stored now or after a restart
	Err        error
}

func (f *Failure) Error() string {
	if f.NotWritten {
		return "store: not written: " + f.Err.Error()
	}
	return "store: may be written: " + f.Err.Error()
}

func (f *Failure) Unwrap() error { return f.Err }

// Uncertain reports whether a write that returned err may be stored.
func Uncertain(err error) bool {
	var failure *Failure
	return err != nil && !(errors.As(err, &failure) && failure.NotWritten)
}

// Certify determines the outcome of a write that returned err, if the outcome is
// uncertain and the store is a Certifier. It returns nil if the write is stored
// after all, a *Failure with NotWritten if it is proven absent, and otherwise an
// error that is as uncertain as err.
func Certify(ctx context.Context, s Store, err error) error {
	certifier, can := s.(Certifier)
	if !can || !Uncertain(err) {
		return err
	}
	absent, doubt := certifier.Reestablish(ctx)
	switch {
	case doubt != nil:
		return fmt.Errorf("%w (and it could not be found out: %w)", err, doubt)
	case absent:
		return &Failure{NotWritten: true, Err: err}
	}
	return nil
}

// ErrExists reports that a row with this message ID is already stored. It is
// returned as an *ExistsError, which names the ID.
var ErrExists = errors.New("store: message ID exists")

// ErrFull reports that no space is left, or less than the reserve.
var ErrFull = errors.New("store: no space left")

// ErrFenced reports that another broker has written the partition and now owns
// it. The store refuses every further write. It is returned in a *Failure with
// NotWritten.
var ErrFenced = errors.New("store: the partition was written by another broker")

// ErrMoved reports that the store's files were moved or deleted while open, so
// that nothing written to them would be found again. The store refuses every
// further write. It is returned in a *Failure, with NotWritten if this was
// noticed before the write.
var ErrMoved = errors.New("store: the files were moved or deleted")

// ErrClosed reports that the store was closed.
var ErrClosed = errors.New("store: closed")

// ExistsError names the insert because of which a batch failed.
type ExistsError struct{ MessageID string }

func (e *ExistsError) Error() string { return ErrExists.Error() + ": " + e.MessageID }

func (e *ExistsError) Unwrap() error { return ErrExists }
