package faults_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/faults"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/tasks"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig provides every kind of target, without a network.
type rig struct {
	mu     sync.Mutex
	did    []string
	fired  func(string, []evidence.FrameItem)
	fails  error
	missed string
	absent error
	log    []evidence.Event
}

func (r *rig) note(what string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.did = append(r.did, what)
	return r.fails
}

func (r *rig) order(what string) (faults.Outcome, error) {
	err := r.note(what)
	return faults.Outcome{Incarnation: 2, Missed: r.missed}, err
}

func (r *rig) Kill(context.Context) (faults.Outcome, error)     { return r.order("kill") }
func (r *rig) Shutdown(context.Context) (faults.Outcome, error) { return r.order("shutdown") }
func (r *rig) Pause(context.Context) (faults.Outcome, error)    { return r.order("pause") }
func (r *rig) Revive(context.Context) (faults.Outcome, error)   { return r.order("revive") }
func (r *rig) FailOver(context.Context) (faults.Outcome, error) { return r.order("fail-over") }
func (r *rig) Continue(_ context.Context, s faults.Outcome) (faults.Outcome, error) {
	return r.order(fmt.Sprintf("continue %d", s.Incarnation))
}

func (r *rig) SetClock(_ context.Context, d time.Duration) error {
	return r.note("clock " + d.String())
}
func (r *rig) ArmStore(_ context.Context, f systems.StoreFault, fired func(systems.StoreFired)) (func(context.Context) error, error) {
	r.fired = func(operation string, items []evidence.FrameItem) {
		fired(systems.StoreFired{Operation: operation, Items: items})
	}
	if r.absent != nil {
		return nil, r.absent
	}
	return func(context.Context) error { return r.note("heal " + f.Verb) }, r.note("arm " + f.Verb + " " + f.Operation)
}

func (r *rig) Link(string) (links.Interruptible, error)   { return nil, errors.New("no link here") }
func (r *rig) Process(string) (faults.Process, error)     { return r, nil }
func (r *rig) Store(string) (systems.StoreFaulter, error) { return r, nil }
func (r *rig) Clock(string) (systems.Clocked, error)      { return r, nil }
func (r *rig) Runtime() tasks.Runtime                     { return tasks.NewReal(func() time.Duration { return 0 }) }
func (r *rig) Sink() evidence.Sink                        { return r }
func (r *rig) Record(e evidence.Event) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = append(r.log, e)
	return uint64(len(r.log))
}

func (r *rig) kinds() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var kinds []string
	for _, e := range r.log {
		kinds = append(kinds, e.Kind.String())
	}
	return kinds
}

// Every example is a valid script line whose fault can be armed.
func TestExamples(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range faults.All() {
		if seen[f.Verb] {
			t.Errorf("two faults are called %s", f.Verb)
		}
		seen[f.Verb] = true
		s, err := script.Parse(f.Verb, "scenario x\nproducer p1 to orders\nconsumer c1 on orders\n"+f.Example)
		if err == nil {
			err = runner.Check(s)
		}
		if err != nil {
			t.Errorf("%s: %v", f.Verb, err)
		}
		if f.Text == "" || f.Class == "" {
			t.Errorf("%s says nothing of itself", f.Verb)
		}
	}
}

func TestAtOnce(t *testing.T) {
	for _, c := range []struct {
		verb   string
		spec   faults.Spec
		did    []string
		events []string
	}{
		{"kill", faults.Spec{Target: "broker"}, []string{"kill", "revive"}, []string{"fault-armed", "commanded", "fault-fired", "fault-healed"}},
		{"shutdown", faults.Spec{Target: "broker"}, []string{"shutdown", "revive"}, []string{"fault-armed", "commanded", "fault-fired", "fault-healed"}},
		{"pause", faults.Spec{Target: "broker"}, []string{"pause", "continue 2"}, []string{"fault-armed", "commanded", "fault-fired", "fault-healed"}},
		{"clock", faults.Spec{Target: "broker", By: time.Hour}, []string{"clock 1h0m0s", "clock 0s"},
			[]string{"fault-armed", "clock-set", "fault-fired", "clock-set", "fault-healed"}},
	} {
		t.Run(c.verb, func(t *testing.T) {
			r := &rig{}
			in := arm(t, r, c.verb, c.spec)
			select {
			case <-in.Fired():
			default:
				t.Error("it has not fired")
			}
			for range 2 { // the second call does nothing
				if err := in.Heal(t.Context()); err != nil {
					t.Error(err)
				}
			}
			if !slices.Equal(r.did, c.did) || !slices.Equal(r.kinds(), c.events) {
				t.Errorf("did %q, recorded %q", r.did, r.kinds())
			}
		})
	}
}

