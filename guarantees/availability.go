package guarantees

import (
	"fmt"
	"time"

	"github.com/custodymq/custody/evidence"
)

var availability = Guarantee{
	Name: evidence.Availability, Usual: "availability",
	Text: "A publish is accepted while a matching consumer is ready and nothing is broken.",
	Rule: "Ready is subscribed before the call and until the answer; where a delivery is its own acknowledgement, with a place that is free for longer than the in-flight bound. An answer that nobody is there to receive, or a refusal without a reason, is a violation then; one that names a limit, the request itself, a permission or the other mode is not. Nothing is judged while a fault is at work, nor within the recovery bound after the latest fault, order or start of the broker's process; a rejection is none after any of these.",
	new:  func() checker { return &readiness{places: make(map[symbol]*places)} },
}

type readiness struct {
	refused suspicions
	armed   bool // a fault was armed, which may have ended an idle session before it is seen to fire
	offered int  // publishes that were not refused
	places  map[symbol]*places
}

// places counts the window of a logical subscriber whose deliveries
// acknowledge themselves. A place is taken from the publish on, and free some
// time after the delivery.
type places struct {
	window int
	recent []time.Duration // deliveries whose places may not be free yet
	freed  int
}

func (c *readiness) on() []evidence.Kind {
	return []evidence.Kind{evidence.PublishCalled, evidence.PublishReturned, evidence.SubscribeReturned, evidence.Delivered, evidence.FaultArmed}
}

func (c *readiness) placesOf(sub symbol) *places {
	p := c.places[sub]
	if p == nil {
		p = &places{}
		c.places[sub] = p
	}
	return p
}

// full reports whether every place of a subscriber may have been taken since a
// time.
func (c *readiness) full(sub symbol, since time.Duration) bool {
	p := c.placesOf(sub)
	for len(p.recent) > 0 && p.recent[0] < since {
		p.recent, p.freed = p.recent[1:], p.freed+1
	}
	return c.offered-p.freed >= max(p.window, 1)
}

func (c *readiness) observe(v view, e *evidence.Event, m *message, r *receipt, out *ruling) {
	switch e.Kind {
	case evidence.FaultArmed:
		c.armed = true
		return
	case evidence.PublishCalled:
		c.offered++
		return
	case evidence.SubscribeReturned:
		if p := c.placesOf(v.SubscriberOf(e).Name); e.OK && (p.window == 0 || e.Window < p.window) {
			p.window = e.Window
		}
		return
	case evidence.Delivered:
		if v.Automatic && r != nil && r.Deliveries == 1 {
			p := c.placesOf(r.Sub)
			p.recent = append(p.recent, e.At)
			c.full(r.Sub, e.At-10*v.Limits.InFlightBound) // drops deliveries older than any open call
		}
		return
	}
	if e.Acceptance == evidence.Declined || e.Acceptance == evidence.Rejected {
		c.offered--
	}
	if m == nil || m.Called.Seq == 0 || e.Acceptance == evidence.Unknown || m.Alias {
		return
	}
	s := v.readySince(m)
	if s == nil {
		return
	}
	if e.Acceptance == evidence.Accepted {
		out.instances++
		return
	}
	switch e.Cause {
	case evidence.NoCause, evidence.CauseNoConsumer:
	default:
		return
	}
	if m.Struck != nil || e.Acceptance == evidence.Rejected && c.armed || v.Limits.MaxPending > 0 && e.Cause == evidence.NoCause {
		return
	}
	if v.Automatic && e.Acceptance == evidence.Declined && c.full(s.Name, m.Called.At-v.Limits.InFlightBound) {
		return
	}
	out.instances++
	f := v.finding(m, nil, "false-decline", ClientToBroker, s.LiveSince.Seq, e.Seq)
	since := m.Called.At - v.Limits.RecoveryBound
	if e.Acceptance == evidence.Rejected {
		// The first publish on a broken session notices it, however late.
		f.Kind, since = "false-rejection", 0
	}
	f.Subscription = v.Name(s.Name)
	f.Text = fmt.Sprintf("%s was %s while %s was ready for it%s", v.Label(m), e.Acceptance, v.Name(s.Name), quote(e))
	c.refused.add(since, v.Now.At+v.Limits.InFlightBound, f)
}

// readySince returns a logical subscriber that has been ready since before the
// publish was called.
func (v view) readySince(m *message) *subscriber {
	for _, s := range v.Matching(m.Destination) {
		if s.Live > 0 && s.LiveSince.Before(m.Called) {
			return s
		}
	}
	return nil
}

func (c *readiness) conclude(v view, out *ruling) { c.refused.conclude(v, out) }
