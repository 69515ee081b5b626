package guarantees

import (
	"fmt"

	"github.com/custodymq/custody/evidence"
)

var attemptsUsed = Guarantee{
	Name: evidence.AttemptsUsed, Usual: "DLQ, no early dead letter",
	Text: "A message is dead-lettered only when its attempts are used up, it was rejected or it expired, its dead letter keeps the count, a delivery says truly whether it is the first, and what is dead is not served.",
	Rule: "The deliveries that its subscriber or its link saw are counted; where a fault, an order or the end of a session may have swallowed one, only the system's own count can prove that a dead letter was early. Served after it was seen dead is proven by a session opened after, or later than the in-flight bound; a redrive by command begins anew, which its first delivery says, and a message with several logical subscribers proves nothing.",
	new:  func() checker { return &burial{redriven: make(map[ref]bool), fresh: make(map[ref]stamp)} },
}

type burial struct {
	redriven map[ref]bool
	fresh    map[ref]stamp // when it was redriven, until the next delivery
	unnamed  bool          // a redrive named no known message
	served   []resurrection
	strange  suspicions // first deliveries whose attempt number is above 1
}

type resurrection struct {
	ref       ref
	dead, seq uint64
}

func (c *burial) on() []evidence.Kind {
	return []evidence.Kind{evidence.Delivered, evidence.Commanded}
}

func (c *burial) observe(v view, e *evidence.Event, m *message, r *receipt, out *ruling) {
	if m != nil && m.Struck == nil && v.Profile.MarksAgain && e.Attempt > 1 && e.Mark == evidence.MarkFirst {
		f := v.finding(m, r, "mark-denies-count", BrokerToConsumer, e.Seq)
		f.Text = fmt.Sprintf("a delivery of %s says that it is the first, and attempt %d", v.Label(m), e.Attempt)
		out.violate(byEvents, f)
	}
	switch {
	case e.Kind == evidence.Commanded:
		if e.Command == evidence.CommandRedrive {
			if m := v.Resolve(e.PublishID, e.MessageID, e.BusinessID); m != nil {
				for _, o := range v.Group(m) {
					c.redriven[o.Ref] = true
					if len(o.Receipts) == 1 && o.Sent <= o.Receipts[0].Deliveries { // no delivery waits in its client's buffer
						c.fresh[o.Ref] = v.Now
					}
				}
			} else {
				c.unnamed = true
			}
		}
	case m == nil:
	case r.Deliveries == 1:
		c.first(v, e, m, r, m.Called, "first delivery", out)
	case c.fresh[m.Ref].Seq != 0:
		since := c.fresh[m.Ref]
		delete(c.fresh, m.Ref)
		c.first(v, e, m, r, since, "first delivery after its redrive", out)
	case m.DeadLettered.Seq != 0:
		c.again(v, e, m, m.DeadLettered)
	case m.Lookups != nil && m.Sole():
		for i := range m.Lookups {
			if k := &m.Lookups[i]; k.Standing == evidence.Dead {
				c.again(v, e, m, k.Returned)
				break
			}
		}
	}
}

// first judges the attempt number of a subscriber's first delivery since the
// publish or a redrive.
func (c *burial) first(v view, e *evidence.Event, m *message, r *receipt, since stamp, which string, out *ruling) {
	if e.Attempt == 0 {
		return
	}
	out.instances++
	if e.Attempt == 1 || len(m.Receipts) > 1 || since.Seq == 0 || m.Frozen || m.Struck != nil {
		return
	}
	s := v.Subscriber(r.Sub)
	// The broker may have noticed a session's end only after the call.
	if known := since.At - v.Limits.InFlightBound; s == nil || s.Died.Seq != 0 && s.Died.At >= known || s.Ended.Seq != 0 && s.Ended.At >= known ||
		v.Limits.RedeliveryPeriod > 0 && v.Now.At >= since.At+v.Limits.RedeliveryPeriod {
		return
	}
	f := v.finding(m, r, "attempt-of-nothing", BrokerToConsumer, e.Seq)
	f.Text = fmt.Sprintf("the %s of %s says that it is attempt %d", which, v.Label(m), e.Attempt)
	c.strange.add(since.At+1, v.Now.At+v.Limits.InFlightBound, f)
}

