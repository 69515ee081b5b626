package evidence

import (
	"strings"
	"testing"
)

func TestConditions(t *testing.T) {
	ev := func(k Kind, business string) Event { return Event{Kind: k, BusinessID: business} }
	snap := func(checkpoint string, rows ...StoredRow) Snapshot {
		return Snapshot{Checkpoint: checkpoint, Source: SourceBroker, Trust: Exact, Count: len(rows), Rows: rows}
	}
	pending := StoredRow{State: RowPending, BusinessID: "o1"}
	handed := func(publish, sub string) Event {
		return Event{Kind: Delivered, BusinessID: "o1", PublishID: publish, Subscription: sub}
	}
	cases := []struct {
		name    string
		cond    Condition
		history []any // Event or Snapshot
		met     bool
		missing string
	}{
		{"fired", Condition{Verb: CondFired, Subject: "f"}, []any{Event{Kind: FaultFired, Fault: "f"}}, true, ""},
		{"another fault fired", Condition{Verb: CondFired, Subject: "f"}, []any{Event{Kind: FaultFired, Fault: "g"}}, false, "did not fire"},
		{"armed is not fired", Condition{Verb: CondFired, Subject: "f"}, []any{Event{Kind: FaultArmed, Fault: "f"}}, false, "did not fire"},
		{"delivered twice", Condition{Verb: CondDelivered, Subject: "o1", Times: 2}, []any{handed("p-1-1", "c"), handed("p-1-1", "c")}, true, ""},
		{"delivered once of two", Condition{Verb: CondDelivered, Subject: "o1", Times: 2}, []any{handed("p-1-1", "c")}, false, "1 of 2"},
		{"redelivery", Condition{Verb: CondRedelivery, Subject: "o1"}, []any{handed("p-1-1", "c"), handed("p-1-1", "c")}, true, ""},
		{"fan-out is no redelivery", Condition{Verb: CondRedelivery, Subject: "o1"}, []any{handed("p-1-1", "a"), handed("p-1-1", "b")}, false, "again"},
		{"a retry is no redelivery", Condition{Verb: CondRedelivery, Subject: "o1"}, []any{handed("p-1-1", "a"), handed("p-1-2", "a")}, false, "again"},
		{"acceptance", Condition{Verb: CondAcceptance, Subject: "o1", Word: "declined"}, []any{Event{Kind: PublishReturned, BusinessID: "o1", Acceptance: Declined}}, true, ""},
		{"another acceptance", Condition{Verb: CondAcceptance, Subject: "o1", Word: "declined"}, []any{Event{Kind: PublishReturned, BusinessID: "o1", Acceptance: Accepted}}, false, "answered"},
		{"effect", Condition{Verb: CondEffect, Subject: "o1"}, []any{ev(EffectCommitted, "o1")}, true, ""},
		{"a called effect is none", Condition{Verb: CondEffect, Subject: "o1"}, []any{ev(EffectCalled, "o1")}, false, "no effect"},
		{"absorbed", Condition{Verb: CondAbsorbed, Subject: "o1", Times: 2}, []any{ev(EffectAbsorbed, "o1"), ev(EffectAbsorbed, "o1")}, true, ""},
		{"acked, sent", Condition{Verb: CondAcked, Subject: "o1"}, []any{Event{Kind: AckReturned, BusinessID: "o1", Ack: AckSent}}, true, ""},
		{"acked, refused", Condition{Verb: CondAcked, Subject: "o1"}, []any{Event{Kind: AckReturned, BusinessID: "o1", Ack: AckRefused}}, false, "acknowledgement"},
		{"in flight", Condition{Verb: CondInFlight, Subject: "f", Times: 2}, []any{
			Event{Kind: PublishCalled, PublishID: "p-1-1"}, Event{Kind: PublishCalled, PublishID: "p-2-1"}, Event{Kind: FaultFired, Fault: "f"}}, true, ""},
		{"in flight, one settled before", Condition{Verb: CondInFlight, Subject: "f", Times: 2}, []any{
			Event{Kind: PublishCalled, PublishID: "p-1-1"}, Event{Kind: PublishCalled, PublishID: "p-2-1"},
			Event{Kind: PublishReturned, PublishID: "p-1-1", Acceptance: Accepted},
			Event{Kind: AckReturned, PublishID: "p-1-1", Ack: AckConfirmed}, Event{Kind: FaultFired, Fault: "f"}}, false, "1 of 2"},
		{"in flight, one settled and not answered", Condition{Verb: CondInFlight, Subject: "f", Times: 2}, []any{
			Event{Kind: PublishCalled, PublishID: "p-1-1"}, Event{Kind: PublishCalled, PublishID: "p-2-1"},
			Event{Kind: AckReturned, PublishID: "p-1-1", Ack: AckConfirmed}, Event{Kind: FaultFired, Fault: "f"}}, true, ""},
		{"in flight when the stroke began, and given up before it was certain", Condition{Verb: CondInFlight, Subject: "f"}, []any{
			Event{Kind: PublishCalled, PublishID: "p-1-1"}, Event{Kind: Commanded, Fault: "f"},
			Event{Kind: AckReturned, PublishID: "p-1-1", Ack: AckConfirmed}, Event{Kind: PublishReturned, PublishID: "p-1-1"}, Event{Kind: FaultFired, Fault: "f"}}, true, ""},
		{"in flight, one refused before", Condition{Verb: CondInFlight, Subject: "f", Times: 2}, []any{
			Event{Kind: PublishCalled, PublishID: "p-1-1"}, Event{Kind: PublishCalled, PublishID: "p-2-1"},
			Event{Kind: PublishReturned, PublishID: "p-1-1", Acceptance: Rejected}, Event{Kind: FaultFired, Fault: "f"}}, false, "1 of 2"},
		{"stored", Condition{Verb: CondStored, Subject: "o1"}, []any{snap("mid", pending)}, true, ""},
		{"stored at another checkpoint", Condition{Verb: CondStored, Subject: "o1", Word: "end"}, []any{snap("mid", pending)}, false, "pending row"},
		{"dead", Condition{Verb: CondDead, Subject: "o1"}, []any{snap("end", StoredRow{State: RowDead, BusinessID: "o1"})}, true, ""},
		{"dead, not yet", Condition{Verb: CondDead, Subject: "o1"}, []any{snap("end", pending)}, false, "dead"},
		{"resolved", Condition{Verb: CondResolved, Subject: "o1"}, []any{Event{Kind: LookupReturned, BusinessID: "o1", Acceptance: Rejected}}, true, ""},
		{"resolved, unknown", Condition{Verb: CondResolved, Subject: "o1"}, []any{Event{Kind: LookupReturned, BusinessID: "o1"}}, false, "lookup"},
		{"connected", Condition{Verb: CondConnected, Subject: "c1", Times: 2}, []any{Event{Kind: SessionOpened, Actor: "c1"}, Event{Kind: SessionOpened, Actor: "c1"}}, true, ""},
		{"failed", Condition{Verb: CondFailed, Subject: "o1"}, []any{ev(HandlerFailed, "o1")}, true, ""},
		{"carried", Condition{Verb: CondCarried, Subject: "c1", Word: "ack"}, []any{Event{Kind: FrameCarried, Link: "c1", Frame: "ack"}}, true, ""},
		{"carried, dropped", Condition{Verb: CondCarried, Subject: "c1", Word: "ack"}, []any{Event{Kind: FrameCarried, Link: "c1", Frame: "ack", Struck: "drop"}}, false, "frames"},
		{"gone", Condition{Verb: CondGone, Subject: "o1"}, []any{snap("a", pending), snap("b")}, true, ""},
		{"gone and back", Condition{Verb: CondGone, Subject: "o1"}, []any{snap("a"), snap("b", pending)}, false, "has a pending row"},
		{"gone, never looked", Condition{Verb: CondGone, Subject: "o1"}, nil, false, "no broker snapshot"},
		{"unknown verb", Condition{Verb: "dreamt"}, nil, false, "dreamt"},
	}
	tested := map[string]bool{}
	for _, c := range cases {
		tested[c.cond.Verb] = true
		t.Run(c.name, func(t *testing.T) {
			f := NewConditions([]Condition{c.cond})
			for _, x := range c.history {
				switch x := x.(type) {
				case Event:
					f.Observe(&x)
				case Snapshot:
					f.ObserveSnapshot(x)
				}
			}
			if f.Met(0) != c.met {
				t.Fatalf("Met = %v, want %v (missing %q)", f.Met(0), c.met, f.Missing(0))
			}
			if got := f.Missing(0); (got == "") != c.met || !strings.Contains(got, c.missing) {
				t.Errorf("Missing = %q, want it to say %q", got, c.missing)
			}
		})
	}
	for v := range verbs {
		if !tested[v] {
			t.Errorf("condition %q has no case", v)
		}
	}
}
