package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/custodymq/custody/broker/core"
	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/handover"
	"github.com/custodymq/custody/broker/wire"
)

// Engine is the broker without network, clock and goroutines: the state machine
// and its use of the store. A Server drives one in real time, a simulation in
// virtual time.
//
// It uses the store in two ways. Writes are made in turns, one after another:
// Begin, Work, End. Reads do not wait for a turn, and several may run at once:
// Read, Perform, Finish. Work and Perform do the I/O and may run concurrently
// with the other methods, which are not safe for concurrent use.
type Engine struct {
	store      store.Store   // nil without one
	settledIDs int           // that are recovered
	settledFor time.Duration // IDs of finished messages are kept
	visibility time.Duration // no delivery takes longer; what it began in time is not purged under it
	machine    core.Machine
	log        *slog.Logger
	effects    []core.Effect

	lanes   []*lane // with writes for the next turn, in turn
	byOwner map[core.Session]*lane
	waiting int       // writes in lanes
	bytes   int       // of content in them
	limit   int       // writes of a turn
	noLong  bool      // while sessions share the turns, no long write may begin
	short   int       // turns in a row that were for light lanes only
	purge   time.Time // what expired by then is to be deleted; zero: nothing
	turn    Turn
	busy    bool   // a turn is under way
	asked   uint64 // writes, ever: each has its number
	fatal   error  // the store takes nothing any more

	connect    func(context.Context, string) (store.Store, error) // nil: the store stays
	seam       func(store.Store) store.Store
	swapWithin time.Duration
	swapStep   func(string) error
	swap       *swap     // asked for, or under way
	opened     bool      // the store is the target of a swap, and the engine's to close
	retired    []retired // waiting to be closed
	closing    bool      // the first of them
	reads      *int      // readings of store that are under way

	fetches     []core.Effect
	fetching    bool
	inspections []*inspection // waiting
	inspecting  int           // under way
	inspectors  map[core.Session]int
}

// lane holds the writes requested by one session's inputs. Lanes share each turn
// equally, so that no session waits for what others have queued. Writes of
// different sessions depend on each other only through answers, which follow a
// turn.
type lane struct {
	owner  core.Session // 0: of no session's input
	writes []write
	bytes  int // of content
}

// light reports whether the lane has few and small writes.
func (l *lane) light() bool { return len(l.writes) <= lightLane && l.bytes <= lightBytes }

// write is an operation queued for the store.
type write struct {
	number    uint64
	ticket    uint64
	operation store.Operation
	size      int // bytes of the message's content: deleting them takes as long as inserting them
}

func (w *write) long() bool { return w.size > longTurn }

// Outlet carries out the effects that do not concern the store.
type Outlet interface {
	Send(to core.Session, m *wire.Message)
	CloseSession(s core.Session, reason string)
	Arm(at time.Duration)
}

// A turn takes time in proportion to the content that it writes or deletes, and
// whatever arrives meanwhile waits for it.
const (
	maxBatch      = 512     // operations of one commit
	maxBatchBytes = 8 << 20 // bytes of content in one commit; a single operation may exceed it
	purgeAtOnce   = 512

	// Bounds of a light lane, and of turns for light lanes only.
	lightLane     = 8         // writes
	lightBytes    = 64 << 10  // of content
	longTurn      = 512 << 10 // bytes of content that make a turn, or a write, long; while several sessions write, a turn ends there
	maxShortTurns = 2         // in a row
)

// Turn is one turn of the store: the operations, all or nothing, and a purge; and
// their results.
type Turn struct {
	tickets []uint64
	batch   []store.Operation
	oldest  uint64 // number of a write in it
	long    bool   // it is one long write
	purge   time.Time
	swap    *swap // it is this, and nothing else

	failed []error // of each operation; nil if all succeeded
	purged []string
	fatal  error // the store can take no more writes, and the broker must end

	took time.Duration // measured by the server
}

// reset prepares for the next turn. After a failure the store may still be
// reading the batch, so it is not reused.
func (t *Turn) reset() {
	batch := t.batch
	if t.failed != nil {
		batch = nil
	}
	clear(batch) // releases the payloads
	*t = Turn{tickets: t.tickets[:0], batch: batch[:0]}
}

// fail sets the outcome of operations [from, to).
func (t *Turn) fail(from, to int, err error) {
	if err == nil {
		return
	}
	if t.failed == nil {
		t.failed = make([]error, len(t.batch))
	}
	for i := from; i < to; i++ {
		t.failed[i] = err
	}
}

