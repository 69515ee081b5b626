package links

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/custodymq/custody/evidence"
)

// Armed is an armed fault on a link. It ends with Heal or with its link. Safe
// for concurrent use.
type Armed struct {
	link  *Link
	fired chan struct{}
	undo  func(context.Context) error // nil if releasing is all

	// Guarded by link.mu, except for the immutable Strike.
	Aim
	hits   int
	holds  map[*hold]struct{} // pumps waiting
	gapped map[*conn]struct{} // connections that lost bytes in a black hole
}

// hold is a wait of one connection.
type hold struct {
	armed    *Armed
	conn     *conn
	released chan struct{}
}

// ErrClosed: the link was closed.
var ErrClosed = errors.New("links: link is closed")

// ErrDown: the link is down already.
var ErrDown = errors.New("links: link is down already or closed")

// effects performs each action on a recorded frame, after everything before it
// was forwarded. False ends the pump.
var effects = map[Action]func(*pump, *hit) bool{
	Drop:      func(p *pump, h *hit) bool { return true },
	Hold:      func(p *pump, h *hit) bool { return p.wait(h.hold, nil) && p.write(h.frame.Raw) },
	HoldAfter: func(p *pump, h *hit) bool { return p.write(h.frame.Raw) }, // the gate is closed: see Link.aim
	Withhold:  func(p *pump, h *hit) bool { p.swallowing = h.armed; return true },
	CutBefore: func(p *pump, h *hit) bool { p.conn.reset("cut before " + h.frame.Kind); return false },
	Corrupt:   func(p *pump, h *hit) bool { return p.write(h.raw) },
	Delay: func(p *pump, h *hit) bool {
		timer := time.NewTimer(h.armed.Delay)
		defer timer.Stop()
		return p.wait(h.hold, timer.C) && p.write(h.frame.Raw)
	},
	Duplicate: func(p *pump, h *hit) bool {
		if !p.write(h.frame.Raw) {
			return false
		}
		p.record(h.frame, string(Duplicate))
		return p.write(h.frame.Raw)
	},
	CutAfter: func(p *pump, h *hit) bool {
		if p.write(h.frame.Raw) {
			p.conn.finish("cut after " + h.frame.Kind)
		}
		return true // the pump drains until the peers have closed
	},
}

// Arm arms a strike: see Interruptible.
func (l *Link) Arm(s Strike) (Injection, error) {
	aim, err := NewAim(l.opts.Protocol, s)
	if err != nil {
		return nil, err
	}
	a := l.newArmed(s.Label, aim.Action)
	a.Aim = aim
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, ErrClosed
	}
	l.armed = append(l.armed, a)
	return a, nil
}

func (l *Link) newArmed(label string, action Action) *Armed {
	return &Armed{
		link: l, Aim: Aim{Strike: Strike{Label: label, Action: action}, at: never}, fired: make(chan struct{}),
		holds: map[*hold]struct{}{}, gapped: map[*conn]struct{}{},
	}
}

// Fired is closed when the effect has first been seen and recorded.
func (a *Armed) Fired() <-chan struct{} { return a.fired }

// Count is how often it has fired.
func (a *Armed) Count() int {
	a.link.mu.Lock()
	defer a.link.mu.Unlock()
	return a.hits
}

// Release releases held frames; a repeating strike stays armed. With forward,
// the frames go on in order; without, they are discarded and their connections
// reset before Release returns, so that a kill at a hand-over leaves no frame
// that the dead process never sent.
func (a *Armed) Release(forward bool) {
	a.link.mu.Lock()
	holds := a.holds
	a.holds = map[*hold]struct{}{}
	a.link.mu.Unlock()
	release(holds, forward)
}

// forget removes a hold.
func (a *Armed) forget(h *hold) {
	a.link.mu.Lock()
	defer a.link.mu.Unlock()
	delete(a.holds, h)
}

func release(holds map[*hold]struct{}, forward bool) {
	for h := range holds {
		if !forward {
			h.conn.reset("held frames discarded")
		}
		h.conn.gate.CompareAndSwap(h, nil)
		close(h.released)
	}
}

// Heal ends the fault: nothing more is struck, held frames go on in order,
// connections with a gap from a black hole are reset (such a stream would
// forge evidence), and a closed listener listens again. It waits for no peer
// and is bounded by ctx. A second call does nothing.
func (a *Armed) Heal(ctx context.Context) error {
	a.link.mu.Lock()
	a.disarm()
	holds, gapped, undo := a.holds, a.gapped, a.undo
	a.holds, a.gapped, a.undo = map[*hold]struct{}{}, map[*conn]struct{}{}, nil
	a.link.mu.Unlock()
	release(holds, true)
	for c := range gapped {
		c.reset("lost bytes in a black hole")
	}
	if undo == nil {
		return nil
	}
	return undo(ctx)
}

// disarm removes the fault from its link, which must be locked.
func (a *Armed) disarm() {
	l := a.link
	for i, other := range l.armed {
		if other == a {
			l.armed = append(l.armed[:i:i], l.armed[i+1:]...)
			break
		}
	}
	for to := range l.holes {
		l.holes[to].CompareAndSwap(a, nil)
	}
	a.Disarm()
}

// fire counts and records a hit.
func (a *Armed) fire(c *conn, to evidence.Direction, f Frame) {
	conn := 0
	if c != nil {
		conn = c.number
	}
	if a.Label != "" {
		a.link.opts.Sink.Record(a.FiredAt(a.link.opts.Name, conn, to, f))
	}
	a.link.mu.Lock()
	a.hits++
	first := a.hits == 1
	if first {
		close(a.fired)
	}
	a.link.mu.Unlock()
	if first && a.Then != nil {
		a.Then()
	}
}

// hit is a frame that was struck.
type hit struct {
	armed *Armed
	frame Frame
	raw   []byte // for Corrupt: what is sent instead
	hold  *hold
}

// aim returns the hit on a frame, if any.
func (l *Link) aim(p *pump, f Frame) (h *hit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	Hit(l.armed, p.to, f, func(a *Armed) bool {
		h = l.take(a, p, f)
		return h != nil
	})
	return h
}

// take prepares a hit. l.mu is held, so that Heal sees all of a hit or nothing.
func (l *Link) take(a *Armed, p *pump, f Frame) *hit {
	h := &hit{armed: a, frame: f}
	switch a.Action {
	case Corrupt:
		raw, err := l.opts.Protocol.(Corrupter).Corrupt(f)
		if err != nil {
			l.note(p.conn, p.to, fmt.Sprintf("strike %q left a frame alone: %v", a.Label, err))
			return nil
		}
		h.raw = raw
	case Hold, HoldAfter, Delay:
		h.hold = &hold{armed: a, conn: p.conn, released: make(chan struct{})}
		a.holds[h.hold] = struct{}{}
		if a.Action == HoldAfter {
			// Closed before the frame leaves, so that its answer finds it
			// closed.
			p.conn.gate.Store(h.hold)
		}
	case Withhold:
		a.gapped[p.conn] = struct{}{}
	}
	return h
}
