package explore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/custodymq/custody/broker"
	"github.com/custodymq/custody/broker/core"
	"github.com/custodymq/custody/broker/defects"
	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/faulty"
	"github.com/custodymq/custody/broker/store/memory"
	"github.com/custodymq/custody/broker/wire"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/faults"
	"github.com/custodymq/custody/systems/zeromq"
)

// epoch is the wall clock at the begin of every simulation.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func (w *world) wall() time.Time { return epoch.Add(w.now + w.clock) }

// database is what survives a broker: the rows of every partition. A commit is
// made at one instant, so a broker that is killed has made it or has not.
type database struct {
	w          *world
	partitions []*memory.Store // in the order of their first use
}

func (d *database) open(p store.Partition) *memory.Store {
	for _, s := range d.partitions {
		if s.Partition() == p {
			return s
		}
	}
	s := memory.New(p, memory.Options{Now: d.w.wall})
	d.partitions = append(d.partitions, s)
	return s
}

// rows are the stored rows as past the broker they are seen.
func (d *database) rows() (evidence.Snapshot, error) {
	s := evidence.Snapshot{Source: evidence.SourceBroker, Trust: evidence.Exact, Partition: d.w.partition().String()}
	now := d.w.wall()
	for _, p := range d.partitions {
		err := p.Rows(context.Background(), func(row store.Row) error {
			state, shown := rowStates[row.State]
			if !shown {
				return nil // a marker of a settled message: its row is gone
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
			s.Rows = append(s.Rows, r)
			return nil
		})
		if err != nil {
			return s, err
		}
	}
	s.Count = len(s.Rows)
	return s, nil
}

var rowStates = map[store.State]evidence.RowState{store.Pending: evidence.RowPending, store.Processed: evidence.RowProcessed, store.Dead: evidence.RowDead,
	store.RefusedVersion: evidence.RowRefused}

// process is one life of the broker: its engine, driven in virtual time.
type process struct {
	w        *world
	engine   *broker.Engine
	armory   *armory
	began    time.Duration
	sessions uint64
	peers    map[core.Session]*conn
	conns    []*conn
	armed    uint64 // the newest timer
	work     []*task
	beside   int // writes that the store has answered before they are made
	paused   bool
	deferred []func() // what comes while it is paused
	stopping bool     // takes no new connection
	dead     bool
}

var _ broker.Outlet = (*process)(nil)

const brokerName = "custody"

func (w *world) partition() store.Partition {
	identity := w.identity
	if identity == "" {
		identity = w.hostname
	}
	return store.Partition{Connection: w.brokerName, Identity: identity}
}

// neighbours are the storage identities of which a defect reaches from one into
// the other.
var neighbours = map[string]string{"identity-1": "identity-2", "identity-2": "identity-1"}

// boot starts the broker.
func (w *world) boot() error {
	p := &process{w: w, began: w.now, peers: map[core.Session]*conn{}}
	p.armory = &armory{p: p}
	held := w.database.open(w.partition())
	armed := faulty.Wrap(held)
	armed.Arm(p.armory)
	cfg := w.profile.Broker()
	cfg.Name, cfg.Store, cfg.Clock = w.brokerName, armed, w.wall
	if w.o.Defect != "" {
		o := defects.Options{Go: p.goes}
		if other := neighbours[held.Partition().Identity]; other != "" {
			o.Neighbour = w.database.open(store.Partition{Connection: w.brokerName, Identity: other})
		}
		if err := defects.Apply(w.o.Defect, &cfg, o); err != nil {
			return err
		}
	}
	w.boots++
	engine, err := broker.NewEngine(cfg, fmt.Sprintf("b%d-", w.boots))
	if err != nil {
		return err
	}
	p.engine = engine
	if err := engine.Recover(context.Background(), p.instant); err != nil {
		return err
	}
	w.broker = p
	w.record(evidence.Event{Kind: evidence.ProcessStarted, Actor: faults.Broker, Partitions: []string{w.partition().String()}})
	p.step(core.Input{Kind: core.Tick}) // arms the timer
	return nil
}

func (p *process) instant() core.Instant {
	return core.Instant{Wall: p.w.wall(), Elapsed: p.w.now - p.began}
}

// do what comes to the process, now or when it goes on.
func (p *process) do(what func()) {
	switch {
	case p.dead:
	case p.paused:
		p.deferred = append(p.deferred, what)
	default:
		what()
	}
}

func (p *process) step(in core.Input) {
	p.engine.Step(&in, p.instant())
	p.turn()
}

// turn carries out the effects, and sends what has gathered to the store.
func (p *process) turn() {
	p.engine.Execute(p)
	if p.beside > 0 {
		return // one write at a time
	}
	t := p.engine.Begin()
	if t == nil {
		return
	}
	p.work = append(p.work, p.w.start(func(work *task) {
		p.ready(work)
		p.engine.Work(context.Background(), t)
		work.pause(p.w.hop())
		p.do(func() {
			p.engine.End(t, p.instant())
			p.turn()
		})
	}))
}

// ready is when the store gets to a piece of work.
func (p *process) ready(work *task) {
	p.armory.working = work
	work.pause(p.w.hop())
	work.wait(forever, func() bool { return !p.paused })
}

// goes runs a defect's write beside its caller.
func (p *process) goes(write func()) {
	p.beside++
	p.work = append(p.work, p.w.start(func(work *task) {
		p.ready(work)
		write()
		p.beside--
		p.do(p.turn)
	}))
}

// Send, CloseSession and Arm are the effects that are not the store's.

func (p *process) Send(to core.Session, m *wire.Message) {
	if n := p.peers[to]; n != nil {
		_ = n.send(evidence.ToClient, m) // as the server does, one that cannot be encoded is left out
	}
}

func (p *process) CloseSession(s core.Session, _ string) {
	if n := p.peers[s]; n != nil {
		n.hangUp(evidence.ToBroker)
	}
}

func (p *process) Arm(at time.Duration) {
	p.armed++
	number := p.armed
	p.w.at(max(p.began+at, p.w.now), func() {
		p.do(func() {
			if number == p.armed && !p.stopping {
				p.step(core.Input{Kind: core.Tick})
			}
		})
	})
}

// receive takes what came on a connection.
func (p *process) receive(n *conn, x packet) {
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

func (p *process) take(n *conn, x packet) {
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

// lose ends a session whose connection is over.
func (p *process) lose(n *conn) {
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

// kill ends the process at once.
func (p *process) kill() {
	if p.dead {
		return
	}
	p.exit(evidence.ExitInfo{Code: -1, Signal: "killed", Ordered: true})
	for _, n := range p.conns {
		n.hangUp(evidence.ToBroker)
	}
}

func (p *process) exit(how evidence.ExitInfo) {
	p.dead, p.stopping = true, true
	for _, t := range p.work {
		t.kill()
	}
	p.w.broker = nil
	p.w.record(evidence.Event{Kind: evidence.ProcessExited, Actor: faults.Broker, Exit: &how})
}

// shutdown ends it in order, as Server.Close does: what has been taken is
// finished and answered.
func (p *process) shutdown(t *task) {
	p.stopping = true
	p.armory.healAll()
	p.step(core.Input{Kind: core.Drain})
	if !t.wait(t.k.now+5*time.Second, func() bool { return !p.engine.Busy() && p.beside == 0 }) {
		p.w.note("the broker had to abandon what it had begun")
	}
	for _, n := range p.conns {
		n.hangUp(evidence.ToBroker)
	}
	p.exit(evidence.ExitInfo{Ordered: true})
}

func (p *process) pause() {
	p.paused = true
	for _, n := range p.conns {
		n.silent(evidence.ToClient, func() bool { return p.paused && !p.dead })
	}
}

func (p *process) resume() {
	p.paused = false
	waiting := p.deferred
	p.deferred = nil
	for _, do := range waiting {
		p.do(do)
	}
}

// armory is the hook of the broker's store: it reports what the store is asked
// for and answers, and lets the armed faults strike.
type armory struct {
	p       *process
	faults  []*storeFault
	working *task // whose operation it is
}

type storeFault struct {
	spec  faults.StoreFault
	seen  int
	freed bool
	fired func(operation string, items []evidence.FrameItem)
}

// natural is the operation that a verb strikes where the script names none.
var natural = map[string]string{"unreachable": "apply", "full": "insert", "lose-reply": "apply", "slow": "apply", "hold": "apply"}

// errFiles: the store of the simulation has no files.
var errFiles = &UnsupportedError{"strike a store below its database: it has no files"}

var ofFiles = []string{"open", "read", "write", "sync", "truncate"}

// Arm readies a fault.
func (a *armory) arm(f faults.StoreFault, fired func(string, []evidence.FrameItem)) (*storeFault, error) {
	if f.Operation == "" {
		f.Operation = natural[f.Verb]
	}
	if f.Operation == "" || slices.Contains(ofFiles, f.Operation) {
		return nil, errFiles
	}
	armed := &storeFault{spec: f, fired: fired}
	a.faults = append(a.faults, armed)
	return armed, nil
}

// heal frees what is held and takes the fault away.
func (a *armory) heal(f *storeFault) {
	f.freed = true
	a.faults = slices.DeleteFunc(a.faults, func(o *storeFault) bool { return o == f })
}

func (a *armory) healAll() {
	for _, f := range slices.Clone(a.faults) {
		a.heal(f)
	}
}

// holdBound ends a hold that nobody heals.
const holdBound = 60 * time.Second

func named(op faulty.Op, operation string) bool {
	return op.Named(operation) || operation == "delete" && op.Named("settle")
}

// due counts the operation and says whether it is struck.
func (a *armory) due(f *storeFault, op faulty.Op) bool {
	if !named(op, f.spec.Operation) {
		return false
	}
	f.seen++
	nth := max(f.spec.N, 1)
	if f.seen != nth && !(f.spec.Every && f.seen > nth) {
		return false
	}
	f.fired(f.spec.Operation, zeromq.ItemsOf(op, f.spec.Operation))
	return true
}

// Before an operation.
func (a *armory) Before(op faulty.Op) error {
	if a.working == nil {
		return nil // the loading at the start
	}
	a.report(evidence.StoreCalled, op, nil)
	for _, f := range slices.Clone(a.faults) {
		switch v := f.spec.Verb; {
		case v == "lose-reply" || v == "hold" && f.spec.After || !a.due(f, op):
		case v == "hold":
			a.wait(f, holdBound)
		case v == "slow":
			a.wait(f, f.spec.Delay)
		case v == "full":
			return &store.Failure{NotWritten: true, Err: store.ErrFull}
		default:
			return &store.Failure{NotWritten: true, Err: faulty.ErrUnreachable}
		}
	}
	return nil
}

// After it.
func (a *armory) After(op faulty.Op, err error) error {
	if a.working == nil {
		return err
	}
	for _, f := range slices.Clone(a.faults) {
		switch v := f.spec.Verb; {
		case v != "lose-reply" && !(v == "hold" && f.spec.After) || !a.due(f, op):
		case v == "hold":
			a.wait(f, holdBound)
		case err == nil:
			err = &store.Failure{Err: faulty.ErrReplyLost}
		}
	}
	a.report(evidence.StoreReturned, op, err)
	return err
}

func (a *armory) wait(f *storeFault, atMost time.Duration) {
	a.working.wait(a.p.w.now+atMost, func() bool { return f.freed })
}

func (a *armory) report(kind evidence.Kind, op faulty.Op, err error) {
	for _, e := range zeromq.StoreEvents(kind, op, err) {
		a.p.w.changed = true
		a.p.w.record(e)
	}
}
