package simulated

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/custodymq/custody/broker"
	"github.com/custodymq/custody/broker/core"
	"github.com/custodymq/custody/broker/defects"
	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/faulty"
	"github.com/custodymq/custody/broker/store/memory"
	"github.com/custodymq/custody/broker/wire"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/zeromq"
	"github.com/custodymq/custody/tasks"
)

// database survives a broker: the rows of every partition.
type database struct {
	storage
	in    *instance
	seen  evidence.Snapshot // the latest
	stale bool              // written since then
	until time.Time         // when the next row expires; zero is never
}

// storage is where the rows are.
type storage interface {
	// open opens a partition for the broker's process.
	open(p store.Partition) (store.Store, error)
	// read reads all partitions, bypassing the broker, and says when the next
	// row expires.
	read(own store.Partition, now time.Time) (s evidence.Snapshot, next time.Time, err error)
	// end ends the process's use of the open stores, before the process itself is
	// ended; left closes them once nothing is in progress.
	end(orderly bool)
	left() error
	close() error
}

// rows reads the store directly, bypassing the broker.
func (d *database) rows() (evidence.Snapshot, error) {
	now := d.in.wall()
	if !d.stale && d.seen.Source != "" && (d.until.IsZero() || now.Before(d.until)) {
		return d.seen, nil
	}
	s, next, err := d.read(d.in.partition(), now)
	if err != nil {
		return s, err
	}
	d.seen, d.until, d.stale = s, next, false
	return s, nil
}

// inMemory keeps the rows in memory. A commit is instantaneous, so a kill is
// before or after it.
type inMemory struct {
	wall       func() time.Time
	partitions []lasting // in order of first use
}

// lasting survives the broker's process, so that content may be left to it.
type lasting struct{ *memory.Store }

// Flush implements store.Durable.
func (lasting) Flush() store.Flush { return store.FlushEveryCommit }

func (m *inMemory) open(p store.Partition) (store.Store, error) {
	for _, s := range m.partitions {
		if s.Partition() == p {
			return s, nil
		}
	}
	s := lasting{memory.New(p, memory.Options{Now: m.wall})}
	m.partitions = append(m.partitions, s)
	return s, nil
}

func (m *inMemory) end(bool)     {}
func (m *inMemory) left() error  { return nil }
func (m *inMemory) close() error { return nil }

func (m *inMemory) read(own store.Partition, now time.Time) (s evidence.Snapshot, next time.Time, err error) {
	s = evidence.Snapshot{Source: evidence.SourceBroker, Trust: evidence.Exact, Partition: own.String()}
	for _, p := range m.partitions {
		err := p.Rows(background, store.Selection{Content: true}, func(row store.Row) error {
			state, shown := zeromq.RowStates[row.State]
			if !shown {
				return nil // the marker of a settled message, whose row is deleted
			}
			r := evidence.StoredRow{State: state, Version: int(row.Version), MessageID: row.MessageID, BusinessID: row.BusinessID, Destination: row.Topic,
				Subscription: row.Group, Attempts: row.Attempts, Reason: row.Reason, Partition: row.Partition.String(),
				Expired: !row.ExpiresAt.IsZero() && now.After(row.ExpiresAt)}
			if r.State == evidence.RowDead && r.Reason != "" {
				r.Cause = evidence.CauseStated
			}
			if e, err := evidence.ParseEnvelope(row.Payload); err == nil {
				r.PublishID = e.PublishID
				r.Digest = evidence.Digest(row.Payload, row.Key, row.Headers)
			}
			if !row.ExpiresAt.IsZero() && !r.Expired && (next.IsZero() || row.ExpiresAt.Before(next)) {
				next = row.ExpiresAt
			}
			s.Rows = append(s.Rows, r)
			return nil
		})
		if err != nil {
			return s, next, err
		}
	}
	s.Count = len(s.Rows)
	return s, next, nil
}

// actor of the broker's events.
const actor = "broker"

// brokerProcess is one run of the broker: its engine, driven in virtual time.
type brokerProcess struct {
	in       *instance
	engine   *broker.Engine
	input    core.Input // reused to avoid an allocation per input
	hook     *hook
	began    time.Duration
	sessions uint64
	peers    map[core.Session]*conn
	conns    []*conn
	armed    uint64 // number of the latest timer
	work     []*tasks.Task
	beside   int // writes of a defect that were acknowledged before they were made
	paused   bool
	deferred []func() // input received while paused
	stopping bool     // no new connections
	dead     bool
}

