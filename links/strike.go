package links

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/custodymq/custody/evidence"
)

// Strike says which frame is to be hit, and what is done to it.
type Strike struct {
	Label  string // the fault's label, in FaultFired; empty for a gate, which is no fault of its own and records none
	Action Action
	Kind   string             // of the frame, as the Protocol names it
	To     evidence.Direction // NoDirection: whichever way that kind goes
	// N is the message that is hit: the N-th of this kind (and business ID)
	// carried since arming, over all connections of the link. Messages count,
	// not frames: "ack 7" is the frame that completes the seventh
	// acknowledgement. A frame without messages (a subscription) counts one.
	// 0 is the first.
	N      int
	Of     string // business ID: any of its publishes; empty is any
	Repeat Repeat
	Delay  time.Duration // for Action Delay
}

// Repeat says how often a strike fires.
type Repeat string

const (
	Once        Repeat = ""
	Every       Repeat = "every"        // the N-th, 2N-th, 3N-th…
	UntilHealed Repeat = "until-healed" // the N-th and all after it
)

// Armed is a fault on a link that is ready to fire or has fired. Safe for
// concurrent use; it ends with Heal or with its link.
type Armed struct {
	link   *Link
	label  string
	action Action
	fired  chan struct{}
	undo   func(context.Context) error // nil where letting go is all

	strike Strike // the zero Strike where no frame is aimed at

	// Guarded by link.mu.
	carried int // messages since arming
	at      int // the count at which it fires next
	hits    int
	holds   map[*hold]struct{} // pumps that wait
	gapped  map[*conn]struct{} // connections that lost bytes in a black hole
}

// hold is one wait of a connection.
type hold struct {
	armed    *Armed
	conn     *conn
	released chan struct{}
}

// ErrClosed: the link was closed.
var ErrClosed = errors.New("links: link is closed")

// ErrDown: the link refuses already.
var ErrDown = errors.New("links: link is down already or closed")

// never is a count that no run reaches.
const never = math.MaxInt

// effects is what each action does. The frame was recorded, and all that came
// before it on its connection has been forwarded. False ends the pump.
var effects = map[Action]func(*pump, *hit) bool{
	Drop:      func(p *pump, h *hit) bool { return true },
	Hold:      func(p *pump, h *hit) bool { return p.wait(h.hold, nil) && p.write(h.frame.Raw) },
	HoldAfter: func(p *pump, h *hit) bool { return p.write(h.frame.Raw) }, // the gate is shut: see Link.aim
	Withhold:  func(p *pump, h *hit) bool { p.swallowing = h.armed; return true },
	CutBefore: func(p *pump, h *hit) bool { p.conn.reset("cut before " + h.frame.Kind); return false },
	Corrupt:   func(p *pump, h *hit) bool { return p.write(h.raw) },
	Delay: func(p *pump, h *hit) bool {
		timer := time.NewTimer(h.armed.strike.Delay)
		defer timer.Stop()
		return p.wait(h.hold, timer.C) && p.write(h.frame.Raw)
	},
	Duplicate: func(p *pump, h *hit) bool {
		if !p.write(h.frame.Raw) {
			return false
		}
		p.record(evidence.FrameCarried, h.frame, string(Duplicate))
		return p.write(h.frame.Raw)
	},
	CutAfter: func(p *pump, h *hit) bool {
		if p.write(h.frame.Raw) {
			p.conn.finish("cut after " + h.frame.Kind)
		}
		return true // the pump drains until the peers have closed
	},
}

// Arm readies a strike; it is in force when Arm returns. An action that would
// forge evidence is refused with *ErrIllegal; a drop where replies are matched
// by position becomes Withhold.
func (l *Link) Arm(s Strike) (*Armed, error) {
	if err := l.check(&s); err != nil {
		return nil, err
	}
	s.N = max(s.N, 1)
	a := l.newArmed(s.Label, s.Action)
	a.strike, a.at = s, s.N
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, ErrClosed
	}
	l.armed = append(l.armed, a)
	return a, nil
}

func (l *Link) check(s *Strike) error {
	if effects[s.Action] == nil {
		return fmt.Errorf("links: %q is no action on a frame", s.Action)
	}
	known := false
	for _, k := range l.opts.Protocol.Kinds() {
		known = known || k.Name == s.Kind && (s.To == evidence.NoDirection || s.To == k.To)
	}
	if !known {
		return fmt.Errorf("links: %s has no %q frame to strike in direction %q", l.opts.Protocol.Name(), s.Kind, s.To)
	}
	if s.Action == Delay && s.Delay <= 0 {
		return fmt.Errorf("links: strike %q: a delay needs a positive duration", s.Label)
	}
	if s.N < 0 || (s.Repeat != Once && s.Repeat != Every && s.Repeat != UntilHealed) {
		return fmt.Errorf("links: strike %q: count %d or repeat %q out of range", s.Label, s.N, s.Repeat)
	}
	var err error
	s.Action, err = Done(l.opts.Protocol, s.Kind, s.Action)
	return err
}

// Done is the action that is done to a frame where a is asked for: a itself, or
// Withhold where a drop would forge evidence. The error is an *ErrIllegal.
func Done(p Protocol, kind string, a Action) (Action, error) {
	if _, can := p.(Corrupter); a == Corrupt && !can {
		return a, &ErrIllegal{Protocol: p.Name(), Kind: kind, Action: a, Why: "this protocol has no way to alter a frame and keep it well-formed"}
	}
	err := p.Legal(kind, a)
	if err != nil && a == Drop && p.Legal(kind, Withhold) == nil {
		return Withhold, nil
	}
	return a, err
}

