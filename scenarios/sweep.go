package scenarios

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/faults"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/script"
)

// SweepBase is the run whose hand-overs a sweep strikes: three messages, one
// producer, one consumer. The second is struck, so that each fault has a
// message before and after it.
var SweepBase = sweepScenario("sweep-base", "Three messages, and nothing goes wrong: these hand-overs are swept.", script.Fault{}, false, nil)

const (
	sweepStruck = "order-2"
	sweepLast   = "order-3"
	sweepLabel  = "struck"
	sweepBody   = 32 // large enough that an altered byte is in the body
	sweepDelay  = 200 * time.Millisecond
)

// HandOver is one step of a message from one party to the next: a frame kind on
// an actor's link, or an operation of the broker's store.
type HandOver struct {
	Actor     string // whose link; empty for a store operation
	Frame     string
	Operation string
}

func (h HandOver) String() string {
	switch {
	case h.Operation != "":
		return "store " + h.Operation
	case h.Actor == faults.Store: // whose operations have the names of its frames
		return "store link " + h.Frame
	}
	return h.Actor + " " + h.Frame
}

// event is the fault trigger at this hand-over.
func (h HandOver) event() string {
	if h.Operation != "" {
		return "operation " + h.Operation
	}
	return "frame " + h.Frame
}

// unnamed are the frames that come before it is known which message they are for.
// They belong to the next message on their connection.
var unnamed = map[string]bool{"begin": true, "begin-reply": true}

// HandOvers runs the sweep's base, without faults, and returns its hand-overs.
func (p Plan) HandOvers(ctx context.Context) ([]HandOver, error) {
	p.Scenarios = []script.Scenario{SweepBase}
	outcomes, err := p.Run(ctx)
	if err != nil {
		return nil, err
	}
	base := outcomes[0]
	switch {
	case base.Err != nil:
		return nil, fmt.Errorf("the run without a fault: %w", base.Err)
	case base.Judgement.Outcome == guarantees.Violated:
		return nil, fmt.Errorf("the run without a fault breaks a claim already, so there is nothing to sweep: custody report %s", base.Dir)
	}
	run, err := evidence.Open(base.Dir)
	if err != nil {
		return nil, err
	}
	history, err := run.History()
	if err != nil {
		return nil, err
	}
	found, err := HandOvers(history)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("the run without a fault shows no hand-over: its links see no frames (custody report %s)", base.Dir)
	}
	return found, nil
}

// HandOvers returns the struck message's hand-overs in a run, in order of first
// occurrence.
func HandOvers(h *evidence.History) ([]HandOver, error) {
	type connection struct {
		link string
		conn int
	}
	var found []HandOver
	before := map[connection][]HandOver{} // unnamed ones
	for e, err := range h.Events {
		if err != nil {
			return nil, fmt.Errorf("scenarios: hand-overs of run %s: %w", h.Manifest.Run, err)
		}
		var next []HandOver
		on := connection{e.Link, e.Conn}
		switch {
		case e.Kind == evidence.FrameCarried && unnamed[e.Frame]:
			if h := (HandOver{Actor: e.Link, Frame: e.Frame}); !slices.Contains(before[on], h) {
				before[on] = append(before[on], h)
			}
		case e.Kind == evidence.FrameCarried && e.Frame != "" && len(e.Items) > 0:
			if carries(e.Items, sweepStruck) {
				next = append(before[on], HandOver{Actor: e.Link, Frame: e.Frame})
			}
			delete(before, on)
		case e.Kind == evidence.StoreCalled && carries(e.Items, sweepStruck):
			next = []HandOver{{Operation: e.Frame}}
		}
		for _, n := range next {
			if !slices.Contains(found, n) {
				found = append(found, n)
			}
		}
	}
	return found, nil
}

func carries(items []evidence.FrameItem, businessID string) bool {
	return slices.ContainsFunc(items, func(i evidence.FrameItem) bool { return i.BusinessID == businessID })
}

// SweepFault is one fault of a sweep, at any hand-over.
type SweepFault struct {
	Verb   string
	Target string      // of a process fault: broker, store, consumer
	When   script.When // relative to the hand-over
}

func (s SweepFault) String() string {
	text := s.Verb
	if s.Target != "" {
		text += " " + s.Target
	}
	if s.When != "" {
		text += " " + string(s.When)
	}
	return text
}

// consumerTarget is the Target for the sweep's consumer.
const consumerTarget = "consumer"

