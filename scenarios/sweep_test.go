package scenarios_test

import (
	"slices"
	"testing"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/scenarios"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems/registry"
)

func TestHandOversAreThoseOfTheStruckMessage(t *testing.T) {
	carried := func(link, frame, business string) evidence.Event {
		return evidence.Event{Kind: evidence.FrameCarried, Link: link, Frame: frame, Items: []evidence.FrameItem{{BusinessID: business}}}
	}
	events := []evidence.Event{
		carried("p1", "publish", "order-1"), carried("p1", "publish", "order-2"),
		{Kind: evidence.StoreCalled, Frame: "insert", Items: []evidence.FrameItem{{BusinessID: "order-2"}}},
		carried("p1", "accept", "order-2"), carried("c1", "deliver", "order-2"), carried("c1", "deliver", "order-2"),
		{Kind: evidence.FrameCarried, Link: "c1", Frame: "subscribe"},
		{Kind: evidence.FrameCarried, Link: "store", Conn: 2, Frame: "begin"}, carried("store", "insert", "order-1"),
		{Kind: evidence.FrameCarried, Link: "store", Frame: "begin-reply"}, carried("store", "commit", "order-2"),
	}
	found, err := scenarios.HandOvers(&evidence.History{Events: func(yield func(*evidence.Event, error) bool) {
		for i := range events {
			if !yield(&events[i], nil) {
				return
			}
		}
	}})
	want := []scenarios.HandOver{{Actor: "p1", Frame: "publish"}, {Operation: "insert"}, {Actor: "p1", Frame: "accept"}, {Actor: "c1", Frame: "deliver"},
		{Actor: "store", Frame: "begin-reply"}, {Actor: "store", Frame: "commit"}}
	if err != nil || !slices.Equal(found, want) {
		t.Errorf("found %v (%v), want %v", found, err, want)
	}
}

func TestEveryStrokeIsAScript(t *testing.T) {
	names := map[string]bool{}
	for _, h := range []scenarios.HandOver{{Actor: "p1", Frame: "accept"}, {Actor: "c1", Frame: "ack"}, {Actor: "store", Frame: "begin"}, {Actor: "store", Frame: "insert"}, {Actor: "store", Frame: "commit-reply"}, {Operation: "insert"}, {Operation: "delete"}} {
		for _, s := range scenarios.SweepFaults() {
			strike, ok := h.Strike(s, nil)
			if !ok {
				continue
			}
			if names[strike.Name] {
				t.Errorf("two strokes are called %s", strike.Name)
			}
			names[strike.Name] = true
			if err := runner.Check(strike); err != nil {
				t.Errorf("%s at %s: %v", s, h, err)
			}
			text := script.Print(strike)
			again, err := script.Parse("sweep", text)
			if err != nil || script.Print(again) != text {
				t.Errorf("%s at %s is not what its script says: %v\n%s", s, h, err, text)
			}
		}
	}
	for _, want := range []string{"sweep-c1-ack-kill-consumer-after", "sweep-p1-accept-drop", "sweep-store-link-begin-drop", "sweep-store-link-commit-reply-cut-after", "sweep-store-insert-full-store-before"} {
		if !names[want] {
			t.Errorf("no stroke is called %s; there are %d others", want, len(names))
		}
	}
}

// A sweep with a seeded defect finds the violations that the defect explains;
// without the defect it finds none.
func TestSweepFindsWhatADefectExplains(t *testing.T) {
	system, err := registry.Find("zeromq", runner.DefaultScale)
	if err != nil {
		t.Fatal(err)
	}
	var strikes []script.Scenario
	for _, h := range []scenarios.HandOver{{Actor: "p1", Frame: "accept"}, {Actor: "c1", Frame: "deliver"}, {Actor: "c1", Frame: "ack"}, {Operation: "insert"}} {
		for _, s := range []scenarios.SweepFault{{Verb: "drop"}, {Verb: "cut", When: script.Before}, {Verb: "lose-reply", Target: "store", When: script.Before}} {
			if strike, ok := h.Strike(s, []string{evidence.NoAcceptedLoss, evidence.StableRedeliveryID, evidence.SingleEffect}); ok {
				strikes = append(strikes, strike)
			}
		}
	}
	for _, c := range []struct {
		defect string
		broken []string // the runs in which the application sees a duplicate
	}{
		{"", nil},
		{"redelivery-without-mark", []string{"sweep-c1-ack-cut-before", "sweep-c1-ack-drop"}},
	} {
		plan := scenarios.Plan{Options: runner.Options{System: system, Spec: "zeromq", Seed: 1, Defect: c.defect}, Scenarios: strikes, Dir: t.TempDir(), Parallel: 4}
		outcomes, err := plan.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var broken []string
		for _, o := range outcomes {
			if o.Err != nil {
				t.Errorf("%s: %v", o.Name, o.Err)
			}
			for _, f := range o.Judgement.Broken {
				if f.Guarantee != evidence.StableRedeliveryID {
					t.Errorf("%s with %q breaks %s, which it cannot explain: %s", o.Name, c.defect, f.Guarantee, f.Text)
				}
			}
			if len(o.Judgement.Broken) > 0 {
				broken = append(broken, o.Name)
			}
		}
		slices.Sort(broken)
		if !slices.Equal(broken, c.broken) {
			t.Errorf("with defect %q broken: %q, want %q", c.defect, broken, c.broken)
		}
	}
}

func TestPlanResumes(t *testing.T) {
	system, err := registry.Find("zeromq", runner.DefaultScale)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	plan := scenarios.Plan{Options: runner.Options{System: system, Spec: "zeromq", Seed: 1}, Scenarios: []script.Scenario{scenarios.SweepBase}, Dir: dir}
	run := func() scenarios.Outcome {
		t.Helper()
		outcomes, err := plan.Run(t.Context())
		if err != nil || len(outcomes) != 1 {
			t.Fatalf("%d outcomes, %v", len(outcomes), err)
		}
		return outcomes[0]
	}
	if first := run(); first.Err != nil || first.Resumed || first.Judgement.Outcome != guarantees.Held {
		t.Fatalf("the first run: %+v", first)
	}
	if again := run(); again.Err == nil {
		t.Error("without Resume a run was made over another")
	}
	plan.Resume = true
	if taken := run(); taken.Err != nil || !taken.Resumed || taken.Judgement.Outcome != guarantees.Held {
		t.Errorf("resumed: %+v", taken)
	}
	other := scenarios.SweepBase
	other.Why = "Another script under the same name."
	plan.Scenarios = []script.Scenario{other}
	if mixed := run(); mixed.Err == nil {
		t.Error("a run of another script was taken")
	}
}