func (l *Link) newArmed(label string, action Action) *Armed {
	return &Armed{
		link: l, label: label, action: action, fired: make(chan struct{}), at: never,
		holds: map[*hold]struct{}{}, gapped: map[*conn]struct{}{},
	}
}

// Fired is closed when the effect has been seen and recorded for the first time.
func (a *Armed) Fired() <-chan struct{} { return a.fired }

// Label of the fault.
func (a *Armed) Label() string { return a.label }

// Action that is done: Withhold where Drop was asked for and replies are
// matched by position.
func (a *Armed) Action() Action { return a.action }

// Count is how often it fired.
func (a *Armed) Count() int {
	a.link.mu.Lock()
	defer a.link.mu.Unlock()
	return a.hits
}

// Release lets go what is held now; the strike stays armed if it repeats. With
// forward the held frames go on, in order; without, they are thrown away and
// their connections are reset before Release returns: so a kill at a hand-over
// leaves no frame behind that the dead process never sent.
func (a *Armed) Release(forward bool) {
	a.link.mu.Lock()
	holds := a.holds
	a.holds = map[*hold]struct{}{}
	a.link.mu.Unlock()
	letGo(holds, forward)
}

// forget drops a hold that nobody waits for any more.
func (a *Armed) forget(h *hold) {
	a.link.mu.Lock()
	defer a.link.mu.Unlock()
	delete(a.holds, h)
}

func letGo(holds map[*hold]struct{}, forward bool) {
	for h := range holds {
		if !forward {
			h.conn.reset("held frames discarded")
		}
		h.conn.gate.CompareAndSwap(h, nil)
		close(h.released)
	}
}

// Heal ends the fault: nothing more is struck, what is held goes on in order,
// connections that lost bytes in a black hole are reset (a stream with a gap
// would forge evidence), a closed listener listens again. It waits for no peer
// and is bounded by ctx. A second call does nothing.
func (a *Armed) Heal(ctx context.Context) error {
	a.link.mu.Lock()
	a.disarm()
	holds, gapped, undo := a.holds, a.gapped, a.undo
	a.holds, a.gapped, a.undo = map[*hold]struct{}{}, map[*conn]struct{}{}, nil
	a.link.mu.Unlock()
	letGo(holds, true)
	for c := range gapped {
		c.reset("lost bytes in a black hole")
	}
	if undo == nil {
		return nil
	}
	return undo(ctx)
}

// disarm takes the fault from its link, whose lock is held.
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
	a.at = never
}

// fire counts and records one hit.
func (a *Armed) fire(c *conn, to evidence.Direction, f Frame) {
	e := evidence.Event{
		Kind: evidence.FaultFired, Actor: a.link.opts.Name, Link: a.link.opts.Name, Fault: a.label, Struck: string(a.action),
		Frame: f.Kind, To: to, Items: f.Items,
	}
	if c != nil {
		e.Conn = c.number
	}
	if a.label != "" {
		a.link.opts.Sink.Record(e)
	}
	a.link.mu.Lock()
	defer a.link.mu.Unlock()
	a.hits++
	if a.hits == 1 {
		close(a.fired)
	}
}

// hit is one frame that was struck.
type hit struct {
	armed *Armed
	frame Frame
	raw   []byte // Corrupt: what is sent instead
	hold  *hold
}

// aim counts a frame for every armed strike and gives the hit on it, if any. A
// frame is hit once at most, by the strike armed first; another that was due
// hits the next frame.
func (l *Link) aim(p *pump, f Frame) *hit {
	l.mu.Lock()
	defer l.mu.Unlock()
	var h *hit
	for _, a := range l.armed {
		n := a.counts(p.to, f)
		a.carried += n
		if n == 0 || h != nil || a.carried < a.at {
			continue
		}
		if h = l.take(a, p, f); h != nil {
			a.at = a.nextAfter()
		}
	}
	return h
}

// counts is how many messages of a frame the strike counts.
func (a *Armed) counts(to evidence.Direction, f Frame) (n int) {
	s := &a.strike
	if f.Kind == "" || f.Kind != s.Kind || (s.To != evidence.NoDirection && s.To != to) {
		return 0
	}
	if s.Of == "" {
		return max(len(f.Items), 1)
	}
	for _, item := range f.Items {
		if item.BusinessID == s.Of {
			n++
		}
	}
	return n
}

func (a *Armed) nextAfter() int {
	switch a.strike.Repeat {
	case Every:
		return (a.carried/a.strike.N + 1) * a.strike.N
	case UntilHealed:
		return a.at
	}
	return never
}

// take prepares a hit; l.mu is held, so that Heal sees either no hit or all of it.
func (l *Link) take(a *Armed, p *pump, f Frame) *hit {
	h := &hit{armed: a, frame: f}
	switch a.action {
	case Corrupt:
		raw, err := l.opts.Protocol.(Corrupter).Corrupt(f)
		if err != nil {
			l.note(p.conn, p.to, fmt.Sprintf("strike %q left a frame alone: %v", a.label, err))
			return nil
		}
		h.raw = raw
	case Hold, HoldAfter, Delay:
		h.hold = &hold{armed: a, conn: p.conn, released: make(chan struct{})}
		a.holds[h.hold] = struct{}{}
		if a.action == HoldAfter {
			// Shut before the frame leaves: its answer must find it shut.
			p.conn.gate.Store(h.hold)
		}
	case Withhold:
		a.gapped[p.conn] = struct{}{}
	}
	return h
}
