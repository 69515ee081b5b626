// Package business is the application side of a run: its database, in which
// every effect is a row, the patterns by which a consumer has one effect per
// message, and the outbox from which a relay publishes.
package business

import (
	"context"
	"errors"
	"time"

	"github.com/custodymq/custody/evidence"
)

// Store is the business database of a run. Its operations pass a Gate.
type Store interface {
	// Apply commits one transaction of these operations, in order. The first one
	// that finds a repeat ends it without a change: Absorbed.
	Apply(ctx context.Context, m Delivery, ops []Op) (Outcome, error)
	// Record commits a producer's business row and, in the same transaction, the
	// messages that tell of it. A row that is there already stays.
	Record(ctx context.Context, producer, businessID string, messages ...Pending) (Outcome, error)
	Outbox
	// Backup and Restore leave the outbox alone.
	Backup(ctx context.Context, path string) error
	Restore(ctx context.Context, path string) error
	// Rows returns the effects, the consumption log and the outbox.
	Rows(ctx context.Context) (evidence.Snapshot, error)
	Close() error
}

// Outbox is what a relay uses of the business database.
type Outbox interface {
	// Claim reserves unsent rows for a relay, in the order of their numbers. Of the
	// rows with the same key only the first is given out, so that order per key is
	// kept among several relays.
	Claim(ctx context.Context, c Claim) ([]Pending, error)
	// Mark records that a row's message was accepted. It does not matter who holds
	// the claim by now: accepted is accepted.
	Mark(ctx context.Context, seq int64, businessID string) error
	// Release gives a claim back.
	Release(ctx context.Context, seq int64) error
}

var (
	_ Store = (*Database)(nil)
	_ Store = (*Memory)(nil)
)

// Delivery is what a handler knows of a message.
type Delivery struct {
	Subscriber string // the logical subscriber
	BusinessID string
	PublishID  string
	MessageID  string
	Digest     string
	LogKey     string // consumption log key, shared by all repeats of the message
}

// Pending is a row of the outbox: a message that is still to be published. Its
// number is drawn outside of the transaction, as a sequence's is, so that a later
// number may commit first.
type Pending struct {
	Seq         int64
	BusinessID  string
	MessageID   string // the same on every try; empty if the system takes none
	Destination string
	Key         string
	Headers     map[string]string
	Body        []byte
	TTL         time.Duration
	Tries       int // claims so far, this one included
}

// Claim is a relay's request for rows.
type Claim struct {
	Relay       string
	Destination string
	Now         time.Time
	Lease       time.Duration // another relay may take the rows afterwards
	Most        int           // rows
	// After reads the rows behind this number without claiming any: what a poller
	// does that remembers its position. Negative for none.
	After int64
}

// Outcome is the outcome of a business transaction.
type Outcome uint8

const (
	// Failed: rolled back, nothing changed.
	Failed Outcome = iota
	// Committed: all of it is stored.
	Committed
	// Absorbed: a repeat, nothing changed.
	Absorbed
	// Uncertain: COMMIT did not return success.
	Uncertain
)

// Gate is told of every operation before it is performed, and after. Its error
// fails the operation: here a run's faults strike the database. It wraps
// ErrUnavailable.
type Gate func(ctx context.Context, op Op, businessID string, after bool) error

// ErrUnavailable: the database cannot be reached, which is the application's to
// handle. Other errors are failures of the harness.
var ErrUnavailable = errors.New("business: the database cannot be reached")

// through performs do between the two calls of the gate.
func (g Gate) through(ctx context.Context, op Op, businessID string, do func() error) error {
	if g == nil {
		return do()
	}
	if err := g(ctx, op, businessID, false); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return g(ctx, op, businessID, true)
}