// SweepFaults returns all faults of a sweep, in column order.
func SweepFaults() []SweepFault {
	var all []SweepFault
	for _, f := range faults.All() {
		switch f.Strikes {
		case faults.StrikesFrame:
			if f.Action(faults.Spec{}) == f.Action(faults.Spec{After: true}) {
				all = append(all, SweepFault{Verb: f.Verb})
				continue
			}
			all = append(all, SweepFault{f.Verb, "", script.Before}, SweepFault{f.Verb, "", script.After})
		case faults.StrikesProcess:
			if f.Class == evidence.NodeLoss {
				continue // a store has one standby to lose
			}
			all = append(all, SweepFault{f.Verb, faults.Broker, script.Before}, SweepFault{f.Verb, faults.Broker, script.After})
			all = append(all, SweepFault{f.Verb, faults.Store, script.Before}, SweepFault{f.Verb, faults.Store, script.After})
			if f.Class == evidence.BrokerCrash {
				all = append(all, SweepFault{f.Verb, consumerTarget, script.Before}, SweepFault{f.Verb, consumerTarget, script.After})
			}
		case faults.StrikesStore:
			if f.Verb != faults.FsyncError && !f.Whole { // these are not tied to an operation
				all = append(all, SweepFault{f.Verb, faults.Store, script.Before})
			}
		}
	}
	return all
}

// Strike returns the scenario that strikes a hand-over, expecting the given
// guarantees (or the usual ones). ok is false if the fault cannot strike there.
func (h HandOver) Strike(s SweepFault, expect []string) (scenario script.Scenario, ok bool) {
	f, known := faults.Find(s.Verb)
	if !known {
		return script.Scenario{}, false
	}
	ofStore := h.Operation != ""
	fault := script.Fault{Label: sweepLabel, Verb: s.Verb, Target: s.Target, When: s.When, Event: h.event()}
	switch {
	case f.Strikes == faults.StrikesFrame && ofStore, f.Strikes == faults.StrikesStore && !ofStore,
		f.Strikes == faults.StrikesProcess && s.Target == faults.Store && h.Actor != faults.Store,
		s.Verb == faults.Full && h.Operation != "insert": // only an insert takes space
		return script.Scenario{}, false
	case s.Target == consumerTarget:
		if h.Actor != sweepConsumer {
			return script.Scenario{}, false
		}
		fault.Target = sweepConsumer
	case f.Strikes == faults.StrikesStore:
		fault.Target = faults.Store
	}
	if !ofStore {
		fault.On = h.Actor
	}
	if ofStore || unnamed[h.Frame] { // the second, whosever it is
		fault.N = 2
	} else {
		fault.Of = sweepStruck
	}
	if f.Timed {
		fault.By = sweepDelay
	}
	name := "sweep-" + strings.NewReplacer(" ", "-", "/", "-").Replace(h.String()+"-"+s.String())
	why := fmt.Sprintf("%s, at the hand-over %s of %s.", s, h, sweepStruck)
	return sweepScenario(name, why, fault, s.Target == consumerTarget, expect), true
}

const sweepConsumer = "c1"

func sweepScenario(name, why string, fault script.Fault, child bool, guarantees []string) script.Scenario {
	s := script.Scenario{Name: name, Why: why, Expect: guarantees,
		Steps: []script.Step{
			// First: a process takes a while to start, during which a session
			// would idle.
			script.Consumer{Name: sweepConsumer, Destination: "orders", Idempotent: true, Child: child},
			script.Producer{Name: "p1", Destination: "orders"},
		}}
	if len(guarantees) == 0 {
		s.Expect = usual()
	}
	publish := script.Publish{BusinessID: "order-", From: 1, To: 3, By: "p1", Size: sweepBody, Background: true}
	if fault.Verb == "" {
		s.Steps = append(s.Steps, publish, script.Settle{}, script.Await{Condition: script.Effect(sweepLast)})
		s.Reached = []evidence.Condition{script.Effect(sweepLast)}
		return s
	}
	s.Steps = append(s.Steps, fault, publish, script.Await{Condition: script.Fired(sweepLabel)}, script.Settle{})
	f, _ := faults.Find(fault.Verb)
	switch {
	case f.Ends:
		s.Steps = append(s.Steps, script.Start{Actor: fault.Target})
	case f.Lasts:
		s.Steps = append(s.Steps, script.Heal{Label: sweepLabel})
	}
	s.Reached = []evidence.Condition{script.Fired(sweepLabel)}
	return s
}