// NewEngine returns an engine configured like a Server; it ignores the network
// settings in cfg. idPrefix starts every message ID assigned by the broker, and
// must be unique per start.
func NewEngine(cfg Config, idPrefix string) (*Engine, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return newEngine(&cfg, idPrefix), nil
}

func newEngine(cfg *Config, idPrefix string) *Engine {
	e := &Engine{
		store: cfg.Store, settledIDs: cfg.Limits.SettledIDs, settledFor: cfg.SettledWindow, visibility: cfg.VisibilityTimeout, machine: core.New(cfg.core(idPrefix)), log: cfg.Log,
		limit: maxBatch, byOwner: map[core.Session]*lane{}, inspectors: map[core.Session]int{},
		connect: cfg.Connect, seam: cfg.Seams.Store, swapWithin: cfg.SwapWithin, swapStep: cfg.Seams.Swap, reads: new(int),
	}
	if e.seam == nil {
		e.seam = func(s store.Store) store.Store { return s }
	}
	if e.store != nil {
		e.store = e.seam(e.store)
	}
	if cfg.Seams.Machine != nil {
		e.machine = cfg.Seams.Machine(e.machine)
	}
	return e
}

// Recover gives the machine what the store holds, before anyone is let in.
// Content stays in the store until it is delivered.
func (e *Engine) Recover(ctx context.Context, now func() core.Instant) error {
	if e.store == nil {
		return nil
	}
	if err := handover.Refusal(ctx, e.store); err != nil {
		return fmt.Errorf("broker: %w", err)
	}
	count := map[store.State]int{}
	progress := newProgress(ctx, e.store, e.settledIDs, e.log, now)
	err := e.store.Load(ctx, e.settledIDs, func(row store.Row) error {
		progress.add()
		e.recovered(row, now)
		count[row.State]++
		return nil
	})
	if err != nil {
		return fmt.Errorf("broker: recover the rows of %s: %w", e.store.Partition(), err)
	}
	level := slog.LevelInfo
	if len(count) == 0 {
		level = slog.LevelDebug
	}
	e.log.Log(ctx, level, "recovered", "partition", e.store.Partition().String(),
		"pending", count[store.Pending], "refused", count[store.RefusedVersion], "damaged", count[store.Damaged])
	return nil
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

// Step processes one input; its effects wait for Execute. It returns their cost:
// one each, plus more if much is to be copied.
func (e *Engine) Step(in *core.Input, now core.Instant) (cost int) {
	before := len(e.effects)
	e.effects = e.machine.Step(in, now, e.effects)
	for i := before; i < len(e.effects); i++ {
		cost += 1 + len(e.effects[i].Message.Payload)/copiedForOne
	}
	return cost
}

const copiedForOne = 2 << 10 // payload bytes that cost as much as one effect

// Execute carries out the effects so far, in order.
func (e *Engine) Execute(out Outlet) {
	for i := range e.effects {
		f := &e.effects[i]
		switch f.Kind {
		case core.Send:
			out.Send(f.Session, &f.Message)
		case core.Persist:
			e.persist(f)
		case core.Arm:
			out.Arm(f.Elapsed)
		case core.CloseSession:
			out.CloseSession(f.Session, f.Reason)
		case core.Purge:
			e.purge = f.Wall
		case core.Fetch:
			e.fetches = append(e.fetches, *f)
		case core.Inspect:
			e.inspections = append(e.inspections, &inspection{session: f.Session, command: f.Message, after: e.asked})
			e.inspectors[f.Session]++
		case core.Swap:
			e.askSwap(f, out)
		}
	}
	clear(e.effects)
	e.effects = e.effects[:0]
}

func (e *Engine) persist(f *core.Effect) {
	l := e.byOwner[f.Session]
	if l == nil {
		l = &lane{owner: f.Session}
		e.byOwner[f.Session] = l
		e.lanes = append(e.lanes, l)
	}
	e.asked++
	e.waiting++
	l.bytes += f.Size
	e.bytes += f.Size
	l.writes = append(l.writes, write{e.asked, f.Ticket, f.Operation, f.Size})
}

// Owners returns how many sessions have writes waiting for the next turn.
func (e *Engine) Owners() int {
	if e.byOwner[0] != nil {
		return len(e.lanes) - 1
	}
	return len(e.lanes)
}

// Writes returns how many of a session's writes wait for a turn.
func (e *Engine) Writes(s core.Session) int {
	if l := e.byOwner[s]; l != nil {
		return len(l.writes)
	}
	return 0
}

// Limit bounds the operations in each of the following turns. If they are fewer
// than maxBatch, sessions share the turns, and a long write is made in a turn of
// its own, which only begins if long is true.
func (e *Engine) Limit(operations int, long bool) {
	e.limit, e.noLong = max(1, min(operations, maxBatch)), !long
}

func (e *Engine) shared() bool { return e.limit < maxBatch }

// Begin gives the store's next turn, to be done by Work and answered by End; nil
// while one is under way, or if there is nothing to do.
func (e *Engine) Begin() *Turn {
	ready := e.swap != nil && e.swap.stage == swapReady
	if e.busy || e.fatal != nil || e.waiting == 0 && e.purge.IsZero() && !ready {
		return nil
	}
	t := &e.turn
	if ready {
		e.swap.stage, e.busy, t.swap = swapRunning, true, e.swap
		return t
	}
	if !e.fillLong(t) {
		e.fill(t)
	}
	if len(t.batch) == 0 && e.purge.IsZero() {
		return nil
	}
	t.purge, e.purge = e.purge, time.Time{}
	e.busy = true
	return t
}

// Held reports whether writes wait for nothing but Limit to allow long ones.
func (e *Engine) Held() bool { return e.waiting > 0 && !e.busy && e.shared() && e.noLong }

// shorts reports whether a write that is not long waits for the next turn.
func (e *Engine) shorts() bool {
	return slices.ContainsFunc(e.lanes, func(l *lane) bool { return !l.writes[0].long() })
}

// fillLong gives the turn to a long write, if there is one that is next in its
// lane and may begin.
func (e *Engine) fillLong(t *Turn) bool {
	if !e.shared() || e.noLong {
		return false
	}
	i := slices.IndexFunc(e.lanes, func(l *lane) bool { return l.writes[0].long() })
	if i < 0 {
		return false
	}
	l := e.lanes[i]
	copy(e.lanes[1:], e.lanes[:i])
	e.lanes[0] = l
	e.grant(t, 1)
	t.long = true
	return true
}

// fill gives each lane an equal share of the turn, in rounds.
func (e *Engine) fill(t *Turn) {
	light := e.lightFirst()
	limit, bytes, mostBytes := cmp.Or(light, e.limit), 0, maxBatchBytes
	if e.shared() {
		mostBytes = longTurn
	}
	share := max(1, limit/max(1, len(e.lanes)))
	for passed := 0; passed < len(e.lanes) && len(t.batch) < limit && bytes < mostBytes; {
		l := e.lanes[0]
		most, n := min(share, limit-len(t.batch), len(l.writes)), 0
		if light > 0 {
			most = len(l.writes)
		}
		for ; n < most && bytes < mostBytes; n++ {
			if e.shared() && l.writes[n].long() {
				break
			}
			bytes += l.writes[n].size
		}
		if passed++; n > 0 {
			passed = 0
		}
		e.grant(t, n)
	}
}

// grant moves the first n writes of the first lane to the turn, and the lane to
// the end.
func (e *Engine) grant(t *Turn, n int) {
	l := e.lanes[0]
	for i := range l.writes[:n] {
		w := &l.writes[i]
		if len(t.batch) == 0 || w.number < t.oldest {
			t.oldest = w.number
		}
		l.bytes -= w.size
		e.bytes -= w.size
		t.tickets = append(t.tickets, w.ticket)
		t.batch = append(t.batch, w.operation)
	}
	e.waiting -= n
	clear(l.writes[:n])
	l.writes = l.writes[n:]
	e.lanes = e.lanes[1:]
	if len(l.writes) > 0 {
		e.lanes = append(e.lanes, l)
	} else {
		delete(e.byOwner, l.owner)
	}
}

// lightFirst moves light lanes to the front. If the next turn is to be theirs
// alone, because the others have enough for a long one, it returns how many
// writes they have. Now and then it grants the others a turn, so that they are
// served however many light lanes there are.
func (e *Engine) lightFirst() (writes int) {
	if e.shared() && (e.waiting > e.limit || e.bytes > longTurn) && e.short < maxShortTurns {
		for _, l := range e.lanes {
			if l.light() {
				writes += len(l.writes)
			}
		}
	}
	if writes == 0 || writes == e.waiting || writes >= e.limit {
		e.short = 0
		return 0
	}
	slices.SortStableFunc(e.lanes, func(a, b *lane) int {
		switch {
		case a.light() == b.light():
			return 0
		case a.light():
			return -1
		}
		return 1
	})
	e.short++
	return writes
}

// madeBefore reports whether all writes up to this number are done.
func (e *Engine) madeBefore(number uint64) bool {
	if e.busy && len(e.turn.batch) > 0 && e.turn.oldest <= number {
		return false
	}
	for _, l := range e.lanes {
		if l.writes[0].number <= number {
			return false
		}
	}
	return true
}

// Stats returns the machine's counters, or zero if it has none, as may be the
// case behind a seam.
func (e *Engine) Stats() core.Stats {
	if m, ok := e.machine.(interface{ Stats() core.Stats }); ok {
		return m.Stats()
	}
	return core.Stats{}
}

// Busy reports whether a turn is in progress.
func (e *Engine) Busy() bool { return e.busy }

// End gives the machine the results of a turn. An error says that the broker must
// end: the store takes nothing any more.
func (e *Engine) End(t *Turn, now core.Instant) error {
	e.busy = false
	if s := t.swap; s != nil {
		if t.fatal != nil {
			s.err = fmt.Errorf("%w: %w", handover.ErrDoubt, t.fatal)
		}
		e.swapped(s)
	}
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
	if len(t.purged) == purgeAtOnce && e.purge.IsZero() {
		e.purge = t.purge // there may be more
	}
	if t.fatal != nil {
		e.fatal = t.fatal
	}
	t.reset()
	return e.fatal
}

// abort ends a turn in which the store panicked: it is unknown what is stored,
// and the store cannot be trusted with further writes.
func (t *Turn) abort(why error) {
	t.fatal = why
	t.fail(0, len(t.batch), why)
}

// Work does a turn: what the store's goroutine does.
func (e *Engine) Work(ctx context.Context, t *Turn) {
	if t.swap != nil {
		t.swap.run(ctx, e.swapWithin)
		return
	}
	if len(t.batch) > 0 {
		e.apply(ctx, t)
	}
	if !t.purge.IsZero() && t.fatal == nil {
		var err error
		if t.purged, err = e.store.Expired(ctx, t.purge.Add(-e.visibility), t.purge.Add(e.settledFor), purgeAtOnce); err == nil {
			_, err = e.store.Expired(ctx, t.purge, time.Time{}, 0) // IDs over their window
		}
		if err != nil {
			e.failed(t, "purging expired rows failed", err)
		}
	}
}

// apply makes the batch durable. An insert whose ID exists fails alone: the
// operations before it are applied without it, then those after it.
func (e *Engine) apply(ctx context.Context, t *Turn) {
	for from := 0; from < len(t.batch); {
		err := e.store.Apply(ctx, t.batch[from:])
		if err == nil {
			return
		}
		var exists *store.ExistsError
		taken := -1
		if errors.As(err, &exists) {
			taken = slices.IndexFunc(t.batch[from:], func(op store.Operation) bool {
				return op.Kind == store.Insert && op.Row.MessageID == exists.MessageID
			})
		}
		if taken < 0 {
			t.fail(from, len(t.batch), e.certify(ctx, err))
			e.failed(t, "the store failed", err)
			return
		}
		taken += from
		t.fail(taken, taken+1, err)
		if taken > from {
			if err := e.store.Apply(ctx, t.batch[from:taken]); err != nil {
				t.fail(from, taken, e.certify(ctx, err))
				t.fail(taken+1, len(t.batch), &store.Failure{NotWritten: true, Err: err}) // not attempted
				e.failed(t, "the store failed", err)
				return
			}
		}
		from = taken + 1
	}
}

// failed logs a failure, and records one after which the broker must not
// continue.
func (e *Engine) failed(t *Turn, what string, err error) {
	e.log.Error(what, "operations", len(t.batch), "error", err)
	if errors.Is(err, store.ErrFenced) {
		t.fatal = fmt.Errorf("broker: %w", err)
	}
}

// certify determines the outcome of an uncertain write, if the store can and there
// is time for it.
func (e *Engine) certify(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	return store.Certify(ctx, e.store, err)
}