// again records a delivery of a message that was seen dead-lettered.
func (c *burial) again(v view, e *evidence.Event, m *message, dead stamp) {
	s := v.SessionOf(e)
	late := v.Limits.InFlightBound > 0 && v.Now.At > dead.At+v.Limits.InFlightBound && !v.Delayed(s.Actor.Name, dead.At+v.Limits.InFlightBound, v.Now.At)
	if len(m.Receipts) == 1 && (dead.Before(s.OpenCalled) || dead.Before(v.Now) && late) && len(c.served) < maxDoubts {
		c.served = append(c.served, resurrection{m.Ref, dead.Seq, e.Seq})
	}
}

func (c *burial) close(v view, m *message, out *ruling) {
	if m.Frozen || m.Called.Seq == 0 || m.Redriven > 0 || c.unnamed || c.redriven[m.Ref] || len(m.Receipts) > 1 {
		return
	}
	var r *receipt
	if len(m.Receipts) == 1 {
		r = &m.Receipts[0]
	} else {
		r = &receipt{}
	}
	row, snapshot := c.deadRow(m)
	if row == nil && m.DeadLettered.Seq == 0 {
		return
	}
	out.instances++
	cause := m.DeadCause
	if row != nil {
		cause = row.Cause
	}
	c.early(v, m, r, row, cause, out)
	if row == nil || m.Struck != nil {
		return
	}
	bound := snapshot.At + v.Limits.InFlightBound
	if r.Last.At > bound && r.Last.Seq > snapshot.Seq && !v.DelayedSince(0) {
		c.served = append(c.served, resurrection{m.Ref, snapshot.Seq, r.Last.Seq})
	}
	if row.Attempts == 0 && r.Attempt > 0 && (cause == evidence.CauseAttempts || cause == evidence.CauseStated) {
		f := v.finding(m, r, "count-forgotten", BrokerToStore, r.Last.Seq, snapshot.Seq)
		f.Text = fmt.Sprintf("%s had %d attempts, and its dead letter has none", v.Label(m), r.Attempt)
		out.violate(byEvents, f)
	}
}

// deadRow returns the first dead-lettered row of a message in a snapshot.
func (c *burial) deadRow(m *message) (*evidence.StoredRow, *evidence.Snapshot) {
	for _, s := range m.Rows {
		if s.Certain && s.Row.State == evidence.RowDead {
			return s.Row, s.Snapshot
		}
	}
	return nil, nil
}

// early judges whether a message was dead-lettered too early.
func (c *burial) early(v view, m *message, r *receipt, row *evidence.StoredRow, cause evidence.Cause, out *ruling) {
	limit := v.Limits.MaxAttempts
	handed := max(r.Deliveries, m.Sent) // a frame seen on a link may still wait in the client's buffer
	seen, whose := handed, "seen"
	switch {
	case limit <= 0 || cause != evidence.CauseAttempts && cause != evidence.CauseStated || m.TTL > 0:
		return
	case seen >= limit:
		return
	case row != nil && row.Attempts > 0:
		if seen, whose = row.Attempts, "counted"; seen >= limit && !c.undisturbed(v, m, r) {
			return
		}
		if seen >= limit {
			seen, whose = handed, "seen"
		}
	case !c.undisturbed(v, m, r):
		out.undecided(fmt.Sprintf("%s was dead-lettered, and not all of its attempts can have been seen", v.Label(m)))
		return
	}
	f := v.finding(m, r, "early", BrokerToStore, r.Last.Seq, m.DeadLettered.Seq)
	f.Text = fmt.Sprintf("%s was dead-lettered after %d attempts were %s, and the limit is %d", v.Label(m), seen, whose, limit)
	out.violate(byEvents, f)
}

// undisturbed reports whether nothing in the run can have hidden a delivery.
func (c *burial) undisturbed(v view, m *message, r *receipt) bool {
	s := v.Subscriber(r.Sub)
	return m.Struck == nil && v.Fired.Seq == 0 && !v.Failed() && s != nil && s.Died.Seq == 0 && s.Ended.Seq == 0
}

func (c *burial) conclude(v view, out *ruling) {
	c.strange.conclude(v, out)
	for _, s := range c.served {
		m := v.Message(s.ref)
		if c.unnamed || c.redriven[s.ref] || m.Redriven > 0 {
			continue
		}
		f := v.finding(m, nil, "served-when-dead", BrokerToConsumer, s.dead, s.seq)
		f.Text = fmt.Sprintf("%s was seen dead-lettered, and was served after that", v.Label(m))
		out.violate(byEvents, f)
	}
}
