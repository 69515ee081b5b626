package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/custodymq/custody/broker/core"
	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/wire"
)

// Engine is the broker without network, clock and goroutines: the state machine,
// and what meets the store in which order. A Server drives one in real time, a
// simulation in virtual time. Only Work may be called beside the other methods,
// by one goroutine.
type Engine struct {
	store      store.Store // nil without one
	settledIDs int         // that are recovered
	machine    core.Machine
	log        *slog.Logger
	effects    []core.Effect
	gathered   *Turn // for the next turn of the store
	spare      *Turn
	busy       bool // a turn is under way
}

// Outlet carries out the effects that are not the store's.
type Outlet interface {
	Send(to core.Session, m *wire.Message)
	CloseSession(s core.Session, reason string)
	Arm(at time.Duration)
}

const (
	maxBatch      = 4096 // operations of one commit
	purgeAtOnce   = 1000
	contentAtOnce = 256 // rows
)

// Turn is one turn of the store: the operations, all or nothing, then what is to
// be done after them; and its results.
type Turn struct {
	tickets  []uint64
	batch    []store.Operation
	purges   []time.Time
	inspects []inspection

	failed []error // of each operation; nil if all succeeded
	purged []string
}

func (t *Turn) empty() bool { return len(t.batch)+len(t.purges)+len(t.inspects) == 0 }

// reset makes it ready for the next turn. After a failure the store may still be
// reading the batch, which is left to it.
func (t *Turn) reset() {
	batch := t.batch
	if t.failed != nil {
		batch = nil
	}
	clear(batch) // the payloads
	clear(t.inspects)
	*t = Turn{tickets: t.tickets[:0], batch: batch[:0], purges: t.purges[:0], inspects: t.inspects[:0]}
}

// fail gives every operation that has no outcome of its own this one.
func (t *Turn) fail(err error) {
	if t.failed == nil {
		t.failed = make([]error, len(t.batch))
	}
	for i := range t.failed {
		if t.failed[i] == nil {
			t.failed[i] = err
		}
	}
}

// NewEngine makes one from what a Server is made from; what the network needs of
// cfg is not used. idPrefix begins every message ID that is given, and must be
// unique for each start.
func NewEngine(cfg Config, idPrefix string) (*Engine, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return newEngine(&cfg, idPrefix), nil
}

func newEngine(cfg *Config, idPrefix string) *Engine {
	e := &Engine{store: cfg.Store, settledIDs: cfg.Limits.SettledIDs, machine: core.New(cfg.core(idPrefix)), log: cfg.Log, gathered: &Turn{}, spare: &Turn{}}
	if e.store != nil && cfg.Seams.Store != nil {
		e.store = cfg.Seams.Store(e.store)
	}
	if cfg.Seams.Machine != nil {
		e.machine = cfg.Seams.Machine(e.machine)
	}
	return e
}

// Recover gives the machine what the store holds, before anyone is let in.
func (e *Engine) Recover(ctx context.Context, now func() core.Instant) error {
	if e.store == nil {
		return nil
	}
	var rows []store.Row
	err := e.store.Load(ctx, e.settledIDs, func(row store.Row) error {
		if row.State == store.SettledMarker {
			e.recovered(row, now)
		} else {
			rows = append(rows, row)
		}
		return nil
	})
	count := map[store.State]int{}
	for batch := range slices.Chunk(rows, contentAtOnce) {
		var whole map[string]store.Row
		if err == nil {
			whole, err = e.content(ctx, batch)
		}
		for _, row := range batch {
			if found, there := whole[row.MessageID]; there {
				row = found
			}
			e.recovered(row, now)
			count[row.State]++
		}
	}
	if err != nil {
		return fmt.Errorf("broker: recover the rows of %s: %w", e.store.Partition(), err)
	}
	e.log.Info("recovered", "partition", e.store.Partition().String(),
		"pending", count[store.Pending], "refused", count[store.RefusedVersion], "damaged", count[store.Damaged])
	return nil
}

// content reads the pending rows of a batch whole.
func (e *Engine) content(ctx context.Context, batch []store.Row) (map[string]store.Row, error) {
	var ids []string
	for _, row := range batch {
		if row.State == store.Pending {
			ids = append(ids, row.MessageID)
		}
	}
	whole := make(map[string]store.Row, len(ids))
	err := e.store.Content(ctx, ids, func(row store.Row) error {
		whole[row.MessageID] = row
		return nil
	})
	return whole, err
}

func (e *Engine) recovered(row store.Row, now func() core.Instant) {
	switch row.State {
	case store.RefusedVersion:
		e.log.Warn("row of another protocol version: left untouched, never delivered", "message", row.MessageID, "version", row.Version)
	case store.Damaged:
		e.log.Error("damage in the store: left untouched, never delivered", "message", row.MessageID, "topic", row.Topic, "reason", row.Reason)
	}
	in := core.Input{Kind: core.Recovered, Row: row}
	e.Step(&in, now())
}

// Step takes one input. Its effects wait for Execute.
func (e *Engine) Step(in *core.Input, now core.Instant) {
	e.effects = e.machine.Step(in, now, e.effects)
}