func TestStoreFaultFiresWhenItsEffectIsSeen(t *testing.T) {
	r := &rig{}
	in := arm(t, r, "block", faults.Spec{Target: "store", Operation: "insert"})
	select {
	case <-in.Fired():
		t.Fatal("it fired before the store said so")
	default:
	}
	r.fired("insert", []evidence.FrameItem{{BusinessID: "order-1"}})
	<-in.Fired()
	if err := in.Heal(t.Context()); err != nil {
		t.Error(err)
	}
	if want := []string{"arm hold insert", "heal hold"}; !slices.Equal(r.did, want) {
		t.Errorf("did %q, want %q", r.did, want)
	}
	if e := r.log[1]; e.Kind != evidence.FaultFired || e.Struck != "hold" || len(e.Items) != 1 {
		t.Errorf("recorded %+v", e)
	}
}

// A kill at a store operation happens while the operation is held.
func TestKillAtAnOperation(t *testing.T) {
	r := &rig{}
	in := arm(t, r, "kill", faults.Spec{Target: "broker", Operation: "delete"})
	r.fired("delete", []evidence.FrameItem{{BusinessID: "order-1"}})
	select {
	case <-in.Fired():
	case <-time.After(10 * time.Second):
		t.Fatal("it did not fire")
	}
	if err := in.Heal(t.Context()); err != nil {
		t.Error(err)
	}
	if want := []string{"arm hold delete", "kill", "revive"}; !slices.Equal(r.did, want) {
		t.Errorf("did %q, want %q", r.did, want)
	}
}

// A fault that never fired is disarmed by healing, and strikes nobody.
func TestNeverFired(t *testing.T) {
	r := &rig{}
	in := arm(t, r, "kill", faults.Spec{Target: "broker", Operation: "delete"})
	if err := in.Heal(t.Context()); err != nil {
		t.Error(err)
	}
	if want := []string{"arm hold delete", "heal hold"}; !slices.Equal(r.did, want) {
		t.Errorf("did %q, want %q", r.did, want)
	}
	if slices.Contains(r.kinds(), "fault-fired") {
		t.Error("it is recorded as fired")
	}
}

// A store may report several firings; the process is struck once.
func TestKillAtEveryOperation(t *testing.T) {
	r := &rig{}
	in := arm(t, r, "kill", faults.Spec{Target: "broker", Operation: "delete"})
	for range 3 {
		r.fired("delete", nil)
		select {
		case <-in.Fired():
		case <-time.After(10 * time.Second):
			t.Fatal("it did not fire")
		}
	}
	if err := in.Heal(t.Context()); err != nil {
		t.Error(err)
	}
	if want := []string{"arm hold delete", "kill", "revive"}; !slices.Equal(r.did, want) {
		t.Errorf("did %q, want %q", r.did, want)
	}
}

// Striking a process that does not run does not fire, gives the reason, and
// undoes nothing.
func TestStruckNothing(t *testing.T) {
	for _, verb := range []string{"kill", "shutdown", "pause"} {
		for name, spec := range map[string]faults.Spec{"at once": {Target: "c2"}, "at an operation": {Target: "c2", Operation: "delete"}} {
			t.Run(verb+" "+name, func(t *testing.T) {
				r := &rig{missed: "c2 was not running"}
				in := arm(t, r, verb, spec)
				if spec.Operation != "" {
					r.fired("delete", nil)
					for !slices.Contains(r.kinds(), "fault-missed") {
						if t.Context().Err() != nil {
							t.Fatal("it was never struck")
						}
						runtime.Gosched()
					}
				}
				select {
				case <-in.Fired():
					t.Error("it has fired")
				default:
				}
				if err := in.Heal(t.Context()); err != nil {
					t.Error(err)
				}
				missed := r.log[2]
				if missed.Kind != evidence.FaultMissed || missed.Reason != "c2 was not running" || missed.Incarnation != 2 || missed.Struck != verb {
					t.Errorf("recorded %+v", missed)
				}
				if slices.Contains(r.did, "revive") || slices.Contains(r.did, "continue 2") {
					t.Errorf("did %q", r.did)
				}
			})
		}
	}
}

