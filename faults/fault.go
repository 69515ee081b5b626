// Package faults is what can be broken on purpose: one file per family of
// fault. A fault declares the small interface that it strikes (a link, a
// process, a store, a clock); it never sees a bench.
package faults

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/tasks"
)

// Fault is one verb of the notation.
type Fault struct {
	Verb    string
	Class   evidence.Class // of what it stands for; a process' depends on whose it is, see ClassOf
	Strikes Strikes
	Text    string // one sentence, for `custody explain`
	Example string // a script line
	Ends    bool   // its process is gone until something starts it again
	Lasts   bool   // what it holds stands still until it is healed
	Timed   bool   // it takes a time: "by 50ms"
	Bytes   bool   // it strikes bytes, not frames: see links.Options.Toxics

	frame actions // on the frame that it waits for
	arm   func(ctx context.Context, s Spec, t Targets) (Injection, error)
}

// Strikes says what a fault acts upon.
type Strikes string

const (
	StrikesFrame   Strikes = "a frame on a link"
	StrikesLink    Strikes = "a link"
	StrikesProcess Strikes = "a process"
	StrikesStore   Strikes = "the broker's store"
	StrikesClock   Strikes = "a clock"
)

// Spec is one fault as a script asks for it.
type Spec struct {
	Label     string
	Target    string // "broker", "store" or an actor
	Repeat    links.Repeat
	After     bool   // strike after the event, not before it
	Frame     string // the frame kind it waits for; empty if none
	Operation string // the store operation it waits for; empty if none
	N         int
	Of        string // business ID
	On        string // the actor on whose link
	By        time.Duration
	Rate      int // KiB/s
}

// Targets finds what a fault strikes. An error says why there is no such thing.
type Targets interface {
	Link(actor string) (links.Interruptible, error)
	Process(target string) (Process, error)
	// Store and Clock fail with an *AbsentError where no broker runs that has them.
	Store() (systems.StoreFaulter, error)
	Clock(target string) (systems.Clocked, error)
	Sink() evidence.Sink
	Runtime() tasks.Runtime
}

// Process can be struck as a whole. Each order returns when its effect is
// certain; an error is a failure of the harness.
type Process interface {
	Kill(ctx context.Context) (Stroke, error)
	Shutdown(ctx context.Context) (Stroke, error)
	Pause(ctx context.Context) (Stroke, error)
	// Continue lets go on what a pause has stopped: that incarnation, and none
	// that came after it.
	Continue(ctx context.Context, paused Stroke) (Stroke, error)
	// Revive starts it again if it does not run and should; it does nothing
	// for a process that the script will start, or not, itself.
	Revive(ctx context.Context) (Stroke, error)
}

// Stroke is what an order did, and to which process.
type Stroke struct {
	Incarnation int    // which start of the process, from 1; 0: it was never started
	Missed      string // why nothing was struck, such as "c2 was not running"; empty if it was
}

// AbsentError says why there is nothing to strike now, as in "broker was not
// running". The fault has not fired.
type AbsentError struct{ Why string }

func (e *AbsentError) Error() string { return e.Why }

// Injection is an armed fault.
type Injection interface {
	// Fired is closed when the effect was seen for the first time.
	Fired() <-chan struct{}
	// Heal ends it; a second call does nothing. Bounded by ctx.
	Heal(ctx context.Context) error
}

var all = slices.Concat(frameFaults(), linkFaults(), processFaults(), storeFaults(), []Fault{clockFault})

// All is the list of faults.
func All() []Fault { return slices.Clone(all) }

// Find a fault by its verb.
func Find(verb string) (Fault, bool) {
	for _, f := range all {
		if f.Verb == verb {
			return f, true
		}
	}
	return Fault{}, false
}

// ClassOf a fault as it is used: killing a consumer is a client's crash.
func (f Fault) ClassOf(s Spec) evidence.Class {
	if f.Strikes == StrikesProcess && s.Target != Broker {
		return evidence.ClientCrash
	}
	return f.Class
}

