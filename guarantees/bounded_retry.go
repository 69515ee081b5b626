package guarantees

import (
	"fmt"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees/internal/ledger"
)

var boundedRetry = Guarantee{
	Name: evidence.BoundedRetry, Usual: "DLQ",
	Text: "A message is attempted at most N times, across reconnects and restarts, and is then in the dead-letter queue with its reason, and nowhere else.",
	Rule: "N is the profile's limit. Counted per publish and logical subscriber; a redrive by command gives N more. Absence from the dead-letter queue needs an exact look after the last attempt has ended.",
	new:  func() checker { return retry{} },
}

type retry struct{}

func (c retry) close(v view, m *message, out *ruling) {
	limit := v.Limits.MaxAttempts
	if limit <= 0 || m.Called.Seq == 0 {
		return
	}
	allowed := limit * (1 + m.Redriven)
	for i := range m.Receipts {
		r := &m.Receipts[i]
		if r.Deliveries > allowed || m.Redriven == 0 && r.Attempt > limit {
			out.instances++
			f := v.finding(m, r, "too-many", BrokerToConsumer, r.First.Seq, r.Last.Seq)
			f.Text = fmt.Sprintf("%s was attempted %d times, and the limit is %d", v.Label(m), max(r.Deliveries, r.Attempt), allowed)
			out.violate(byEvents, f)
			continue
		}
		if m.Redriven > 0 {
			out.instances++ // it used up its attempts and was dead-lettered
		}
		if r.Acked.Seq != 0 || v.Automatic {
			continue
		}
		dead := v.EndRow(m, r.Sub, evidence.RowDead)
		if dead != nil || m.DeadLettered.Seq != 0 || r.Deliveries == allowed && r.AckCalled.Seq == 0 {
			out.instances++
			c.buried(v, m, r, dead, out)
		}
	}
}

// buried judges what became of a message that used up its attempts.
func (c retry) buried(v view, m *message, r *receipt, dead *evidence.StoredRow, out *ruling) {
	pending := v.EndRow(m, r.Sub, evidence.RowPending)
	violate := func(p proof, kind, text string) {
		f := v.finding(m, r, kind, BrokerToStore, r.First.Seq, r.Last.Seq, m.DeadLettered.Seq)
		f.Text = fmt.Sprintf("%s %s", v.Label(m), text)
		out.violate(p, f)
	}
	switch {
	case m.Purged.Seq != 0: // discarded by command
	case dead != nil && pending != nil:
		violate(byEvents, "also-pending", "is in the dead-letter queue and still pending")
	case dead != nil && dead.Cause == evidence.NoCause && m.DeadCause == evidence.NoCause, dead == nil && m.DeadLettered.Seq != 0 && m.DeadCause == evidence.NoCause:
		violate(byEvents, "no-reason", "was dead-lettered without its reason")
	case dead != nil || m.DeadLettered.Seq != 0 && !v.ExactEnd():
	case !v.ExactEnd():
		out.undecided(v.Label(m) + " used up its attempts, and no exact look shows where it is")
	case r.Nacked.Seq < r.Last.Seq && v.Now.At-r.Last.At <= v.Limits.RedeliveryPeriod:
		out.undecided(v.Label(m) + ": its last attempt had not ended when the run did")
	case pending != nil && ledger.Foreign(v.BrokerEnd, pending):
		out.undecided(v.Label(m) + " used up its attempts, and the broker left its partition")
	case pending == nil && m.TTL > 0 && (m.Called.At+m.TTL <= v.Now.At || v.ClockSet): // it expired before it could be dead-lettered
	case pending != nil:
		violate(byAbsence, "not-dead-lettered", "used up its attempts and stays pending, in no dead-letter queue")
	default:
		violate(byAbsence, "not-dead-lettered", "used up its attempts and is nowhere")
	}
}

func (retry) conclude(v view, out *ruling) {
	if v.Limits.MaxAttempts <= 0 {
		out.notApplicable = "the profile has no limit of attempts"
	}
	out.layers = []Layer{{"broker", "redelivered", v.Redelivered}}
}
