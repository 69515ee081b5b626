package guarantees

import (
	"fmt"
	"time"

	"github.com/custodymq/custody/evidence"
)

var recoveryBounded = Guarantee{
	Name: evidence.RecoveryBounded, Usual: "RTO",
	Text: "From the latest of heal, acceptance and a ready matching consumer, an accepted message is settled within the bound.",
	Rule: "The bound is the profile's and longer than its redelivery period. While a fault is at work the time does not run, and it starts anew when the handler itself failed. Unsettled at the end of the drain, with the bound passed, is a violation. The longest time is reported.",
	new:  func() checker { return &recovery{} },
}

type recovery struct {
	longest time.Duration
	settled int
}

func (c *recovery) on() []evidence.Kind {
	return []evidence.Kind{evidence.AckReturned, evidence.Delivered}
}

func (c *recovery) observe(l *ledger, e *evidence.Event, m *message, r *receipt, out *ruling) {
	if m == nil || l.limits.RecoveryBound <= 0 {
		return
	}
	first := r.acked.seq == e.Seq
	if l.automatic {
		first = e.Kind == evidence.Delivered && r.deliveries == 1
	}
	if !first {
		return
	}
	out.instances++
	c.settled++
	if len(l.active) > 0 {
		return
	}
	took := e.At - l.recoveryStart(m, r)
	c.longest = max(c.longest, took)
	if took > l.limits.RecoveryBound {
		f := l.finding(m, r, "too-slow", m.returned.seq, l.healed.seq, e.Seq)
		f.HandOver = BrokerToConsumer
		f.Text = fmt.Sprintf("%s was settled %v after everything was ready for it; the bound is %v", l.label(m), took, l.limits.RecoveryBound)
		out.violate(byEvents, f)
	}
}

// recoveryStart is when the last thing that a message had to wait for was there.
func (l *ledger) recoveryStart(m *message, r *receipt) time.Duration {
	start := max(l.healed.at, m.called.at, m.returned.at, r.failed.at, r.rewound.at) // it may be settled before its publisher has the answer
	if s := l.bySymbol[r.sub]; s != nil {
		start = max(start, s.liveSince.at)
	}
	return start
}

func (c *recovery) close(l *ledger, m *message, out *ruling) {
	if l.limits.RecoveryBound <= 0 || m.frozen || !m.accepted() {
		return
	}
	for _, r := range l.obliged(m) {
		if l.acknowledged(r) || !l.ready(m, r.sub) {
			continue
		}
		switch l.fateOf(m, r).fate {
		case fulfilled: // its acknowledgement had no answer, and the rows say that it was heard
			out.instances++
			continue
		case excused, kept:
			continue
		}
		out.instances++
		start := l.recoveryStart(m, r)
		switch {
		case l.drain.seq == 0:
			out.undecided(l.label(m) + ": the run has no end of its drain")
		case l.drain.at-start <= l.limits.RecoveryBound:
			out.undecided(l.label(m) + ": the drain ended before the bound had passed")
		default:
			f := l.finding(m, r, "never-settled", m.returned.seq, l.healed.seq, r.last.seq, l.drain.seq)
			f.HandOver = BrokerToConsumer
			f.Text = fmt.Sprintf("%s was not settled %v after everything was ready for it; the bound is %v", l.label(m), l.drain.at-start, l.limits.RecoveryBound)
			out.violate(byAbsence, f)
		}
	}
}

func (c *recovery) conclude(l *ledger, out *ruling) {
	if l.limits.RecoveryBound <= 0 {
		out.notApplicable = "the profile names no bound"
		return
	}
	if c.settled > 0 {
		out.measures = []Measure{{"longest recovery", milliseconds(c.longest), "ms"}}
	}
	out.layers = []Layer{{"broker", "redelivered", l.redelivered}}
}
