package guarantees

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees/internal/ledger"
)

// twice violates at-most-once, proven by events alone.
func twice() *tale {
	return newTale().sub("c1#1", "g").publish(o1).deliver("c1#1", o1).deliver("c1#1", o1, again)
}

// timedOut is an await whose deadline ended the script.
var timedOut = evidence.Event{Kind: evidence.AwaitEnded, Line: 7, Left: 3, Reason: "nothing came"}

func TestJudgeRuns(t *testing.T) {
	const dup = evidence.NoDuplicateDelivery
	good := func() *tale { return newTale().sub("c1#1", "g").publish(o1).serve("c1#1", o1) }
	cases := []struct {
		name    string
		tale    *tale
		change  func(*tale)
		outcome Outcome
		exit    int
		why     string
	}{
		{"held", good(), nil, Held, ExitHeld, "held: no-duplicate-delivery"},
		{"violated", twice(), nil, Violated, ExitViolated, "handed to g 2 times"},
		{"a fault did not fire", good().fault("f", evidence.Link), nil, Inconclusive, ExitInconclusive, "fault f did not fire"},
		{"a fault found nothing to strike", good().fault("f", evidence.ClientCrash).add(evidence.Event{Kind: evidence.FaultMissed, Fault: "f", Reason: "c2 was not running"}), nil,
			Inconclusive, ExitInconclusive, "fault f struck nothing: c2 was not running"},
		{"a fault did not fire, the violation stands", twice().fault("f", evidence.Link), nil, Violated, ExitViolated, ""},
		{"not reached", good(), func(t *tale) {
			t.history.Manifest.Reached = []evidence.Condition{{Verb: evidence.CondRedelivery, Subject: "o1", Line: "redelivery of o1"}}
		}, Inconclusive, ExitInconclusive, "redelivery of o1: not handed out again"},
		{"not reached, the violation stands", twice(), func(t *tale) {
			t.history.Manifest.Reached = []evidence.Condition{{Verb: evidence.CondAcked, Subject: "o1", Line: "acked o1"}}
		}, Violated, ExitViolated, ""},
		{"cut short", good().add(timedOut), nil, Inconclusive, ExitInconclusive, "the script was cut short at line 7: nothing came; 3 steps were not run"},
		{"cut short at its last step", good().add(evidence.Event{Kind: evidence.AwaitEnded, Reason: "nothing came"}), nil, Inconclusive, ExitInconclusive, "cut short: nothing came"},
		{"an await that was met", good().add(evidence.Event{Kind: evidence.AwaitEnded, OK: true}), nil, Held, ExitHeld, ""},
		{"cut short, the violation stands", twice().add(timedOut), nil, Violated, ExitViolated, ""},
		{"not claimed", twice(), func(t *tale) { t.history.Manifest.Claims = nil }, NotClaimed, ExitNone, ""},
		{"not covered", twice().fault("f", evidence.Clock).fire("f", "clock", "", ""), func(t *tale) {
			t.history.Manifest.Claims = []evidence.Claim{{Guarantee: dup, Under: []evidence.Class{evidence.Link}}}
		}, NotClaimed, ExitNone, ""},
		{"a restart by a step of the script is a restart", twice().add(evidence.Event{Kind: evidence.Commanded, Actor: ledger.Broker, Command: evidence.CommandRestart}), func(t *tale) {
			t.history.Manifest.Claims = []evidence.Claim{{Guarantee: dup, Under: []evidence.Class{evidence.Link}}}
		}, NotClaimed, ExitNone, ""},
		{"a fault without a class is always covered", twice().fault("f", "").fire("f", "fail", "", ""), func(t *tale) {
			t.history.Manifest.Claims = []evidence.Claim{{Guarantee: dup}}
		}, Violated, ExitViolated, ""},
		{"a fault that the manifest does not list covers nothing", twice().fire("f", "clock", "", ""), nil, NotClaimed, ExitNone, ""},
		{"known, until its day", twice(), func(t *tale) {
			t.history.Manifest.StartedAt = time.Date(2026, 12, 31, 23, 0, 0, 0, time.UTC)
			t.history.Manifest.Known = []evidence.Known{{Guarantee: dup, Reason: "ticket 7", Until: "2026-12-31"}}
		}, NotClaimed, ExitNone, ""},
		{"known, and its day is over", twice(), func(t *tale) {
			t.history.Manifest.StartedAt = time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
			t.history.Manifest.Known = []evidence.Known{{Guarantee: dup, Reason: "ticket 7", Until: "2026-12-31"}}
		}, Violated, ExitViolated, ""},
		{"another one is known", twice(), func(t *tale) {
			t.history.Manifest.Known = []evidence.Known{{Guarantee: evidence.Order, Reason: "ticket 7", Until: "2999-12-31"}}
		}, Violated, ExitViolated, ""},
		{"no end", good(), func(t *tale) { t.history.Manifest.End = nil }, Inconclusive, ExitUnmeasured, "no end"},
		{"no end, whatever was seen", twice(), func(t *tale) { t.history.Manifest.End = nil }, Inconclusive, ExitUnmeasured, "no end"},
		{"damaged", good(), func(t *tale) { t.history.Damage = "rows.jsonl: cut" }, Inconclusive, ExitUnmeasured, "rows.jsonl: cut"},
		{"damaged, whatever was seen", twice(), func(t *tale) { t.history.Damage = "rows.jsonl: cut" }, Inconclusive, ExitUnmeasured, "rows.jsonl: cut"},
		{"damaged, nothing claimed", twice(), func(t *tale) { t.history.Damage, t.history.Manifest.Claims = "rows.jsonl: cut", nil }, Inconclusive, ExitUnmeasured, "rows.jsonl: cut"},
		{"damaged, not applicable", good(), func(t *tale) {
			t.history.Damage, t.history.Manifest.Inapplicable = "manifest.json: changed", "no storage inspection"
		}, Inconclusive, ExitUnmeasured, "manifest.json: changed"},
		{"events missing, whatever was seen", twice(), func(t *tale) { t.history.Manifest.End.Events = 99 }, Inconclusive, ExitUnmeasured, "not whole"},
		{"events out of order, whatever was seen", twice(), func(t *tale) { t.events[1], t.events[2] = t.events[2], t.events[1] }, Inconclusive, ExitUnmeasured, "not in order"},
		{"failed", good().failed(), nil, Inconclusive, ExitUnmeasured, "the machine stopped"},
		{"failed, what events prove stands", twice().failed(), nil, Violated, ExitViolated, ""},
		{"truncated", good(), func(t *tale) { t.history.Truncated = true }, Inconclusive, ExitUnmeasured, "in the middle"},
		{"events missing", good(), func(t *tale) { t.history.Manifest.End.Events = 99 }, Inconclusive, ExitUnmeasured, "not whole"},
		{"events out of order", good(), func(t *tale) { t.events[1], t.events[2] = t.events[2], t.events[1] }, Inconclusive, ExitUnmeasured, "not in order"},
		{"a publish escaped its link", good().call(o2).frame(ledger.FramePublish, "p1", o2, "").answer(o2, evidence.Accepted).publish(o3), nil, Inconclusive, ExitUnmeasured, "escaped"},
		{"a link that shows no publish frames", good().frame("ack", "p1", o1, "").publish(o2), nil, Held, ExitHeld, ""},
		{"not applicable", good(), func(t *tale) { t.history.Manifest.Inapplicable = "no storage inspection" }, NotApplicable, ExitNone, "no storage inspection"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if c.change != nil {
				c.change(c.tale)
			}
			j := c.tale.judge(t, dup)
			if j.Outcome != c.outcome || j.Exit != c.exit || !strings.Contains(j.Why, c.why) {
				t.Fatalf("outcome %v, exit %d, %q; want %v, %d, %q", j.Outcome, j.Exit, j.Why, c.outcome, c.exit, c.why)
			}
			if (j.Exit == ExitUnmeasured) != (j.Error != "" && j.Outcome != Violated) {
				t.Errorf("exit %d with error %q", j.Exit, j.Error)
			}
			if j.Damaged != (j.Error != "" && !strings.Contains(j.Error, "the machine stopped") && !strings.Contains(j.Error, "escaped")) {
				t.Errorf("damaged %v with error %q", j.Damaged, j.Error)
			}
			for _, v := range j.Verdicts {
				if j.Damaged && v.Outcome != Inconclusive {
					t.Errorf("damaged, and %s is %v", v.Guarantee, v.Outcome)
				}
			}
			if c.outcome == Violated && len(j.Broken) == 0 || c.outcome != Violated && len(j.Broken) > 0 {
				t.Errorf("broken %+v", j.Broken)
			}
		})
	}
}

