package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/custodymq/custody/broker/core"
	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/transport"
	"github.com/custodymq/custody/broker/wire"
)

const (
	maxBatch    = 4096 // operations of one commit
	maxEvents   = 16   // batches of inputs between two looks at the store
	purgeAtOnce = 1000
)

// loop owns the state machine, and carries out its effects.
type loop struct {
	s       *Server
	machine core.Machine
	peers   map[core.Session]*peer
	touched []*peer // have something to write
	effects []core.Effect
	timer   *time.Timer

	ctx      context.Context // of the store's work
	gathered *commit         // for the next commit
	spare    *commit
	busy     bool // a commit is under way
	commits  chan *commit
	results  chan *commit
}

type peer struct {
	conn    *transport.Conn
	touched bool
	lost    bool
}

// commit is one turn of the store: the operations, all or nothing, then what is
// to be done after them; and its results.
type commit struct {
	tickets  []uint64
	batch    []store.Operation
	purges   []time.Time
	inspects []inspection

	failed []error // of each operation; nil if all succeeded
	purged []string
}

func (c *commit) empty() bool { return len(c.batch)+len(c.purges)+len(c.inspects) == 0 }

// reset makes it ready for the next turn. After a failure the store may still be
// reading the batch, which is left to it.
func (c *commit) reset() {
	batch := c.batch
	if c.failed != nil {
		batch = nil
	}
	clear(batch) // the payloads
	clear(c.inspects)
	*c = commit{tickets: c.tickets[:0], batch: batch[:0], purges: c.purges[:0], inspects: c.inspects[:0]}
}

// fail gives every operation that has no outcome of its own this one.
func (c *commit) fail(err error) {
	if c.failed == nil {
		c.failed = make([]error, len(c.batch))
	}
	for i := range c.failed {
		if c.failed[i] == nil {
			c.failed[i] = err
		}
	}
}

func newLoop(ctx context.Context, s *Server, m core.Machine) *loop {
	return &loop{
		s: s, machine: m, peers: map[core.Session]*peer{}, timer: time.NewTimer(time.Hour),
		ctx: ctx, gathered: &commit{}, spare: &commit{},
		commits: make(chan *commit, 1), results: make(chan *commit, 1),
	}
}