var _ broker.Outlet = (*brokerProcess)(nil)

// neighbours pairs the storage identities between which a defect crosses.
var neighbours = map[string]string{"identity-1": "identity-2", "identity-2": "identity-1"}

// boot starts the broker.
func (in *instance) boot() error {
	p := &brokerProcess{in: in, began: in.Now(), peers: map[core.Session]*conn{}}
	p.hook = &hook{p: p, loading: true}
	if d, ok := in.database.storage.(*onDisk); ok {
		d.files.Arm(p.hook)
	}
	in.database.stale = true
	held, err := in.database.open(in.partition())
	if err != nil {
		return errors.Join(err, in.database.left())
	}
	armed := faulty.Wrap(held)
	armed.Arm(p.hook)
	cfg := in.system.Broker()
	cfg = zeromq.Limited(cfg, in.limits)
	cfg.ConfirmAfterDelete = in.confirms
	cfg.Name, cfg.Store, cfg.Clock = in.name, armed, in.wall
	if in.defect != "" {
		o := defects.Options{Go: p.runConcurrently}
		if other := neighbours[held.Partition().Identity]; other != "" {
			if o.Neighbour, err = in.database.open(store.Partition{Connection: in.name, Identity: other}); err != nil {
				return err
			}
		}
		if err := defects.Apply(in.defect, &cfg, o); err != nil {
			return err
		}
	}
	if in.system.Tamper != nil {
		in.system.Tamper(&cfg)
	}
	in.boots++
	engine, err := broker.NewEngine(cfg, fmt.Sprintf("b%d-", in.boots))
	if err != nil {
		return err
	}
	p.engine = engine
	in.broker = p
	started := evidence.Event{Kind: evidence.ProcessStarted, Actor: actor, Partitions: []string{in.partition().String()}}
	p.guard(func() { err = engine.Recover(context.Background(), p.instant) })
	in.sink.Record(started)
	p.hook.loading, in.database.stale = false, true
	if err != nil || p.dead {
		return err
	}
	p.step(core.Input{Kind: core.Tick}) // arms the timer
	return nil
}

// guard runs the broker's own code. A panic there ends the broker's process
// only: it is a finding about the system.
func (p *brokerProcess) guard(code func()) {
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		if tasks.Killed(v) {
			panic(v) // the task running it was killed
		}
		p.dead, p.stopping = true, true
		p.in.After(0, func() { // later: the panicking task may belong to the process and cannot end itself
			p.exit(evidence.ExitInfo{Code: 2}, fmt.Sprintf("panic: %v", v))
			for _, n := range p.conns {
				n.hangUp(evidence.ToBroker)
			}
		})
	}()
	code()
}

func (p *brokerProcess) instant() core.Instant {
	return core.Instant{Wall: p.in.wall(), Elapsed: p.in.Now() - p.began}
}

// do runs what reaches the process, now or once it resumes.
func (p *brokerProcess) do(what func()) {
	switch {
	case p.dead:
	case p.paused:
		p.deferred = append(p.deferred, what)
	default:
		what()
	}
}

func (p *brokerProcess) step(in core.Input) {
	p.input = in
	p.guard(func() { p.engine.Step(&p.input, p.instant()) })
	p.turn()
}

// turn applies the effects and passes gathered writes to the store.
func (p *brokerProcess) turn() {
	var t *broker.Turn
	p.guard(func() {
		p.engine.Execute(p)
		if p.beside == 0 { // one write at a time
			t = p.engine.Begin()
		}
	})
	p.read()
	if t == nil || p.dead {
		return
	}
	p.work = append(p.work, p.in.Spawn(func() {
		p.ready()
		p.guard(func() { p.engine.Work(background, t) })
		p.delay()
		p.do(func() {
			var fatal error
			p.guard(func() { fatal = p.engine.End(t, p.instant()) })
			if p.turn(); fatal != nil {
				p.fail(fatal)
			}
		})
	}))
}

// read starts the readings that may run now.
func (p *brokerProcess) read() {
	for !p.dead {
		var r *broker.Reading
		p.guard(func() { r = p.engine.Read() })
		if r == nil {
			return
		}
		p.work = append(p.work, p.in.Spawn(func() {
			p.ready()
			p.guard(func() { p.engine.Perform(background, r) })
			p.delay()
			p.do(func() {
				p.guard(func() { p.engine.Finish(r, p.instant()) })
				p.turn()
			})
		}))
	}
}

