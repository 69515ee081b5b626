package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/custodymq/custody/business"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// relay publishes the rows of the outbox, each under the same message ID on every
// try, and marks one once it is accepted. It runs in one goroutine, in this
// process or in a child.
type relay struct {
	*producer
	db     database
	policy business.Policy
	lease  time.Duration
	seen   int64 // the highest number, for a policy that goes by position
}

// The relay's bounds; the lease is scaled.
const (
	relayLease = time.Second
	relayBatch = 10
)

func newRelay(spec script.Relay, s surroundings) (*relay, error) {
	policy, err := business.FindPolicy(spec.Policy)
	if err != nil {
		return nil, err
	}
	p := newProducer(script.Producer{Name: spec.Name, Destination: spec.Destination, Mode: spec.Mode},
		s.clients, s.address, s.sink, s.rt, s.bounds, s.seed, takesMessageID(s.desc))
	return &relay{producer: p, db: s.db, policy: policy, lease: scaled(relayLease, s.scale)}, nil
}

func (r *relay) opened() int { return r.sessions }

// run relays until ctx ends. It opens its session first, so that whoever starts it
// sees that it runs.
func (r *relay) run(ctx context.Context, first int) error {
	r.sessions = first
	defer func() { r.endSession(ctx, "the relay stops") }()
	var b backoff
	for ctx.Err() == nil {
		progress, err := r.relayOnce(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !errors.Is(err, business.ErrUnavailable):
			return fmt.Errorf("runner: relay %s: %w", r.spec.Name, err)
		case progress && err == nil:
			b = backoff{}
			continue
		}
		if b.wait(ctx, r.rt) != nil {
			return nil
		}
	}
	return nil
}

// relayOnce claims some rows and publishes them; it reports whether all it claimed
// are sent. With a database that it cannot reach it leaves off: its claims run out.
func (r *relay) relayOnce(ctx context.Context) (progress bool, err error) {
	if err := r.open(ctx); err != nil {
		return false, nil //nolint:nilerr // the broker is not there: try again
	}
	claim := business.Claim{Relay: r.spec.Name, Destination: r.spec.Destination, Now: r.rt.Wall(), Lease: r.lease, Most: relayBatch, After: -1}
	if r.policy.ByPosition {
		claim.After = r.seen
	}
	rows, err := r.db.Claim(ctx, claim)
	if err != nil {
		return false, err
	}
	progress = len(rows) > 0
	for _, row := range rows {
		r.seen = max(r.seen, row.Seq)
		sent, err := r.relayRow(ctx, row)
		if err != nil || ctx.Err() != nil {
			return false, err
		}
		if progress = progress && sent; !sent {
			if err := r.db.Release(ctx, row.Seq); err != nil {
				return false, err
			}
		}
	}
	return progress, nil
}

// relayRow publishes one row, and marks it if its message was accepted. Unknown is
// not yet, and declined is not sent: the row stays.
func (r *relay) relayRow(ctx context.Context, row business.Pending) (sent bool, err error) {
	mark := func() error { return r.db.Mark(ctx, row.Seq, row.BusinessID) }
	if r.policy.MarksFirst {
		if err := mark(); err != nil {
			return false, err
		}
	}
	t := &tries{count: int(row.Seq), try: row.Tries, messageID: row.MessageID, body: row.Body, headers: row.Headers,
		step: script.Publish{BusinessID: row.BusinessID, Key: row.Key, TTL: row.TTL}}
	if r.policy.NewIDs && t.messageID != "" {
		t.messageID = fmt.Sprintf("%s-%d", row.MessageID, row.Tries)
	}
	receipt, err := r.call(ctx, row.BusinessID, t, nil)
	if err != nil {
		return false, err
	}
	answer := receipt()
	switch {
	case ctx.Err() != nil:
		return false, nil
	case r.policy.MarksFirst:
		return true, nil
	case answer.Acceptance == evidence.Accepted, r.policy.TrustsNoError && answer.Acceptance != evidence.Rejected:
		return true, mark()
	}
	return false, nil
}
