package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/custodymq/custody/business"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/tasks"
)

// database is what consumers and relays use of the business database. With an
// error that wraps business.ErrUnavailable the application has to cope; any other
// is a failure of the harness.
type database interface {
	Apply(ctx context.Context, m business.Delivery, ops []business.Op) (business.Outcome, error)
	business.Outbox
}

// operating is the key of the context's actor, whose operation it is.
type operating struct{}

func by(ctx context.Context, actor string) context.Context {
	return context.WithValue(ctx, operating{}, actor)
}

// parentDatabase is the database as seen from a child: the parent performs the
// operations, so that a process paused mid-transaction holds no lock. What a
// killed one had not finished is rolled back.
type parentDatabase struct{ parent *process.Parent }

// request is one operation; answer its outcome.
type (
	request struct {
		Delivery *business.Delivery `json:",omitempty"`
		Ops      []business.Op      `json:",omitempty"`
		Claim    *business.Claim    `json:",omitempty"`
		Mark     int64              `json:",omitempty"`
		Of       string             `json:",omitempty"` // …of this business ID
		Release  int64              `json:",omitempty"`
	}
	answer struct {
		Outcome     business.Outcome
		Rows        []business.Pending
		Unavailable string // why, if it is
	}
)

// databaseRequest is the name of such a request.
const databaseRequest = "database"

func (d parentDatabase) ask(ctx context.Context, q request) (a answer, err error) {
	if err := d.parent.Ask(ctx, databaseRequest, q, &a); err != nil {
		return answer{Outcome: business.Uncertain}, err
	}
	if a.Unavailable != "" {
		err = fmt.Errorf("%w: %s", business.ErrUnavailable, a.Unavailable)
	}
	return a, err
}

func (d parentDatabase) Apply(ctx context.Context, m business.Delivery, ops []business.Op) (business.Outcome, error) {
	a, err := d.ask(ctx, request{Delivery: &m, Ops: ops})
	return a.Outcome, err
}

func (d parentDatabase) Claim(ctx context.Context, c business.Claim) ([]business.Pending, error) {
	a, err := d.ask(ctx, request{Claim: &c})
	return a.Rows, err
}

func (d parentDatabase) Mark(ctx context.Context, seq int64, businessID string) error {
	_, err := d.ask(ctx, request{Mark: seq, Of: businessID})
	return err
}

func (d parentDatabase) Release(ctx context.Context, seq int64) error {
	_, err := d.ask(ctx, request{Release: seq})
	return err
}

// answerChild performs a child's operation.
func (a *actor) answerChild(ctx context.Context, question string, params json.RawMessage) (any, error) {
	var q request
	if err := json.Unmarshal(params, &q); question != databaseRequest || err != nil {
		return nil, fmt.Errorf("runner: a child requested %q: %w", question, err)
	}
	var given answer
	var err error
	db := a.run.db
	ctx = by(ctx, a.name())
	switch {
	case q.Delivery != nil:
		given.Outcome, err = db.Apply(ctx, *q.Delivery, q.Ops)
	case q.Claim != nil:
		given.Rows, err = db.Claim(ctx, *q.Claim)
	case q.Mark != 0:
		err = db.Mark(ctx, q.Mark, q.Of)
	default:
		err = db.Release(ctx, q.Release)
	}
	if errors.Is(err, business.ErrUnavailable) {
		given.Unavailable, err = err.Error(), nil
	}
	return given, err
}

// businessFaults strike the operations of the business database.
type businessFaults struct {
	rt tasks.Runtime

	mu    sync.Mutex
	armed []*businessFault
}

type businessFault struct {
	systems.StoreFault
	fired  func(systems.StoreFired)
	seen   int // operations that it may strike
	healed bool
}

// ArmStore implements systems.StoreFaulter.
func (b *businessFaults) ArmStore(_ context.Context, f systems.StoreFault, fired func(systems.StoreFired)) (func(context.Context) error, error) {
	if !slices.Contains([]string{"unreachable", "slow", "lose-reply", "hold"}, f.Verb) {
		return nil, fmt.Errorf("runner: the business database has no fault %q", f.Verb)
	}
	f.After = f.After || f.Verb == "lose-reply"
	armed := &businessFault{StoreFault: f, fired: fired}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.armed = append(b.armed, armed)
	return func(context.Context) error {
		b.mu.Lock()
		armed.healed = true
		b.mu.Unlock()
		b.rt.Wake()
		return nil
	}, nil
}

// pass is the business database's gate.
func (b *businessFaults) pass(ctx context.Context, op business.Op, businessID string, after bool) error {
	actor, _ := ctx.Value(operating{}).(string)
	for _, f := range b.striking(op, businessID, actor, after) {
		f.fired(systems.StoreFired{Operation: string(op), Items: []evidence.FrameItem{{BusinessID: businessID}}})
		switch f.Verb {
		case "slow":
			if err := b.rt.Sleep(ctx, f.Delay); err != nil {
				return err
			}
		case "hold":
			if err := b.rt.Wait(ctx, func() bool { return b.isHealed(f) }); err != nil {
				return err
			}
		default:
			return fmt.Errorf("%w: %s", business.ErrUnavailable, f.Label)
		}
	}
	return nil
}

func (b *businessFaults) striking(op business.Op, businessID, actor string, after bool) (struck []*businessFault) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, f := range b.armed {
		if f.healed || f.After != after || f.Operation != string(op) || f.Of != "" && f.Of != businessID || f.By != "" && f.By != actor {
			continue
		}
		if f.seen++; f.seen == max(f.N, 1) || f.Every && f.seen > f.N {
			struck = append(struck, f)
		}
	}
	return struck
}

func (b *businessFaults) isHealed(f *businessFault) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return f.healed
}