// recover gives the machine what the store holds, before anyone is let in.
func (l *loop) recover(ctx context.Context) error {
	if l.s.store == nil {
		return nil
	}
	pending, refused := 0, 0
	err := l.s.store.Load(ctx, func(row store.Row) error {
		in := core.Input{Kind: core.Recovered, Row: row}
		l.step(&in, l.s.now())
		switch row.State {
		case store.Pending:
			pending++
		case store.RefusedVersion:
			refused++
			l.s.cfg.Log.Warn("row of another protocol version: left untouched, never delivered", "message", row.MessageID, "version", row.Version)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("broker: recover the rows of %s: %w", l.s.store.Partition(), err)
	}
	l.s.cfg.Log.Info("recovered", "partition", l.s.store.Partition().String(), "pending", pending, "refused", refused)
	return nil
}

func (l *loop) run() {
	if l.s.store != nil {
		l.s.all.Go(l.work)
	}
	defer close(l.commits)
	defer l.timer.Stop()
	in := core.Input{Kind: core.Tick} // arms the timer
	l.step(&in, l.s.now())
	for {
		l.execute()
		l.commit()
		select {
		case e := <-l.s.events:
			l.take(e)
			l.takeMore()
		case c := <-l.results:
			l.answer(c)
		case <-l.timer.C:
			in := core.Input{Kind: core.Tick}
			l.step(&in, l.s.now())
		case <-l.s.stopping:
			l.drain()
			return
		}
	}
}

func (l *loop) step(in *core.Input, now core.Instant) {
	l.effects = l.machine.Step(in, now, l.effects)
}

// takeMore lets one commit gather what is here already.
func (l *loop) takeMore() {
	for range maxEvents {
		select {
		case e := <-l.s.events:
			l.take(e)
		default:
			return
		}
	}
}

func (l *loop) take(e event) {
	now := l.s.now()
	if e.opened != nil {
		l.peers[(*e.inputs)[0].Session] = &peer{conn: e.opened}
	}
	for i := range *e.inputs {
		in := &(*e.inputs)[i]
		l.step(in, now)
		if in.Kind == core.Closed {
			delete(l.peers, in.Session)
		}
	}
	clear(*e.inputs)
	*e.inputs = (*e.inputs)[:0]
	inputPool.Put(e.inputs)
}

// execute carries out the effects so far, in order.
func (l *loop) execute() {
	for i := range l.effects {
		e := &l.effects[i]
		switch e.Kind {
		case core.Send:
			l.send(e.Session, &e.Message)
		case core.Persist:
			l.gathered.tickets = append(l.gathered.tickets, e.Ticket)
			l.gathered.batch = append(l.gathered.batch, e.Operation)
		case core.Arm:
			l.timer.Reset(e.Elapsed - time.Since(l.s.begin))
		case core.CloseSession:
			l.s.cfg.Log.Info("session closed", "session", e.Session, "reason", e.Reason)
			if p := l.peers[e.Session]; p != nil {
				p.conn.CloseAfterQueue()
			}
		case core.Purge:
			l.gathered.purges = append(l.gathered.purges, e.Wall)
		case core.Inspect:
			l.gathered.inspects = append(l.gathered.inspects, inspection{session: e.Session, command: e.Message})
		}
	}
	clear(l.effects)
	l.effects = l.effects[:0]
	for _, p := range l.touched {
		p.touched = false
		p.conn.Flush()
	}
	l.touched = l.touched[:0]
}

// send never waits: a peer whose queue is full loses its session.
func (l *loop) send(to core.Session, m *wire.Message) {
	p := l.peers[to]
	if p == nil || p.lost {
		return
	}
	if _, err := p.conn.Send(m); err != nil {
		if isMessageError(err) {
			l.s.cfg.Log.Error("a message could not be encoded", "session", to, "error", err)
			return
		}
		p.lost = true
		if errors.Is(err, transport.ErrFull) {
			l.s.cfg.Log.Warn("session closed", "session", to, "reason", err)
		}
		p.conn.Close()
		return
	}
	if !p.touched {
		p.touched = true
		l.touched = append(l.touched, p)
	}
}

// commit sends what has gathered on its way, if the store is free.
func (l *loop) commit() {
	if l.busy || l.gathered.empty() {
		return
	}
	next := l.gathered
	l.gathered, l.spare = l.spare, nil
	if rest := len(next.batch) - maxBatch; rest > 0 {
		l.gathered.tickets = append(l.gathered.tickets, next.tickets[maxBatch:]...)
		l.gathered.batch = append(l.gathered.batch, next.batch[maxBatch:]...)
		l.gathered.purges, next.purges = append(l.gathered.purges, next.purges...), next.purges[:0]
		l.gathered.inspects, next.inspects = append(l.gathered.inspects, next.inspects...), next.inspects[:0]
		next.tickets, next.batch = next.tickets[:maxBatch], next.batch[:maxBatch]
	}
	l.busy = true
	l.commits <- next
}

// answer gives the machine the results of a commit.
func (l *loop) answer(c *commit) {
	l.busy = false
	now := l.s.now()
	for i, ticket := range c.tickets {
		in := core.Input{Kind: core.Stored, Ticket: ticket}
		if c.failed != nil {
			in.Err = c.failed[i]
		}
		l.step(&in, now)
	}
	if len(c.purged) > 0 {
		in := core.Input{Kind: core.Purged, IDs: c.purged}
		l.step(&in, now)
	}
	for _, i := range c.inspects {
		if i.reply.Kind != wire.Invalid {
			l.effects = append(l.effects, core.Effect{Kind: core.Send, Session: i.session, Message: i.reply})
			continue
		}
		in := core.Input{Kind: core.Found, Session: i.session, Message: i.command, Row: i.row, Err: i.err}
		l.step(&in, now)
	}
	c.reset()
	l.spare = c
}

// drain finishes what has been taken, answers it, and ends every connection.
func (l *loop) drain() {
	in := core.Input{Kind: core.Drain}
	l.step(&in, l.s.now())
	for {
		l.execute()
		if l.ctx.Err() == nil {
			l.commit()
		}
		if !l.busy {
			break
		}
		l.answer(<-l.results)
	}
	l.s.endConnections()
}

// work is the store's goroutine.
func (l *loop) work() {
	for c := range l.commits {
		if len(c.batch) > 0 {
			l.apply(c)
		}
		for _, now := range c.purges {
			l.purge(c, now)
		}
		for i := range c.inspects {
			c.inspects[i].run(l.ctx, l.s.store)
		}
		l.results <- c
	}
}

// apply makes the batch durable. An insert whose ID is taken costs only itself:
// the rest is tried again without it.
func (l *loop) apply(c *commit) {
	err := l.s.store.Apply(l.ctx, c.batch)
	if err == nil {
		return
	}
	for range len(c.batch) {
		var taken *store.ExistsError
		if !errors.As(err, &taken) {
			break
		}
		rest := make([]store.Operation, 0, len(c.batch))
		for i, op := range c.batch {
			if op.Kind == store.Insert && op.Row.MessageID == taken.MessageID {
				c.failed = append(c.failed, make([]error, len(c.batch)-len(c.failed))...)
				c.failed[i] = err
			} else if c.failed == nil || c.failed[i] == nil {
				rest = append(rest, op)
			}
		}
		if len(rest) == 0 {
			return
		}
		if err = l.s.store.Apply(l.ctx, rest); err == nil {
			return
		}
	}
	err = l.certify(err)
	l.s.cfg.Log.Error("the store failed", "operations", len(c.batch), "error", err)
	if err != nil {
		c.fail(err)
	}
}

// certify settles an uncertain write where the store can: nil if it is stored
// after all, a *store.Failure that says not written if that is proven.
func (l *loop) certify(err error) error {
	var failure *store.Failure
	certifier, can := l.s.store.(store.Certifier)
	if !can || errors.As(err, &failure) && failure.NotWritten || l.ctx.Err() != nil {
		return err
	}
	absent, doubt := certifier.Reestablish(l.ctx)
	switch {
	case doubt != nil:
		return fmt.Errorf("%w (and it could not be found out: %w)", err, doubt)
	case absent:
		return &store.Failure{NotWritten: true, Err: err}
	}
	return nil
}

func (l *loop) purge(c *commit, now time.Time) {
	for range maxBatch { // bounded; the next interval goes on
		ids, err := l.s.store.Expired(l.ctx, now, purgeAtOnce)
		c.purged = append(c.purged, ids...)
		if err != nil {
			l.s.cfg.Log.Error("purging expired rows failed", "error", err)
			return
		}
		if len(ids) < purgeAtOnce {
			return
		}
	}
}
