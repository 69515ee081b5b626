// Package faults defines what can be broken on purpose, one file per family. A
// fault declares the small interface it strikes (link, process, store, clock);
// it knows nothing of the runner.
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

// Fault is a verb of the notation.
type Fault struct {
	Verb    string
	Class   evidence.Class // of a process fault, when it strikes the system; see ClassOf
	Strikes Strikes
	Text    string // one sentence, for `custody explain`
	Example string // a script line
	Ends    bool   // the process stays down until it is started again
	Lasts   bool   // in force until healed
	Timed   bool   // takes a duration: "by 50ms"
	Bytes   bool   // strikes bytes, not frames: see links.Options.Toxics
	Whole   bool   // strikes the store's server as a whole, and no operation

	frame actions // on the frame that triggers it
	arm   func(ctx context.Context, s Spec, t Targets) (Injection, error)
}

// Strikes is what a fault acts on.
type Strikes string

const (
	StrikesFrame   Strikes = "a frame on a link"
	StrikesLink    Strikes = "a link"
	StrikesProcess Strikes = "a process"
	StrikesStore   Strikes = "the broker's store"
	StrikesClock   Strikes = "a clock"
)

// Spec is one fault as declared in a script.
type Spec struct {
	Label     string
	Target    string // "broker", "store" or an actor
	Repeat    links.Repeat
	After     bool   // after the event instead of before it
	Frame     string // frame kind that triggers it, or empty
	Operation string // store operation that triggers it, or empty
	N         int
	Of        string // business ID
	On        string // actor whose link carries the frame
	By        time.Duration
	Rate      int // KiB/s
}

// Targets resolves what a fault strikes. An error says why it cannot.
type Targets interface {
	Link(actor string) (links.Interruptible, error)
	Process(target string) (Process, error)
	// Store and Clock return an *AbsentError if no broker is running. Store is
	// given Store or Business.
	Store(target string) (systems.StoreFaulter, error)
	Clock(target string) (systems.Clocked, error)
	Sink() evidence.Sink
	Runtime() tasks.Runtime
}

// Process can be signalled. Each method returns when its effect is certain; an
// error is a failure of the harness.
type Process interface {
	Kill(ctx context.Context) (Outcome, error)
	Shutdown(ctx context.Context) (Outcome, error)
	Pause(ctx context.Context) (Outcome, error)
	// Continue resumes the incarnation that was paused, never a later one.
	Continue(ctx context.Context, paused Outcome) (Outcome, error)
	// Revive restarts a process that is down. It does nothing for one whose
	// restart is up to the script.
	Revive(ctx context.Context) (Outcome, error)
	// FailOver ends the store's server for good and promotes its standby.
	FailOver(ctx context.Context) (Outcome, error)
}

// Outcome is what a signal did, and to which process.
type Outcome struct {
	Incarnation int    // start count of the process; 0 if it never started
	Missed      string // why nothing was struck, such as "c2 was not running"; else empty
}

// AbsentError says why there is nothing to strike, as in "broker was not
// running". The fault has not fired.
type AbsentError struct{ Why string }

func (e *AbsentError) Error() string { return e.Why }

// Injection is an armed fault.
type Injection interface {
	// Fired is closed when the effect is first seen.
	Fired() <-chan struct{}
	// Heal ends the fault, bounded by ctx. A second call does nothing.
	Heal(ctx context.Context) error
}

var all = slices.Concat(frameFaults(), linkFaults(), processFaults(), storeFaults(), []Fault{clockFault})

// All returns every fault.
func All() []Fault { return slices.Clone(all) }

// Find returns the fault of a verb.
func Find(verb string) (Fault, bool) {
	for _, f := range all {
		if f.Verb == verb {
			return f, true
		}
	}
	return Fault{}, false
}

