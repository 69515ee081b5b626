package guarantees

import (
	"fmt"

	"github.com/custodymq/custody/evidence"
)

var attemptsUsed = Guarantee{
	Name: evidence.AttemptsUsed, Usual: "DLQ, no early dead letter",
	Text: "A message is dead-lettered only when its attempts are used up, it was rejected or it expired, its dead letter keeps the count, a first delivery says so, and what is dead is not served.",
	Rule: "The deliveries that its subscriber or its link saw are counted; where a fault, an order or the end of a session may have swallowed one, only the system's own count can prove that a dead letter was early. Served after it was seen dead is proven by a session opened after, or later than the in-flight bound; a redrive by command begins anew, and a message with several logical subscribers proves nothing.",
	new:  func() checker { return &burial{redriven: make(map[ref]bool)} },
}

type burial struct {
	redriven map[ref]bool
	unnamed  bool // an order to redrive that names no message we know
	served   []resurrection
	strange  suspicions // first deliveries that are none, by their count
}

type resurrection struct {
	ref       ref
	dead, seq uint64
}

func (c *burial) on() []evidence.Kind {
	return []evidence.Kind{evidence.Delivered, evidence.Commanded}
}

func (c *burial) observe(l *ledger, e *evidence.Event, m *message, r *receipt, out *ruling) {
	switch {
	case e.Kind == evidence.Commanded:
		if e.Command == evidence.CommandRedrive {
			if m := l.resolve(e.PublishID, e.MessageID, e.BusinessID); m != nil {
				for _, o := range l.group(m) {
					c.redriven[o.ref] = true
				}
			} else {
				c.unnamed = true
			}
		}
	case m == nil:
	case r.deliveries == 1:
		c.first(l, e, m, r, out)
	case m.deadLettered.seq != 0:
		c.again(l, e, m, m.deadLettered)
	case m.lookups != nil && m.slot.nextOfBusiness == 0:
		for i := range m.lookups {
			if k := &m.lookups[i]; k.standing == evidence.Dead {
				c.again(l, e, m, k.returned)
				break
			}
		}
	}
}

// first judges what the first delivery that a subscriber sees says of itself.
func (c *burial) first(l *ledger, e *evidence.Event, m *message, r *receipt, out *ruling) {
	if e.Attempt == 0 {
		return
	}
	out.instances++
	if e.Attempt == 1 || len(m.receipts) > 1 || m.called.seq == 0 || m.frozen || m.struck != nil {
		return
	}
	s := l.bySymbol[r.sub]
	// Its broker may have learnt of the end of a session only after the call.
	if since := m.called.at - l.limits.InFlightBound; s == nil || s.died.seq != 0 && s.died.at >= since || s.ended.seq != 0 && s.ended.at >= since ||
		l.limits.RedeliveryPeriod > 0 && l.now.at >= m.called.at+l.limits.RedeliveryPeriod {
		return
	}
	f := l.finding(m, r, "attempt-of-nothing", e.Seq)
	f.HandOver = BrokerToConsumer
	f.Text = fmt.Sprintf("the first delivery of %s says that it is attempt %d", l.label(m), e.Attempt)
	c.strange.add(m.called.at, l.now.at+l.limits.InFlightBound, f)
}

// again notes a delivery of what was seen dead.
func (c *burial) again(l *ledger, e *evidence.Event, m *message, dead stamp) {
	s := l.sessionOf(e)
	late := l.limits.InFlightBound > 0 && l.now.at > dead.at+l.limits.InFlightBound && !l.delayedByUs(s.actor.name, dead.at+l.limits.InFlightBound)
	if len(m.receipts) == 1 && (dead.before(s.openCalled) || dead.before(l.now) && late) && len(c.served) < maxDoubts {
		c.served = append(c.served, resurrection{m.ref, dead.seq, e.Seq})
	}
}

