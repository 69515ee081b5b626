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

func (c *reordered) observe(l *ledger, e *evidence.Event, m *message, r *receipt, out *ruling) {
	if m == nil || m.called.seq == 0 || m.frozen || m.struck != nil || l.limits.OrderScope == "" || m.redriven > 0 {
		return
	}
	if r.deliveries > 1 && (r.holder == r.session || r.failed.seq != 0 || r.nacked.seq != 0 || r.rewound.seq != 0) {
		return
	}
	if r.deliveries > 1 {
		here, before := l.sessions[r.session], l.sessions[r.holder]
		if here == nil || before == nil || !before.ended.before(here.openCalled) {
			return // it came back while this session was being served
		}
	}
	switch l.manifest.Profile.Redelivers {
	case evidence.RedeliverTimeout, evidence.RedeliverClaim:
		if r.deliveries > 1 && l.now.at >= r.before.at+l.limits.RedeliveryPeriod {
			return // its hold ran out, and that put it behind
		}
	}
	k := scope{r.session, m.session, m.destination, 0}
	if l.limits.OrderScope != "connection" {
		k.key = m.key
	}
	// One that competed while this session was open may have held what it never
	// got to hand over.
	here := l.sessions[r.session]
	if s := l.bySymbol[r.sub]; s == nil || here == nil || s.live != 1 || s.ended.seq > here.openCalled.seq || l.lingers(s) && r.deliveries == 1 {
		delete(c.last, k)
		return
	}
	last, ok := c.last[k]
	if ok {
		out.instances++
		if m.called.seq < last.called {
			if len(c.tentative) < maxTentative {
				c.tentative = append(c.tentative, pair{m.ref, last.ref, e.Seq, last.seq, r.sub})
			} else {
				out.undecided("too many pairs out of order to remember")
			}
			return
		}
	}
	c.last[k] = latest{ref: m.ref, called: m.called.seq, seq: e.Seq}
}

func (c *reordered) conclude(l *ledger, out *ruling) {
	if l.limits.OrderScope == "" {
		out.notApplicable = "the profile names no scope of order"
		return
	}
	l.misordered(c.tentative, "out-of-order", "%s was published before %s, and came after it on one session", out)
}