// fail ends the process with an error, after the answers already given were sent.
func (p *brokerProcess) fail(err error) {
	p.dead, p.stopping = true, true
	p.in.After(0, func() { // not now: the caller is a task of the process, which cannot end itself
		p.exit(evidence.ExitInfo{Code: 1}, err.Error())
		for _, n := range p.conns {
			n.hangUp(evidence.ToBroker)
		}
	})
}

// ready runs when the store takes up its next batch.
func (p *brokerProcess) ready() {
	p.delay()
	_ = p.in.Wait(background, func() bool { return !p.paused })
}

// delay is the latency of a step inside the process.
func (p *brokerProcess) delay() { _ = p.in.Sleep(background, p.in.Jitter()) }

// runConcurrently runs a defect's write concurrently with its caller.
func (p *brokerProcess) runConcurrently(write func()) {
	p.beside++
	p.work = append(p.work, p.in.Spawn(func() {
		p.ready()
		write()
		p.beside--
		p.do(p.turn)
	}))
}

// Send, CloseSession and Arm are the engine's effects outside the store.

func (p *brokerProcess) Send(to core.Session, m *wire.Message) {
	if n := p.peers[to]; n != nil {
		_ = n.send(evidence.ToClient, m) // like the server, drops what cannot be encoded
	}
}

func (p *brokerProcess) CloseSession(s core.Session, _ string) {
	if n := p.peers[s]; n != nil {
		n.hangUp(evidence.ToBroker)
	}
}

func (p *brokerProcess) Arm(at time.Duration) {
	p.armed++
	number := p.armed
	p.in.At(max(p.began+at, p.in.Now()), func() {
		p.do(func() {
			if number == p.armed && !p.stopping {
				p.step(core.Input{Kind: core.Tick})
			}
		})
	})
}

// receive handles a packet from a connection.
func (p *brokerProcess) receive(n *conn, x packet) {
	p.do(func() {
		switch {
		case p.stopping:
		case x.end:
			p.lose(n)
		default:
			p.take(n, x)
		}
	})
}

func (p *brokerProcess) take(n *conn, x packet) {
	m, err := wire.DecodeParts(x.parts[0], x.parts[1])
	session := core.Session(n.session)
	switch {
	case err != nil && session != 0:
		p.step(core.Input{Kind: core.Malformed, Session: session, Message: m, Reason: err.Error()})
	case session != 0:
		p.step(core.Input{Kind: core.Received, Session: session, Message: m})
	case err != nil || m.Kind != wire.Hello:
		n.hangUp(evidence.ToBroker)
	default:
		p.sessions++
		n.session = p.sessions
		p.peers[core.Session(n.session)] = n
		p.step(core.Input{Kind: core.Opened, Session: core.Session(n.session), Message: m})
	}
}

// lose ends the session of a closed connection.
func (p *brokerProcess) lose(n *conn) {
	p.do(func() {
		n.hangUp(evidence.ToBroker)
		s := core.Session(n.session)
		if p.peers[s] == nil {
			return
		}
		p.step(core.Input{Kind: core.Closed, Session: s})
		delete(p.peers, s)
	})
}

// kill ends the process immediately.
func (p *brokerProcess) kill() {
	if p.dead {
		return
	}
	p.exit(evidence.ExitInfo{Code: -1, Signal: "killed", Ordered: true}, "")
	for _, n := range p.conns {
		n.hangUp(evidence.ToBroker)
	}
}

func (p *brokerProcess) exit(how evidence.ExitInfo, why string) {
	p.dead, p.stopping = true, true
	p.in.database.end(how.Ordered && how.Signal == "")
	for _, t := range p.work {
		t.Kill()
	}
	p.hook.loading = true // closing must not wait for held operations
	if err := p.in.database.left(); err != nil {
		why = strings.Join([]string{why, err.Error()}, ": ")
	}
	p.in.broker, p.in.database.stale = nil, true
	p.in.sink.Record(evidence.Event{Kind: evidence.ProcessExited, Actor: actor, Exit: &how, Reason: why})
}

// shutdown is orderly, like Server.Close: accepted work is finished and
// answered.
func (p *brokerProcess) shutdown() {
	p.stopping = true
	p.resume() // a paused process cannot shut down
	p.hook.healAll()
	p.step(core.Input{Kind: core.Drain})
	ctx, cancel := p.in.Timeout(background, 5*time.Second)
	defer cancel()
	if p.in.Wait(ctx, func() bool { return !p.engine.Busy() && p.beside == 0 }) != nil {
		p.in.sink.Record(evidence.Event{Kind: evidence.Noted, Actor: actor, Reason: "the broker had to abandon what it had begun"})
	}
	if p.dead {
		return // killed in the meantime
	}
	for _, n := range p.conns {
		n.hangUp(evidence.ToBroker)
	}
	p.exit(evidence.ExitInfo{Ordered: true}, "")
}

