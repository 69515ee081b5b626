package ledger

import (
	"testing"
	"time"

	"github.com/custodymq/custody/evidence"
)

func TestWindows(t *testing.T) {
	var w windows
	w.open("a", 10)
	w.close("b", 12)
	w.close("a", 20)
	w.open("a", 40) // never healed
	for _, c := range []struct {
		from, to time.Duration
		want     bool
	}{{0, 9, false}, {0, 10, true}, {20, 30, true}, {21, 39, false}, {21, 40, true}, {90, 99, true}} {
		if got := w.overlap(c.from, c.to); got != c.want {
			t.Errorf("[%d, %d]: %v", c.from, c.to, got)
		}
	}
}

// A settled publish is found by each of its IDs however many were settled
// since, and its kept record is what a checker would have seen.
func TestSettledIsNeverForgotten(t *testing.T) {
	const n = MaxTimelines + 3*CoolDown
	l := New(&evidence.History{})
	seq := uint64(0)
	apply := func(e evidence.Event) {
		seq++
		e.Seq, e.At = seq, time.Duration(seq)
		l.Apply(&e, func(*evidence.Event, *Message, *Receipt) {})
	}
	ids := func(i int) (publish, message string) {
		return evidence.PublishID("p1", i, 1), evidence.PublishID("m", i, 1)
	}
	for i := 1; i <= n; i++ {
		publish, message := ids(i)
		apply(evidence.Event{Kind: evidence.PublishCalled, Actor: "p1", PublishID: publish})
		apply(evidence.Event{Kind: evidence.PublishReturned, Actor: "p1", PublishID: publish, MessageID: message, Acceptance: evidence.Accepted})
		apply(evidence.Event{Kind: evidence.Delivered, Actor: "c1", PublishID: publish, MessageID: message})
		apply(evidence.Event{Kind: evidence.AckReturned, Actor: "c1", PublishID: publish, Ack: evidence.AckConfirmed})
	}
	if hot := len(l.hot) - len(l.freeHot); hot > MaxTimelines+2*CoolDown {
		t.Errorf("%d records are hot", hot)
	}
	for i := 1; i <= n; i++ {
		publish, message := ids(i)
		m := l.Message(l.LookUp(publish))
		if l.Resolve("", message, "") != m || l.PublishID(m) != publish || !m.Accepted() || len(m.Receipts) != 1 {
			t.Fatalf("%s: %+v", publish, m)
		}
		if r := m.Receipts[0]; r.Deliveries != 1 || r.Confirm.Seq != uint64(4*i) || l.Name(r.Sub) != "c1" {
			t.Fatalf("%s: %+v", publish, r)
		}
	}
}