func (c *burial) close(l *ledger, m *message, out *ruling) {
	if m.frozen || m.called.seq == 0 || m.redriven > 0 || c.unnamed || c.redriven[m.ref] || len(m.receipts) > 1 {
		return
	}
	var r *receipt
	if len(m.receipts) == 1 {
		r = &m.receipts[0]
	} else {
		r = &receipt{}
	}
	row, at := c.deadRow(l, m)
	if row == nil && m.deadLettered.seq == 0 {
		return
	}
	out.instances++
	cause := m.deadCause
	if row != nil {
		cause = row.Cause
	}
	c.early(l, m, r, row, cause, out)
	if row == nil || m.struck != nil {
		return
	}
	snapshot := &l.snapshots[at]
	bound := snapshot.At + l.limits.InFlightBound
	if r.last.at > bound && r.last.seq > snapshot.Seq && len(l.held) == 0 {
		c.served = append(c.served, resurrection{m.ref, snapshot.Seq, r.last.seq})
	}
	if row.Attempts == 0 && r.attempt > 0 && (cause == evidence.CauseAttempts || cause == evidence.CauseStated) {
		f := l.finding(m, r, "count-forgotten", r.last.seq, snapshot.Seq)
		f.HandOver = BrokerToStore
		f.Text = fmt.Sprintf("%s had %d attempts, and its dead letter has none", l.label(m), r.attempt)
		out.violate(byEvents, f)
	}
}

// deadRow is the first dead letter of a message that a snapshot shows.
func (c *burial) deadRow(l *ledger, m *message) (*evidence.StoredRow, int) {
	for _, s := range m.rows {
		if s.certain && s.row.State == evidence.RowDead {
			return s.row, s.snapshot
		}
	}
	return nil, -1
}

// early judges whether a message became a dead letter too soon.
func (c *burial) early(l *ledger, m *message, r *receipt, row *evidence.StoredRow, cause evidence.Cause, out *ruling) {
	limit := l.limits.MaxAttempts
	handed := max(r.deliveries, m.sent) // what a link saw may wait in its client still
	seen, whose := handed, "seen"
	switch {
	case limit <= 0 || cause != evidence.CauseAttempts && cause != evidence.CauseStated || m.ttl > 0:
		return
	case seen >= limit:
		return
	case row != nil && row.Attempts > 0:
		if seen, whose = row.Attempts, "counted"; seen >= limit && !c.undisturbed(l, m, r) {
			return
		}
		if seen >= limit {
			seen, whose = handed, "seen"
		}
	case !c.undisturbed(l, m, r):
		out.undecided(fmt.Sprintf("%s was dead-lettered, and not all of its attempts can have been seen", l.label(m)))
		return
	}
	f := l.finding(m, r, "early", r.last.seq, m.deadLettered.seq)
	f.HandOver = BrokerToStore
	f.Text = fmt.Sprintf("%s was dead-lettered after %d attempts were %s, and the limit is %d", l.label(m), seen, whose, limit)
	out.violate(byEvents, f)
}

// undisturbed: nothing in the run can have swallowed a delivery of a message.
func (c *burial) undisturbed(l *ledger, m *message, r *receipt) bool {
	s := l.bySymbol[r.sub]
	return m.struck == nil && l.fired.seq == 0 && len(l.failures) == 0 && s != nil && s.died.seq == 0 && s.ended.seq == 0
}

func (c *burial) conclude(l *ledger, out *ruling) {
	c.strange.conclude(l, out)
	for _, s := range c.served {
		m := l.message(s.ref)
		if c.unnamed || c.redriven[s.ref] || m.redriven > 0 {
			continue
		}
		f := l.finding(m, nil, "served-when-dead", s.dead, s.seq)
		f.HandOver = BrokerToConsumer
		f.Text = fmt.Sprintf("%s was seen dead-lettered, and was served after that", l.label(m))
		out.violate(byEvents, f)
	}
}
