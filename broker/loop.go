package broker

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"github.com/custodymq/custody/broker/core"
	"github.com/custodymq/custody/broker/transport"
	"github.com/custodymq/custody/broker/wire"
)

// Sessions are served in turn (deficit round robin). In its turn each may cost a
// quantum. An input costs one plus one per effect, or the time it took if that is
// more. A session that exceeds its quantum owes the excess to later turns.
const (
	quantum   = 64
	roundCost = 128 // cost between two checks of the store and the clock
	costTime  = 4 * time.Microsecond
)

// loop drives the engine in real time, and carries out its effects.
type loop struct {
	s       *Server
	engine  *Engine
	peers   map[core.Session]*peer
	parked  []*peer // have their turn, but wait for the store
	touched []*peer // have output to flush
	timer   *time.Timer

	contended time.Duration // when several sessions last had writes for the store
	operation time.Duration // average time per operation, in turns that are not small
	long      longWrites

	ctx      context.Context // of the store's work
	turns    chan *Turn
	results  chan *Turn
	readings chan *Reading
	reading  int
}

var _ Outlet = (*loop)(nil)

func newLoop(ctx context.Context, s *Server, e *Engine) *loop {
	return &loop{
		s: s, engine: e, peers: map[core.Session]*peer{}, timer: time.NewTimer(time.Hour),
		long: longWrites{due: time.NewTimer(time.Hour)},
		ctx:  ctx, turns: make(chan *Turn, 1), results: make(chan *Turn, 1), readings: make(chan *Reading, inspectionsAtOnce+3),
	}
}

// run drives the engine until the server stops. A panic of the state machine
// stops the server too: its memory can no longer be trusted, and the next start
// recovers what is stored.
func (l *loop) run() {
	if l.engine.store != nil {
		l.s.all.Go(l.work)
	}
	defer close(l.turns)
	defer l.timer.Stop()
	defer l.long.due.Stop()
	defer func() {
		if p := recover(); p != nil {
			l.s.cfg.Log.Error("the broker panicked", "panic", p, "stack", string(debug.Stack()))
			l.s.shutDown(fmt.Errorf("broker: the state machine panicked: %v", p))
			l.s.endConnections()
		}
	}()
	l.tick()
	for {
		took := l.take()
		l.carryOut()
		if !took {
			select {
			case <-l.s.inbox.wake:
			case t := <-l.results:
				l.end(t)
			case r := <-l.readings:
				l.finish(r)
			case <-l.timer.C:
				l.tick()
			case <-l.long.due.C:
			case <-l.s.stopping:
				l.drain()
				return
			}
			continue
		}
		select { // do not block: there may be more input
		case t := <-l.results:
			l.end(t)
		case r := <-l.readings:
			l.finish(r)
		case <-l.timer.C:
			l.tick()
		case <-l.s.stopping:
			l.drain()
			return
		default:
			runtime.Gosched() // yield, in case readers and writers have no processor of their own
		}
	}
}

// carryOut sends pending output and starts whatever the store may do next.
func (l *loop) carryOut() {
	l.execute()
	l.commit()
	l.read()
}

func (l *loop) tick() {
	in := core.Input{Kind: core.Tick}
	l.engine.Step(&in, l.s.now())
}

// take serves sessions in turn until a round has cost enough or the store has
// finished its turn. It returns false if there was no input.
func (l *loop) take() (took bool) {
	for _, ask := range l.s.inbox.asked() {
		ask(l.engine)
	}
	for cost := 0; cost < roundCost && len(l.results) == 0; {
		p := l.s.inbox.next()
		if p == nil {
			return took
		}
		took = true
		p.deficit += quantum
		cost += l.serve(p)
	}
	return took
}

// serve processes a session's inputs as long as it has credit and need not wait
// for the store.
func (l *loop) serve(p *peer) (cost int) {
	now := l.s.now()
	for p.deficit > 0 {
		if l.mustWait(p) {
			l.s.inbox.handled(p)
			l.parked = append(l.parked, p)
			return max(cost, 1)
		}
		in := l.s.inbox.take(p)
		if in == nil {
			break
		}
		if in.Kind == core.Opened {
			l.peers[p.id] = p
		}
		begin := time.Now()
		n := max(1+l.engine.Step(in, now), int(time.Since(begin)/costTime))
		p.deficit -= n
		cost += n
		switch {
		case in.Kind == core.Received && in.Message.Kind == wire.Admin:
			l.engine.Execute(l) // updates what mustWait checks
		case in.Kind == core.Closed:
			l.engine.Execute(l)
			delete(l.peers, p.id)
		}
	}
	l.s.inbox.handled(p)
	l.s.inbox.back(p)
	return max(cost, 1)
}

// mustWait reports whether a session's further input has to wait, in its inbox and
// its socket: while an inspection is in progress, of which each may have only one,
// and while it has more writes waiting than the store takes in a while. To take
// more from it would keep a core busy and make nothing faster.
func (l *loop) mustWait(p *peer) bool {
	return l.engine.Inspections(p.id) > 0 || l.engine.Writes(p.id) >= waitingWrites
}

const waitingWrites = 2 * maxBatch // per session

// batch returns the maximum number of operations in the store's next turn. While
// several sessions write, turns are shorter, because each session waits for the
// turn in progress and for its own.
func (l *loop) batch(now time.Duration) int {
	if l.engine.Owners() > 1 {
		l.contended = now
	}
	if l.contended == 0 || now-l.contended > contentionLasts || l.operation > syncBound {
		return maxBatch
	}
	return sharedBatch
}

const (
	sharedBatch     = 64
	contentionLasts = time.Second
	// If operations take longer than this on average, the sync dominates, and
	// fewer, larger turns are better for everyone.
	syncBound = 500 * time.Microsecond
)