// Broker is the target that is the system under test itself.
const Broker = "broker"

// Check says what is wrong with the use of a fault, before anything starts.
func (f Fault) Check(s Spec) error {
	switch {
	case f.Strikes == StrikesFrame && (s.Frame == "" || s.On == ""):
		return fmt.Errorf("%s strikes a frame: say which and on whose link, as in %q", f.Verb, f.Example)
	case f.Strikes == StrikesLink && s.On == "":
		return fmt.Errorf("%s strikes a link: say whose, as in %q", f.Verb, f.Example)
	case (f.Strikes == StrikesProcess || f.Strikes == StrikesClock || f.Strikes == StrikesStore) && s.Target == "":
		return fmt.Errorf("%s strikes %s: say which, as in %q", f.Verb, f.Strikes, f.Example)
	case f.Strikes == StrikesStore && s.Target != "store":
		return fmt.Errorf("%s strikes the store, not %q, as in %q", f.Verb, s.Target, f.Example)
	case s.Frame != "" && s.On == "":
		return fmt.Errorf("the frame %q is on whose link? Add \"on ACTOR\", as in %q", s.Frame, f.Example)
	}
	return nil
}

// Action on the frame that the fault waits for, if it waits for one.
func (f Fault) Action(s Spec) links.Action { return f.frame.of(s) }

// actions on a frame: of a fault that strikes before it, and after it.
type actions struct{ before, after links.Action }

func (a actions) of(s Spec) links.Action {
	if s.After {
		return a.after
	}
	return a.before
}

// Arm the fault; it is in force, or has struck, when Arm returns. FaultArmed is recorded.
func (f Fault) Arm(ctx context.Context, s Spec, t Targets) (Injection, error) {
	if err := f.Check(s); err != nil {
		return nil, fmt.Errorf("faults: %s: %w", s.Label, err)
	}
	t.Sink().Record(evidence.Event{Kind: evidence.FaultArmed, Actor: "harness", Fault: s.Label, Link: s.On, Frame: s.Frame})
	in, err := f.arm(ctx, s, t)
	var absent *AbsentError
	if errors.As(err, &absent) {
		t.Sink().Record(evidence.Event{Kind: evidence.FaultMissed, Actor: cmp.Or(s.Target, s.On), Fault: s.Label, Struck: f.Verb, Reason: absent.Why})
		in, err = newSignal(func(context.Context) error { return nil }), nil
	}
	if err != nil {
		return nil, fmt.Errorf("faults: arm %s (%s): %w", s.Label, f.Verb, err)
	}
	return &healed{Injection: in, label: s.Label, sink: t.Sink()}, nil
}

// healed records the end of an injection, once.
type healed struct {
	Injection
	label string
	sink  evidence.Sink
	once  sync.Once
	err   error
}

func (h *healed) Heal(ctx context.Context) error {
	h.once.Do(func() {
		if h.err = h.Injection.Heal(ctx); h.err != nil {
			return
		}
		e := evidence.Event{Kind: evidence.FaultHealed, Actor: "harness", Fault: h.label}
		if p, ok := h.Injection.(*processStroke); ok {
			e.Incarnation, e.Reason = p.undone.Incarnation, p.undone.Missed
		}
		h.sink.Record(e)
	})
	return h.err
}

// signal is the Injection of a fault that tells by itself when it fired.
type signal struct {
	once  sync.Once
	fired chan struct{}
	heal  func(context.Context) error
}

func newSignal(heal func(context.Context) error) *signal {
	return &signal{fired: make(chan struct{}), heal: heal}
}

func (s *signal) fire() { s.once.Do(func() { close(s.fired) }) }

func (s *signal) Fired() <-chan struct{} { return s.fired }

func (s *signal) Heal(ctx context.Context) error { return s.heal(ctx) }