// Execute carries out the effects so far, in order.
func (e *Engine) Execute(out Outlet) {
	for i := range e.effects {
		f := &e.effects[i]
		switch f.Kind {
		case core.Send:
			out.Send(f.Session, &f.Message)
		case core.Persist:
			e.gathered.tickets = append(e.gathered.tickets, f.Ticket)
			e.gathered.batch = append(e.gathered.batch, f.Operation)
		case core.Arm:
			out.Arm(f.Elapsed)
		case core.CloseSession:
			out.CloseSession(f.Session, f.Reason)
		case core.Purge:
			e.gathered.purges = append(e.gathered.purges, f.Wall)
		case core.Inspect:
			e.gathered.inspects = append(e.gathered.inspects, inspection{session: f.Session, command: f.Message})
		}
	}
	clear(e.effects)
	e.effects = e.effects[:0]
}

// Begin gives the store's next turn, to be done by Work and answered by End; nil
// while one is under way, or if there is nothing to do.
func (e *Engine) Begin() *Turn {
	if e.busy || e.gathered.empty() {
		return nil
	}
	next := e.gathered
	e.gathered, e.spare = e.spare, nil
	if rest := len(next.batch) - maxBatch; rest > 0 {
		e.gathered.tickets = append(e.gathered.tickets, next.tickets[maxBatch:]...)
		e.gathered.batch = append(e.gathered.batch, next.batch[maxBatch:]...)
		e.gathered.purges, next.purges = append(e.gathered.purges, next.purges...), next.purges[:0]
		e.gathered.inspects, next.inspects = append(e.gathered.inspects, next.inspects...), next.inspects[:0]
		next.tickets, next.batch = next.tickets[:maxBatch], next.batch[:maxBatch]
	}
	e.busy = true
	return next
}

// Busy says whether a turn is under way.
func (e *Engine) Busy() bool { return e.busy }

// End gives the machine the results of a turn.
func (e *Engine) End(t *Turn, now core.Instant) {
	e.busy = false
	for i, ticket := range t.tickets {
		in := core.Input{Kind: core.Stored, Ticket: ticket}
		if t.failed != nil {
			in.Err = t.failed[i]
		}
		e.Step(&in, now)
	}
	if len(t.purged) > 0 {
		in := core.Input{Kind: core.Purged, IDs: t.purged}
		e.Step(&in, now)
	}
	for _, i := range t.inspects {
		if i.reply.Kind != wire.Invalid {
			e.effects = append(e.effects, core.Effect{Kind: core.Send, Session: i.session, Message: i.reply})
			continue
		}
		in := core.Input{Kind: core.Found, Session: i.session, Message: i.command, Row: i.row, Err: i.err}
		e.Step(&in, now)
	}
	t.reset()
	e.spare = t
}

// Work does a turn: what the store's goroutine does.
func (e *Engine) Work(ctx context.Context, t *Turn) {
	if len(t.batch) > 0 {
		e.apply(ctx, t)
	}
	for _, now := range t.purges {
		e.purge(ctx, t, now)
	}
	for i := range t.inspects {
		t.inspects[i].run(ctx, e.store)
	}
}

// apply makes the batch durable. An insert whose ID is taken costs only itself:
// the rest is tried again without it.
func (e *Engine) apply(ctx context.Context, t *Turn) {
	err := e.store.Apply(ctx, t.batch)
	if err == nil {
		return
	}
	for range len(t.batch) {
		var taken *store.ExistsError
		if !errors.As(err, &taken) {
			break
		}
		rest := make([]store.Operation, 0, len(t.batch))
		for i, op := range t.batch {
			if op.Kind == store.Insert && op.Row.MessageID == taken.MessageID {
				t.failed = append(t.failed, make([]error, len(t.batch)-len(t.failed))...)
				t.failed[i] = err
			} else if t.failed == nil || t.failed[i] == nil {
				rest = append(rest, op)
			}
		}
		if len(rest) == 0 {
			return
		}
		if err = e.store.Apply(ctx, rest); err == nil {
			return
		}
	}
	err = e.certify(ctx, err)
	e.log.Error("the store failed", "operations", len(t.batch), "error", err)
	if err != nil {
		t.fail(err)
	}
}

// certify settles an uncertain write where the store can: nil if it is stored
// after all, a *store.Failure that says not written if that is proven.
func (e *Engine) certify(ctx context.Context, err error) error {
	var failure *store.Failure
	certifier, can := e.store.(store.Certifier)
	if !can || errors.As(err, &failure) && failure.NotWritten || ctx.Err() != nil {
		return err
	}
	absent, doubt := certifier.Reestablish(ctx)
	switch {
	case doubt != nil:
		return fmt.Errorf("%w (and it could not be found out: %w)", err, doubt)
	case absent:
		return &store.Failure{NotWritten: true, Err: err}
	}
	return nil
}

func (e *Engine) purge(ctx context.Context, t *Turn, now time.Time) {
	for range maxBatch { // bounded; the next interval goes on
		ids, err := e.store.Expired(ctx, now, purgeAtOnce)
		t.purged = append(t.purged, ids...)
		if err != nil {
			e.log.Error("purging expired rows failed", "error", err)
			return
		}
		if len(ids) < purgeAtOnce {
			return
		}
	}
}