// longWrites spaces out the long writes while several sessions write. Whoever
// writes little waits for the write under way, and no turn can be shorter than its
// longest write; so after a long one the others have the store for longPause times
// as long, and at most about one write in a hundred meets a long one. The pause
// ends early if nobody has wanted to write little for twice as long as a long write
// takes. That the store is idle for a moment does not mean that nobody is about to
// write (deceptive idleness; Iyer and Druschel, Anticipatory Scheduling, 2001).
type longWrites struct {
	took  time.Duration // by the last one
	ended time.Duration // when it ended
	other time.Duration // when a short one last waited
	due   *time.Timer
}

const (
	longPause    = 12
	longestPause = time.Second
)

// wait returns how long the next long write has to wait.
func (w *longWrites) wait(e *Engine, now time.Duration) time.Duration {
	if e.shorts() {
		w.other = now
	}
	return min(w.ended+min(longPause*w.took, longestPause), w.other+2*w.took) - now
}

func (w *longWrites) end(t *Turn, now time.Duration) {
	if t.long {
		w.took, w.ended = t.took, now
	}
}

// unpark resumes sessions that no longer have to wait.
func (l *loop) unpark() {
	l.parked = slices.DeleteFunc(l.parked, func(p *peer) bool {
		if l.mustWait(p) {
			return false
		}
		l.s.inbox.back(p)
		return true
	})
}

func (l *loop) end(t *Turn) {
	l.long.end(t, time.Since(l.s.begin))
	if n := len(t.batch); n >= sharedBatch/2 {
		l.operation += (t.took/time.Duration(n) - l.operation) / 16
	}
	if err := l.engine.End(t, l.s.now()); err != nil {
		l.s.shutDown(err)
	}
	l.carryOut() // first send the answers, which clients wait for
	l.unpark()
}

func (l *loop) finish(r *Reading) {
	l.reading--
	l.engine.Finish(r, l.s.now())
	l.unpark()
}

// execute carries out the effects so far, in order, and flushes what was sent.
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

// CloseSession ends a session once everything sent to it is written.
func (l *loop) CloseSession(s core.Session, reason string) {
	l.s.cfg.Log.Info("session closed", "session", s, "reason", reason)
	if p := l.peers[s]; p != nil {
		p.conn.CloseAfterQueue()
	}
}

// Send never blocks. A peer whose queue is full loses its session, and so does
// the one with the longest queue if all queues together are too long.
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
		l.lose(p, err)
		return
	}
	if !p.touched {
		p.touched = true
		l.touched = append(l.touched, p)
	}
	if l.s.outgoing.Exceeded() {
		l.shed()
	}
}

func (l *loop) lose(p *peer, why error) {
	p.lost = true
	if errors.Is(why, transport.ErrFull) {
		l.s.cfg.Log.Warn("session closed", "session", p.id, "reason", why)
	}
	p.conn.Close()
}

// shed ends the session with the most output queued, if that exceeds an equal
// share.
func (l *loop) shed() {
	var longest *peer
	most := l.s.outgoing.Limit() / int64(len(l.peers))
	for _, p := range l.peers {
		if n := p.conn.Pending(); !p.lost && (n > most || n == most && longest != nil && p.id < longest.id) {
			longest, most = p, n
		}
	}
	if longest != nil {
		l.lose(longest, fmt.Errorf("%w: all peers together have more than %d MiB waiting, and it has the most", transport.ErrFull, l.s.outgoing.Limit()>>20))
	}
}

// commit starts the store's next turn if the store is free and there is something
// that may be written.
func (l *loop) commit() {
	now := time.Since(l.s.begin)
	wait := l.long.wait(l.engine, now)
	l.engine.Limit(l.batch(now), wait <= 0)
	if t := l.engine.Begin(); t != nil {
		l.turns <- t
	} else if l.engine.Held() {
		l.long.due.Reset(wait)
	}
}

// read starts the readings that may run now.
func (l *loop) read() {
	for r := l.engine.Read(); r != nil; r = l.engine.Read() {
		l.reading++
		l.s.all.Go(func() {
			l.guard(func() { l.engine.Perform(l.ctx, r) }, func(err error) { r.err = err })
			l.readings <- r
		})
	}
}

// guard converts a panic of the store into an error.
func (l *loop) guard(work func(), failed func(error)) {
	defer func() {
		if p := recover(); p != nil {
			l.s.cfg.Log.Error("the store panicked", "panic", p, "stack", string(debug.Stack()))
			failed(fmt.Errorf("broker: the store panicked: %v", p))
		}
	}()
	work()
}

// drain finishes what has been taken, answers it, and ends every connection.
func (l *loop) drain() {
	in := core.Input{Kind: core.Drain}
	l.engine.Step(&in, l.s.now())
	l.engine.StopSwapping()
	l.engine.Limit(maxBatch, true)
	for {
		l.execute()
		if l.ctx.Err() == nil {
			if t := l.engine.Begin(); t != nil {
				l.turns <- t
			}
		}
		if !l.engine.Busy() {
			break
		}
		_ = l.engine.End(<-l.results, l.s.now()) // it ends anyway
	}
	for ; l.reading > 0; l.reading-- {
		l.engine.Finish(<-l.readings, l.s.now())
	}
	l.engine.StopSwapping() // what was being prepared
	l.execute()
	l.s.endConnections()
}

// work is the goroutine that writes to the store.
func (l *loop) work() {
	for t := range l.turns {
		begin, size := time.Now(), len(t.batch)
		l.guard(func() { l.engine.Work(l.ctx, t) }, t.abort)
		t.took = time.Since(begin)
		l.s.turns.add(t.took, size)
		l.results <- t
	}
}