func TestJudgeShowsTheUnexpectedOnlyIfViolated(t *testing.T) {
	j := twice().judge(t, evidence.NoPhantom)
	if v := verdictOn(j, evidence.NoDuplicateDelivery); v.Outcome != Violated || j.Exit != ExitViolated {
		t.Errorf("unexpected violation: %+v", j)
	}
	if v := verdictOn(j, evidence.Survives); v.Why != "not in the judgement" {
		t.Errorf("survives was not asked for: %+v", v)
	}
}

func TestJudgeUncoveredIsShown(t *testing.T) {
	s := twice().fault("f", evidence.Clock).fire("f", "clock", "", "")
	for i := range s.history.Manifest.Claims {
		s.history.Manifest.Claims[i].Under = nil
	}
	j := s.judge(t, evidence.NoDuplicateDelivery)
	v := verdictOn(j, evidence.NoDuplicateDelivery)
	if v.Outcome != Violated || !v.Claimed || v.Covered || len(j.Anomalies) == 0 || len(j.Broken) > 0 {
		t.Errorf("%+v", j)
	}
}

func TestJudgeErrors(t *testing.T) {
	for name, change := range map[string]func(*evidence.History){
		"newer format":    func(h *evidence.History) { h.Manifest.Format = evidence.FormatVersion + 1 },
		"no events":       func(h *evidence.History) { h.Events = nil },
		"unknown promise": func(h *evidence.History) { h.Manifest.Expect = []string{"no-bugs"} },
	} {
		s := newTale()
		s.history.Events = stream(nil)
		change(&s.history)
		if _, err := Judge(&s.history); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	s := newTale().publish(o1)
	s.history.Events = func(yield func(*evidence.Event, error) bool) { yield(nil, errors.New("bad line")) }
	j, err := Judge(&s.history)
	if err != nil || j.Exit != ExitUnmeasured || !strings.Contains(j.Error, "bad line") {
		t.Errorf("unreadable: %v %+v", err, j)
	}
}

// A correct broker that redelivers on one connection and confirms a late ACK
// on another may be recorded in any order, none of which proves a violation.
func TestLateAckBesideRedeliveryInAnyOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		s := newTale().sub("c1#1", "g").sub("c2#1", "g").publish(o1).deliver("c1#1", o1)
		// Events on the two connections are concurrent; each connection keeps
		// its own order.
		left := newTale().frame("ack", "c1", o1, "").on(evidence.AckCalled, "c1#1", o1).frame(ledger.FrameAckConfirm, "c1", o1, "").
			on(evidence.AckReturned, "c1#1", o1, ackOutcome(evidence.AckConfirmed)).events
		right := newTale().frame(ledger.FrameDeliver, "c2", o1, "").deliver("c2#1", o1, again).on(evidence.AckCalled, "c2#1", o1).
			on(evidence.AckReturned, "c2#1", o1, ackOutcome(evidence.AckRefused)).events
		for len(left)+len(right) > 0 {
			from := &left
			if len(left) == 0 || len(right) > 0 && rng.IntN(2) == 0 {
				from = &right
			}
			s.add((*from)[0])
			*from = (*from)[1:]
		}
		if v := verdictOn(s.judge(t, evidence.AckIsFinal), evidence.AckIsFinal); v.Outcome != Held {
			t.Fatalf("%v: %s %+v", v.Outcome, v.Why, s.events)
		}
	}
}

