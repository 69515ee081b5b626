package links

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/custodymq/custody/evidence"
)

// Interruptible is an actor's link as faults see it, whatever its transport;
// Link is one over TCP.
type Interruptible interface {
	// Addr is the address the actor connects to, stable for the link's life.
	Addr() string
	// Arm arms a strike on a frame; it is in force when Arm returns. An action
	// that would forge evidence fails with *ErrIllegal; a drop where replies
	// are matched by position becomes Withhold.
	Arm(Strike) (Injection, error)
	// BlackHole discards every byte in one direction, or in both (NoDirection).
	BlackHole(label string, to evidence.Direction) (Injection, error)
	// Down refuses connections. It fails with ErrDown if the link is down.
	Down(label string) (Injection, error)
	// Reset resets every open connection. It has fired if there was one.
	Reset(label string) Injection
	// AddToxic arms a byte-level fault.
	AddToxic(label string, t Toxic) (Injection, error)
	// Lag is the longest delay caused by the link itself.
	Lag() time.Duration
	Close() error
}

// Injection is an armed fault on a link.
type Injection interface {
	// Fired is closed when the effect has first been seen and recorded.
	Fired() <-chan struct{}
	// Count is how often it has fired.
	Count() int
	// Heal ends the fault; a second call does nothing.
	Heal(ctx context.Context) error
	// Release releases what is held, forwarding or discarding it.
	Release(forward bool)
}

// Strike selects a frame and the action on it.
type Strike struct {
	Label  string // in FaultFired; empty for a gate, which is not a fault and is not recorded
	Action Action
	Kind   string             // named by the Protocol
	To     evidence.Direction // NoDirection for either
	// N is the N-th message of this kind (and business ID) since arming, over
	// all connections of the link. Messages count, not frames: "ack 7" is the
	// frame that completes the seventh acknowledgement. A frame without
	// messages (a subscription) counts as one. 0 means 1.
	N      int
	Of     string // business ID of any publish; empty for all
	Repeat Repeat
	Delay  time.Duration // for action Delay
	// Then is called on the first firing. It must not block.
	Then func()
}

// Repeat is how often a strike fires.
type Repeat string

const (
	Once        Repeat = ""
	Every       Repeat = "every"        // the N-th, 2N-th, 3N-th…
	UntilHealed Repeat = "until-healed" // the N-th and all later ones
)

// actions that a strike may request; Withhold results from Drop.
var actions = map[Action]bool{Drop: true, Hold: true, HoldAfter: true, Withhold: true, CutBefore: true, CutAfter: true, Corrupt: true, Delay: true, Duplicate: true}

// never is a count no run reaches.
const never = math.MaxInt

// Aim is an armed strike's count of messages. It knows no socket and no lock:
// the caller synchronises.
type Aim struct {
	Strike
	carried int // messages since arming
	at      int // count at which it fires next
}

// NewAim validates a strike for a protocol.
func NewAim(p Protocol, s Strike) (Aim, error) {
	if !actions[s.Action] {
		return Aim{}, fmt.Errorf("links: %q is no action on a frame", s.Action)
	}
	known := false
	for _, k := range p.Kinds() {
		known = known || k.Name == s.Kind && (s.To == evidence.NoDirection || s.To == k.To)
	}
	if !known {
		return Aim{}, fmt.Errorf("links: %s has no %q frame to strike in direction %q", p.Name(), s.Kind, s.To)
	}
	if s.Action == Delay && s.Delay <= 0 {
		return Aim{}, fmt.Errorf("links: strike %q: a delay needs a positive duration", s.Label)
	}
	if s.N < 0 || (s.Repeat != Once && s.Repeat != Every && s.Repeat != UntilHealed) {
		return Aim{}, fmt.Errorf("links: strike %q: count %d or repeat %q out of range", s.Label, s.N, s.Repeat)
	}
	s.N = max(s.N, 1)
	var err error
	s.Action, err = EffectiveAction(p, s.Kind, s.Action)
	return Aim{Strike: s, at: s.N}, err
}

// EffectiveAction returns the action performed for a: a itself, or Withhold
// where a drop would forge evidence. The error is an *ErrIllegal.
func EffectiveAction(p Protocol, kind string, a Action) (Action, error) {
	if _, can := p.(Corrupter); a == Corrupt && !can {
		return a, &ErrIllegal{Protocol: p.Name(), Kind: kind, Action: a, Why: "this protocol has no way to alter a frame and keep it well-formed"}
	}
	err := p.Legal(kind, a)
	if err != nil && a == Drop && p.Legal(kind, Withhold) == nil {
		return Withhold, nil
	}
	return a, err
}

// Aiming is implemented by embedding an Aim.
type Aiming interface{ aim() *Aim }

func (a *Aim) aim() *Aim { return a }

// Disarm keeps the strike from firing again.
func (a *Aim) Disarm() { a.at = never }

// Hit counts a frame for every aim, and calls take for the first that is due;
// others that are due fire at the next frame. take returns false to leave the
// frame alone.
func Hit[T Aiming](armed []T, to evidence.Direction, f Frame, take func(T) bool) {
	hit := false
	for _, one := range armed {
		a := one.aim()
		n := a.counts(to, f)
		a.carried += n
		if n == 0 || hit || a.carried < a.at {
			continue
		}
		if hit = take(one); hit {
			a.at = a.nextAfter()
		}
	}
}

// counts returns how many messages of a frame the strike counts.
func (a *Aim) counts(to evidence.Direction, f Frame) (n int) {
	if f.Kind == "" || f.Kind != a.Kind || (a.To != evidence.NoDirection && a.To != to) {
		return 0
	}
	if a.Of == "" {
		return max(len(f.Items), 1)
	}
	for _, item := range f.Items {
		if item.BusinessID == a.Of {
			n++
		}
	}
	return n
}

func (a *Aim) nextAfter() int {
	switch a.Repeat {
	case Every:
		return (a.carried/a.N + 1) * a.N
	case UntilHealed:
		return a.at
	}
	return never
}

// Carried returns the event of a frame that a link carried or struck.
func Carried(link string, conn int, to evidence.Direction, f Frame, struck string) evidence.Event {
	return evidence.Event{Kind: evidence.FrameCarried, Actor: link, Link: link, Conn: conn, Frame: f.Kind, To: to, Items: f.Items,
		Struck: struck, Negative: f.Negative(), Reason: f.Status}
}

// Struck is the event's description of the action. A duplicate is two frames,
// of which the first is the sender's.
func (s Strike) Struck() string {
	if s.Action == Duplicate {
		return ""
	}
	return string(s.Action)
}

// FiredAt returns the event of a firing; conn is 0 if it struck no single
// connection.
func (s Strike) FiredAt(link string, conn int, to evidence.Direction, f Frame) evidence.Event {
	return evidence.Event{Kind: evidence.FaultFired, Actor: link, Link: link, Conn: conn, Fault: s.Label, Struck: string(s.Action),
		Frame: f.Kind, To: to, Items: f.Items}
}
