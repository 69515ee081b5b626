package links

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/custodymq/custody/evidence"
)

// Interruptible is an actor's link as faults strike it, whatever carries its
// bytes: a Link is one over TCP.
type Interruptible interface {
	// Addr is where the actor connects, the same for the link's life.
	Addr() string
	// Arm readies a strike at a frame; it is in force when Arm returns. An action
	// that would forge evidence is refused with *ErrIllegal; a drop where replies
	// are matched by position becomes Withhold.
	Arm(Strike) (Injection, error)
	// BlackHole loses every byte in one direction, or both (NoDirection).
	BlackHole(label string, to evidence.Direction) (Injection, error)
	// Down refuses every connection; ErrDown if it does so already.
	Down(label string) (Injection, error)
	// Reset ends every open connection. It has fired if there was one.
	Reset(label string) Injection
	// AddToxic starts a byte-level fault.
	AddToxic(label string, t Toxic) (Injection, error)
	// Lag is the longest time that bytes waited for the link itself.
	Lag() time.Duration
	Close() error
}

// Injection is an armed fault on a link.
type Injection interface {
	// Fired is closed when the effect has been seen and recorded for the first time.
	Fired() <-chan struct{}
	// Count is how often it fired.
	Count() int
	// Heal ends the fault; a second call does nothing.
	Heal(ctx context.Context) error
	// Release lets go what is held now, on its way or thrown away.
	Release(forward bool)
}

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
	// Then is called when it has fired for the first time; it must not block.
	Then func()
}

// Repeat says how often a strike fires.
type Repeat string

const (
	Once        Repeat = ""
	Every       Repeat = "every"        // the N-th, 2N-th, 3N-th…
	UntilHealed Repeat = "until-healed" // the N-th and all after it
)

// actions on a frame that a strike can ask for; Withhold comes of Drop.
var actions = map[Action]bool{Drop: true, Hold: true, HoldAfter: true, Withhold: true, CutBefore: true, CutAfter: true, Corrupt: true, Delay: true, Duplicate: true}

// never is a count that no run reaches.
const never = math.MaxInt

// Aim is a strike that counts what is carried. It knows no socket and no lock:
// its link guards it.
type Aim struct {
	Strike
	carried int // messages since arming
	at      int // the count at which it fires next
}

// NewAim checks a strike against a protocol.
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

// EffectiveAction is the action that is done to a frame where a is asked for: a itself, or
// Withhold where a drop would forge evidence. The error is an *ErrIllegal.
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

// Aiming is whatever embeds an Aim.
type Aiming interface{ aim() *Aim }

func (a *Aim) aim() *Aim { return a }

// Disarm it: it fires no more.
func (a *Aim) Disarm() { a.at = never }

// Hit counts a frame for every aim. A frame is hit once at most, by the one that
// was armed first; another that was due hits the next frame. take may leave the
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

// counts is how many messages of a frame the strike counts.
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

// Carried is the event of a frame that a link has carried or struck.
func Carried(link string, conn int, to evidence.Direction, f Frame, struck string) evidence.Event {
	return evidence.Event{Kind: evidence.FrameCarried, Actor: link, Link: link, Conn: conn, Frame: f.Kind, To: to, Items: f.Items,
		Struck: struck, Negative: f.Negative(), Reason: f.Status}
}

// Struck is what such an event says of a frame that is hit. A duplicate is two
// frames, of which the first is the sender's own.
func (s Strike) Struck() string {
	if s.Action == Duplicate {
		return ""
	}
	return string(s.Action)
}

// FiredAt is the event of a stroke; conn is 0 where it struck no single connection.
func (s Strike) FiredAt(link string, conn int, to evidence.Direction, f Frame) evidence.Event {
	return evidence.Event{Kind: evidence.FaultFired, Actor: link, Link: link, Conn: conn, Fault: s.Label, Struck: string(s.Action),
		Frame: f.Kind, To: to, Items: f.Items}
}
