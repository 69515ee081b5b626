package guarantees

import "github.com/custodymq/custody/evidence"

var redeliveryOrder = Guarantee{
	Name: evidence.RedeliveryOrder, Usual: "strict FIFO, order across redelivery",
	Text: "What one producer connection publishes comes to each session of a sole consumer in publish order, redeliveries included.",
	Rule: "Each session is compared with itself, by the first time that it is handed a message. Left out are a message that its consumer gave back, one that another held when the session began, whose hold may have run out, that failed, or that was put back by command, what was published with a retry or is not accepted, what our faults struck, and all while consumers compete.",
	new:  func() checker { return &reordered{last: make(map[scope]latest)} },
}

type reordered struct {
	last      map[scope]latest // its sub is the consumer's session
	tentative []pair
}

func (c *reordered) on() []evidence.Kind { return []evidence.Kind{evidence.Delivered} }

func (c *reordered) observe(v view, e *evidence.Event, m *message, r *receipt, out *ruling) {
	if m == nil || m.Called.Seq == 0 || m.Frozen || m.Struck != nil || v.Limits.OrderScope == "" || m.Redriven > 0 {
		return
	}
	if r.Deliveries > 1 && (r.Holder == r.Session || r.Failed.Seq != 0 || r.Nacked.Seq != 0 || r.Rewound.Seq != 0) {
		return
	}
	if r.Deliveries > 1 {
		here, before := v.Session(r.Session), v.Session(r.Holder)
		if here == nil || before == nil || !before.Ended.Before(here.OpenCalled) {
			return // requeued while this session was being served
		}
	}
	switch v.Profile.Redelivers {
	case evidence.RedeliverTimeout, evidence.RedeliverClaim:
		if r.Deliveries > 1 && v.Now.At >= r.Before.At+v.Limits.RedeliveryPeriod {
			return // requeued because its hold expired
		}
	}
	k := scope{r.Session, m.Session, m.Destination, 0}
	if v.Limits.OrderScope != "connection" {
		k.key = m.Key
	}
	// A competing session may have held messages that it never handed to its
	// application.
	here := v.Session(r.Session)
	if s := v.Subscriber(r.Sub); s == nil || here == nil || s.Live != 1 || s.Ended.Seq > here.OpenCalled.Seq || v.Lingers(s) && r.Deliveries == 1 {
		delete(c.last, k)
		return
	}
	last, ok := c.last[k]
	if ok {
		out.instances++
		if m.Called.Seq < last.called {
			if len(c.tentative) < maxTentative {
				c.tentative = append(c.tentative, pair{m.Ref, last.ref, e.Seq, last.seq, r.Sub})
			} else {
				out.undecided("too many pairs out of order to remember")
			}
			return
		}
	}
	c.last[k] = latest{ref: m.Ref, called: m.Called.Seq, seq: e.Seq}
}

func (c *reordered) conclude(v view, out *ruling) {
	if v.Limits.OrderScope == "" {
		out.notApplicable = "the profile names no scope of order"
		return
	}
	v.misordered(c.tentative, "out-of-order", "%s was published before %s, and came after it on one session", out)
}
