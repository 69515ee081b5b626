package broker

import (
	"context"
	"errors"
	"time"

	"github.com/custodymq/custody/broker/core"
	"github.com/custodymq/custody/broker/transport"
	"github.com/custodymq/custody/broker/wire"
)

// maxEvents is how many batches of inputs are taken between two looks at the store.
const maxEvents = 16

// loop drives the engine in real time, and carries out its effects.
type loop struct {
	s       *Server
	engine  *Engine
	peers   map[core.Session]*peer
	touched []*peer // have something to write
	timer   *time.Timer

	ctx     context.Context // of the store's work
	turns   chan *Turn
	results chan *Turn
}

var _ Outlet = (*loop)(nil)

type peer struct {
	conn    *transport.Conn
	touched bool
	lost    bool
}

func newLoop(ctx context.Context, s *Server, e *Engine) *loop {
	return &loop{
		s: s, engine: e, peers: map[core.Session]*peer{}, timer: time.NewTimer(time.Hour),
		ctx: ctx, turns: make(chan *Turn, 1), results: make(chan *Turn, 1),
	}
}

func (l *loop) run() {
	if l.engine.store != nil {
		l.s.all.Go(l.work)
	}
	defer close(l.turns)
	defer l.timer.Stop()
	in := core.Input{Kind: core.Tick} // arms the timer
	l.engine.Step(&in, l.s.now())
	for {
		l.execute()
		l.commit()
		select {
		case e := <-l.s.events:
			l.take(e)
			l.takeMore()
		case t := <-l.results:
			l.engine.End(t, l.s.now())
		case <-l.timer.C:
			in := core.Input{Kind: core.Tick}
			l.engine.Step(&in, l.s.now())
		case <-l.s.stopping:
			l.drain()
			return
		}
	}
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
	if e.ask != nil {
		e.ask(l.engine)
		return
	}
	now := l.s.now()
	if e.opened != nil {
		l.peers[(*e.inputs)[0].Session] = &peer{conn: e.opened}
	}
	for i := range *e.inputs {
		in := &(*e.inputs)[i]
		l.engine.Step(in, now)
		if in.Kind == core.Closed {
			delete(l.peers, in.Session)
		}
	}
	clear(*e.inputs)
	*e.inputs = (*e.inputs)[:0]
	inputPool.Put(e.inputs)
}

// execute carries out the effects so far, in order, and writes what was sent.
func (l *loop) execute() {
	l.engine.Execute(l)
	for _, p := range l.touched {
		p.touched = false
		p.conn.Flush()
	}
	l.touched = l.touched[:0]
}

// Arm sets the timer.
func (l *loop) Arm(at time.Duration) { l.timer.Reset(at - time.Since(l.s.begin)) }

// CloseSession ends one after what was sent to it.
func (l *loop) CloseSession(s core.Session, reason string) {
	l.s.cfg.Log.Info("session closed", "session", s, "reason", reason)
	if p := l.peers[s]; p != nil {
		p.conn.CloseAfterQueue()
	}
}

// Send never waits: a peer whose queue is full loses its session.
func (l *loop) Send(to core.Session, m *wire.Message) {
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
	if t := l.engine.Begin(); t != nil {
		l.turns <- t
	}
}

// drain finishes what has been taken, answers it, and ends every connection.
func (l *loop) drain() {
	in := core.Input{Kind: core.Drain}
	l.engine.Step(&in, l.s.now())
	for {
		l.execute()
		if l.ctx.Err() == nil {
			l.commit()
		}
		if !l.engine.Busy() {
			break
		}
		l.engine.End(<-l.results, l.s.now())
	}
	l.s.endConnections()
}

// work is the store's goroutine.
func (l *loop) work() {
	for t := range l.turns {
		begin, size := time.Now(), len(t.batch)
		l.engine.Work(l.ctx, t)
		l.s.turns.add(time.Since(begin), size)
		l.results <- t
	}
}