// Judging the same history always gives the same bytes.
func TestJudgeIsDeterministic(t *testing.T) {
	for _, c := range cases {
		var first []byte
		for range 3 {
			s := newTale()
			c.tell(s)
			s.publish("p2-1-1", "p3-1-1", "p4-1-1").business(row(evidence.RowEffect, "p2-1-1"), row(evidence.RowEffect, "p2-1-1"), row(evidence.RowEffect, "p8-8-1"), row(evidence.RowEffect, "p8-8-1"))
			b, err := json.Marshal(s.judge(t, c.guarantee))
			if err != nil {
				t.Fatal(err)
			}
			if first == nil {
				first = b
			} else if !bytes.Equal(first, b) {
				t.Fatalf("%s/%s differs:\n%s\n%s", c.guarantee, c.name, first, b)
			}
		}
	}
}

// Publishes settled long ago are never forgotten: every late violation is
// found on a frozen publish as on a fresh one, and all others stay counted.
func TestFrozenPublishesAreNotForgotten(t *testing.T) {
	const n = MaxMessages + 4*ledger.CoolDown
	victim := evidence.PublishID("p1", MaxMessages+7, 1)
	for _, c := range []struct {
		guarantee, kind string
		late            func(*tale)
	}{
		{evidence.NoDuplicateDelivery, "handed-twice", func(t *tale) { t.deliver("c1#1", victim, again) }},
		{evidence.StableRedeliveryID, "changed-id", func(t *tale) { t.deliver("c1#1", victim, again, answeredWith("other")) }},
		{evidence.StableRedeliveryID, "unmarked", func(t *tale) { t.deliver("c1#1", victim) }},
		{evidence.NoPhantom, "altered", func(t *tale) { t.deliver("c1#1", victim, digest("other")) }},
		{evidence.AckIsFinal, "new-session", func(t *tale) { t.end("c1#1").sub("c1#2", "g").deliver("c1#2", victim, again) }},
		{evidence.AckIsFinal, "after-bound", func(t *tale) { t.after(100*ms).deliver("c1#1", victim, again) }},
		{evidence.AckIsFinal, "row-kept", func(t *tale) { t.after(100*ms).rows("end", row(evidence.RowPending, victim)) }},
		{evidence.NoAcceptedLoss, "", func(t *tale) { t.drained("settled").rows("end") }},
		{evidence.NoAcceptedLoss, "lost-middle", func(t *tale) {
			var rows []evidence.StoredRow
			for i := range n {
				if p := evidence.PublishID("p1", i+1, 1); p != victim {
					rows = append(rows, row(evidence.RowEffect, p))
				}
			}
			t.drained("settled").rows("end").business(rows...)
		}},
		{evidence.UnknownResolved, "lookup-denied", func(t *tale) { t.lookup(victim, evidence.Rejected, evidence.Absent) }},
	} {
		t.Run(c.guarantee+"/"+c.kind, func(t *testing.T) {
			s := newTale().sub("c1#1", "g")
			for i := range n {
				p := evidence.PublishID("p1", i+1, 1)
				s.publish(p).serve("c1#1", p)
			}
			c.late(s)
			v := verdictOn(s.judge(t, c.guarantee), c.guarantee)
			if c.kind == "" {
				if v.Outcome != Held || v.Instances != n {
					t.Fatalf("%v of %d: %s", v.Outcome, v.Instances, v.Why)
				}
				return
			}
			i := slices.IndexFunc(v.Findings, func(f Finding) bool { return f.Kind == c.kind })
			if v.Outcome != Violated || i < 0 || v.Findings[i].PublishID != victim || len(v.Findings) != 1 {
				t.Fatalf("%v: %s %+v", v.Outcome, v.Why, v.Findings)
			}
		})
	}
}

func TestTableIsBoundedAndShowsFindingsFirst(t *testing.T) {
	s := newTale().sub("c1#1", "g")
	const n = MaxMessages + 500
	for i := range n {
		p := evidence.PublishID("p1", i+1, 1)
		s.publish(p).serve("c1#1", p)
	}
	last := evidence.PublishID("p1", n, 1)
	s.deliver("c1#1", last, again)
	j := s.judge(t, evidence.NoDuplicateDelivery)
	if len(j.Messages) != MaxMessages || j.MessagesLeftOut != n-MaxMessages {
		t.Fatalf("%d messages, %d left out", len(j.Messages), j.MessagesLeftOut)
	}
	if m := j.Messages[len(j.Messages)-1]; m.PublishID != last || m.Deliveries != 2 || len(m.Custody) == 0 {
		t.Errorf("the named one is missing: %+v", m)
	}
}
