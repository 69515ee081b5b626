package guarantees

import (
	"fmt"

	"github.com/custodymq/custody/evidence"
)

var boundedRetry = Guarantee{
	Name: evidence.BoundedRetry, Usual: "DLQ",
	Text: "A message is attempted at most N times, across reconnects and restarts, and is then in the dead-letter queue with its reason, and nowhere else.",
	Rule: "N is the profile's limit. Counted per publish and logical subscriber; a redrive by command gives N more. Absence from the dead-letter queue needs an exact look after the last attempt has ended.",
	new:  func() checker { return retry{} },
}

type retry struct{}

func (c retry) close(l *ledger, m *message, out *ruling) {
	limit := l.limits.MaxAttempts
	if limit <= 0 || m.called.seq == 0 {
		return
	}
	allowed := limit * (1 + m.redriven)
	for i := range m.receipts {
		r := &m.receipts[i]
		if r.deliveries > allowed || m.redriven == 0 && r.attempt > limit {
			out.instances++
			f := l.finding(m, r, "too-many", r.first.seq, r.last.seq)
			f.HandOver = BrokerToConsumer
			f.Text = fmt.Sprintf("%s was attempted %d times, and the limit is %d", l.label(m), max(r.deliveries, r.attempt), allowed)
			out.violate(byEvents, f)
			continue
		}
		if m.redriven > 0 {
			out.instances++ // its attempts were used up once, and it was found dead-lettered
		}
		if r.acked.seq != 0 || l.automatic {
			continue
		}
		dead := l.endRow(m, r.sub, evidence.RowDead)
		if dead != nil || m.deadLettered.seq != 0 || r.deliveries == allowed && r.ackCalled.seq == 0 {
			out.instances++
			c.buried(l, m, r, dead, out)
		}
	}
}

// buried judges where a message is whose attempts are used up.
func (c retry) buried(l *ledger, m *message, r *receipt, dead *evidence.StoredRow, out *ruling) {
	pending := l.endRow(m, r.sub, evidence.RowPending)
	violate := func(p proof, kind, text string) {
		f := l.finding(m, r, kind, r.first.seq, r.last.seq, m.deadLettered.seq)
		f.HandOver = BrokerToStore
		f.Text = fmt.Sprintf("%s %s", l.label(m), text)
		out.violate(p, f)
	}
	switch {
	case m.purged.seq != 0: // discarded by command
	case dead != nil && pending != nil:
		violate(byEvents, "also-pending", "is in the dead-letter queue and still pending")
	case dead != nil && dead.Cause == evidence.NoCause && m.deadCause == evidence.NoCause, dead == nil && m.deadLettered.seq != 0 && m.deadCause == evidence.NoCause:
		violate(byEvents, "no-reason", "was dead-lettered without its reason")
	case dead != nil || m.deadLettered.seq != 0 && !l.exactEnd():
	case !l.exactEnd():
		out.undecided(l.label(m) + " used up its attempts, and no exact look shows where it is")
	case r.nacked.seq < r.last.seq && l.now.at-r.last.at <= l.limits.RedeliveryPeriod:
		out.undecided(l.label(m) + ": its last attempt had not ended when the run did")
	case pending != nil && foreign(l.brokerEnd, pending):
		out.undecided(l.label(m) + " used up its attempts, and the broker left its partition")
	case pending == nil && m.ttl > 0 && (m.called.at+m.ttl <= l.now.at || l.clockSet): // it expired before it could be a dead letter
	case pending != nil:
		violate(byAbsence, "not-dead-lettered", "used up its attempts and stays pending, in no dead-letter queue")
	default:
		violate(byAbsence, "not-dead-lettered", "used up its attempts and is nowhere")
	}
}

func (retry) conclude(l *ledger, out *ruling) {
	if l.limits.MaxAttempts <= 0 {
		out.notApplicable = "the profile has no limit of attempts"
	}
	out.layers = []Layer{{"broker", "redelivered", l.redelivered}}
}