func (p *brokerProcess) pause() {
	p.paused = true
	for _, n := range p.conns {
		n.silent(evidence.ToClient, func() bool { return p.paused && !p.dead })
	}
}

func (p *brokerProcess) resume() {
	p.paused = false
	waiting := p.deferred
	p.deferred = nil
	for _, do := range waiting {
		p.do(do)
	}
}

// hook is the store's: it reports operations and their results, and applies the
// armed faults.
type hook struct {
	p       *brokerProcess
	faults  []*storeFault
	loading bool // during start-up: nothing waits and nothing is reported
}

type storeFault struct {
	*zeromq.Trigger
	freed bool
	fired func(systems.StoreFired)
}

func (h *hook) arm(f systems.StoreFault, fired func(systems.StoreFired)) (*storeFault, error) {
	_, files := h.p.in.database.storage.(*onDisk)
	t, err := zeromq.NewTrigger(f, files)
	if err != nil {
		return nil, err
	}
	armed := &storeFault{Trigger: t, fired: fired}
	h.faults = append(h.faults, armed)
	return armed, nil
}

// heal removes the fault and releases what it holds.
func (h *hook) heal(f *storeFault) {
	f.freed = true
	h.faults = slices.DeleteFunc(h.faults, func(o *storeFault) bool { return o == f })
}

func (h *hook) healAll() {
	for _, f := range slices.Clone(h.faults) {
		h.heal(f)
	}
}

// holdBound ends a hold that nobody heals.
const holdBound = 60 * time.Second

// due counts the operation and reports whether the fault applies.
func (f *storeFault) due(op faulty.Op) bool {
	if !f.Counts(op) || !f.Due() {
		return false
	}
	f.fired(f.Fired(op))
	return true
}

// Before runs ahead of an operation.
func (h *hook) Before(op faulty.Op) error {
	if h.loading {
		return nil
	}
	h.report(evidence.StoreCalled, op, nil)
	var err error
	for _, f := range slices.Clone(h.faults) {
		switch v := f.Verb; {
		case v == "lose-reply" || v == "hold" && f.After || !f.due(op):
		case v == "hold":
			err = h.wait(op, f, holdBound)
		case v == "slow":
			err = h.wait(op, f, f.Delay)
		default:
			err = refusals[v].Before(op)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// refusals are the verbs that refuse an operation.
var refusals = map[string]*faulty.Fault{
	"unreachable": faulty.Unreachable(faulty.Always), "full": faulty.Full(faulty.Always), "fsync-error": faulty.FsyncError(faulty.Always),
}

var replyLost = faulty.ReplyLost(faulty.Always)

// After runs behind an operation.
func (h *hook) After(op faulty.Op, err error) error {
	h.p.in.database.stale = h.p.in.database.stale || op.Name == "apply" || op.Name == "expire" // set first: the wait below may never return
	if h.loading {
		return err
	}
	for _, f := range slices.Clone(h.faults) {
		switch v := f.Verb; {
		case v != "lose-reply" && !(v == "hold" && f.After) || !f.due(op):
		case v == "hold":
			err = errors.Join(err, h.wait(op, f, holdBound))
		default:
			err = replyLost.After(op, err)
		}
	}
	h.report(evidence.StoreReturned, op, err)
	return err
}

// wait holds an operation. A file operation whose process is killed meanwhile is
// not performed.
func (h *hook) wait(op faulty.Op, f *storeFault, atMost time.Duration) error {
	if op.Layer == faulty.Files {
		return h.p.in.database.storage.(*onDisk).wait(f, atMost)
	}
	h.p.in.hold(f, atMost)
	return nil
}

func (in *instance) hold(f *storeFault, atMost time.Duration) {
	ctx, cancel := in.Timeout(background, atMost)
	defer cancel()
	_ = in.Wait(ctx, func() bool { return f.freed })
}

func (h *hook) report(kind evidence.Kind, op faulty.Op, err error) {
	for _, e := range zeromq.StoreEvents(kind, op, err) {
		h.p.in.sink.Record(e)
	}
}