// ClassOf returns the class for a use of the fault: killing a consumer is a
// client crash, and a fault on the store's server or on the link to it is a store
// fault. So is an orderly stop at a frame of that link: the broker needs the
// store, and is cut off from it while the frame is held.
func (f Fault) ClassOf(s Spec) evidence.Class {
	switch {
	case f.Class == evidence.NodeLoss:
		return f.Class
	case f.Strikes == StrikesStore && s.Target == Business:
		return "" // to the system, it is a handler that fails
	case f.Strikes == StrikesProcess && s.Target == Store:
		return evidence.Store
	case f.Strikes == StrikesProcess && s.Target != Broker:
		return evidence.ClientCrash
	case s.On == Standby && f.Strikes == StrikesLink:
		return evidence.Store
	case s.On == Store && (f.Strikes == StrikesFrame || f.Strikes == StrikesLink || f.Class == evidence.BrokerRestart):
		return evidence.Store
	}
	return f.Class
}

// Targets other than actors.
const (
	Broker  = "broker"  // the system under test
	Store   = "store"   // its storage
	Standby = "standby" // of the store's server: only its link is struck
	// Business is the application's database. Only its operations are struck.
	Business = "business"
)

// Check reports misuse of a fault before anything starts.
func (f Fault) Check(s Spec) error {
	switch {
	case f.Strikes == StrikesFrame && (s.Frame == "" || s.On == ""):
		return fmt.Errorf("%s strikes a frame: say which and on whose link, as in %q", f.Verb, f.Example)
	case f.Strikes == StrikesLink && s.On == "":
		return fmt.Errorf("%s strikes a link: say whose, as in %q", f.Verb, f.Example)
	case (f.Strikes == StrikesProcess || f.Strikes == StrikesClock || f.Strikes == StrikesStore) && s.Target == "":
		return fmt.Errorf("%s strikes %s: say which, as in %q", f.Verb, f.Strikes, f.Example)
	case f.Strikes == StrikesStore && s.Target == Business, s.On == Business:
		if f.Whole || s.Operation == "" {
			return errors.New("of the business database only operations are struck: name one, as in \"fault it: unreachable business before operation commit\"")
		}
	case (f.Strikes == StrikesStore || f.Class == evidence.NodeLoss) && s.Target != Store:
		return fmt.Errorf("%s strikes the store, not %q, as in %q", f.Verb, s.Target, f.Example)
	case f.Whole && s.Operation != "":
		return fmt.Errorf("%s strikes the store as a whole, whatever it does, as in %q", f.Verb, f.Example)
	case s.Frame != "" && s.On == Standby:
		return fmt.Errorf("the link of a %s shows no frames: strike the whole link, as in \"fault it: down on %s\"", Standby, Standby)
	case s.Frame != "" && s.On == "":
		return fmt.Errorf("the frame %q is on whose link? Add \"on ACTOR\", as in %q", s.Frame, f.Example)
	}
	return nil
}

// Action returns the action on the triggering frame, if there is one.
func (f Fault) Action(s Spec) links.Action { return f.frame.of(s) }

// actions holds a fault's frame action before and after the event.
type actions struct{ before, after links.Action }

func (a actions) of(s Spec) links.Action {
	if s.After {
		return a.after
	}
	return a.before
}

// Arm arms the fault and records FaultArmed. The fault is in force, or has
// fired, when Arm returns.
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
	return &recordedInjection{Injection: in, label: s.Label, sink: t.Sink()}, nil
}

// recordedInjection records healing, once.
type recordedInjection struct {
	Injection
	label string
	sink  evidence.Sink
	once  sync.Once
	err   error
}

func (h *recordedInjection) Heal(ctx context.Context) error {
	h.once.Do(func() {
		if h.err = h.Injection.Heal(ctx); h.err != nil {
			return
		}
		e := evidence.Event{Kind: evidence.FaultHealed, Actor: "harness", Fault: h.label}
		if p, ok := h.Injection.(*processInjection); ok {
			e.Incarnation, e.Reason = p.healOutcome.Incarnation, p.healOutcome.Missed
		}
		h.sink.Record(e)
	})
	return h.err
}

// signal is an Injection fired by its fault.
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