func TestStoreThatIsAbsent(t *testing.T) {
	r := &rig{absent: &faults.AbsentError{Why: "broker was not running"}}
	in := arm(t, r, "full", faults.Spec{Target: "store", Operation: "insert"})
	if err := in.Heal(t.Context()); err != nil {
		t.Error(err)
	}
	if want := []string{"fault-armed", "fault-missed", "fault-healed"}; !slices.Equal(r.kinds(), want) || r.log[1].Reason != "broker was not running" {
		t.Errorf("recorded %+v", r.log)
	}
}

func TestFailedStroke(t *testing.T) {
	r := &rig{fails: errors.New("no such process")}
	f, _ := faults.Find("kill")
	if _, err := f.Arm(t.Context(), faults.Spec{Label: "f", Target: "broker"}, r); err == nil || !strings.Contains(err.Error(), "no such process") {
		t.Errorf("arming says %v", err)
	}
	if slices.Contains(r.kinds(), "fault-fired") {
		t.Error("it is recorded as fired")
	}
}

func TestClassOfAProcess(t *testing.T) {
	f, _ := faults.Find("kill")
	if c := f.ClassOf(faults.Spec{Target: "c1"}); c != evidence.ClientCrash {
		t.Errorf("killing a consumer is %s", c)
	}
	if c := f.ClassOf(faults.Spec{Target: faults.Broker}); c != evidence.BrokerCrash {
		t.Errorf("killing the broker is %s", c)
	}
}

// A fault on the link to the store is the store's failure, not the clients'.
func TestClassOfTheStoresLink(t *testing.T) {
	for _, verb := range []string{"drop", "hold", "reset", "latency"} {
		f, _ := faults.Find(verb)
		for on, want := range map[string]evidence.Class{faults.Store: evidence.Store, "p1": evidence.Link} {
			if c := f.ClassOf(faults.Spec{On: on}); c != want {
				t.Errorf("%s on %s is %s, want %s", verb, on, c, want)
			}
		}
	}
	f, _ := faults.Find("kill")
	if down, _ := faults.Find("shutdown"); down.ClassOf(faults.Spec{Target: faults.Broker, Frame: "commit", On: faults.Store}) != evidence.Store {
		t.Error("an orderly end without the store is no restart")
	}
	if c := f.ClassOf(faults.Spec{Target: faults.Broker, Frame: "commit", On: faults.Store}); c != evidence.BrokerCrash {
		t.Errorf("a kill of the broker at its commit is %s", c)
	}
}

// To the system, a business database that fails is a handler that fails: it has no
// class. Only its operations can be struck.
func TestBusinessDatabase(t *testing.T) {
	unreachable, _ := faults.Find("unreachable")
	kill, _ := faults.Find("kill")
	drop, _ := faults.Find("drop")
	fill, _ := faults.Find(faults.Fill)
	for _, c := range []struct {
		f     faults.Fault
		s     faults.Spec
		ok    bool
		class evidence.Class
	}{
		{unreachable, faults.Spec{Target: faults.Business, Operation: "log"}, true, ""},
		{unreachable, faults.Spec{Target: faults.Business}, false, ""},
		{unreachable, faults.Spec{Target: faults.Store, Operation: "insert"}, true, evidence.Store},
		{fill, faults.Spec{Target: faults.Business, Operation: "log"}, false, ""},
		{kill, faults.Spec{Target: "c1", Operation: "log", On: faults.Business}, true, evidence.ClientCrash},
		{kill, faults.Spec{Target: "c1", On: faults.Business}, false, evidence.ClientCrash},
		{drop, faults.Spec{Frame: "ack", On: faults.Business}, false, evidence.Link},
	} {
		if err := c.f.Check(c.s); (err == nil) != c.ok {
			t.Errorf("%s %+v: %v", c.f.Verb, c.s, err)
		}
		if class := c.f.ClassOf(c.s); class != c.class {
			t.Errorf("%s %+v has the class %q, want %q", c.f.Verb, c.s, class, c.class)
		}
	}
	r := &rig{}
	arm(t, r, "unreachable", faults.Spec{Target: faults.Business, Operation: "log"})
	r.fired("log", nil)
	if e := r.log[len(r.log)-1]; e.Kind != evidence.FaultFired || e.Actor != faults.Business {
		t.Errorf("recorded %+v", e)
	}
}

func arm(t *testing.T, r *rig, verb string, s faults.Spec) faults.Injection {
	t.Helper()
	f, ok := faults.Find(verb)
	if !ok {
		t.Fatalf("no fault %s", verb)
	}
	s.Label = "f"
	in, err := f.Arm(t.Context(), s, r)
	if err != nil {
		t.Fatal(err)
	}
	return in
}
