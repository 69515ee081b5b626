package guarantees

import (
	"fmt"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees/internal/ledger"
)

var redeliveryPaced = Guarantee{
	Name: evidence.RedeliveryPaced, Usual: "back-off",
	Text: "After a consumer has given a message back, it does not come again before the time that the profile states.",
	Rule: "From the call of a NACK that was confirmed to the next delivery to the same logical subscriber, by one monotonic clock: the system cannot have known of the NACK before its call. Where the system was started anew in between, or an administrator sent the message back, nothing is compared, and neither are struck deliveries.",
	new:  func() checker { return &pacing{open: make(map[givenBack]*nack)} },
}

// pacing tracks each NACK until the message is redelivered.
type pacing struct {
	open map[givenBack]*nack // bounded by the unsettled messages: the next delivery removes the entry
	soon time.Duration       // the shortest delay seen
}

type givenBack struct {
	ref ref
	sub symbol
}

type nack struct {
	called    stamp
	session   string
	again     stamp // the next delivery
	confirmed bool
}

func (c *pacing) on() []evidence.Kind {
	return []evidence.Kind{evidence.NackCalled, evidence.NackReturned, evidence.Delivered, evidence.SessionEnded, evidence.ProcessExited, evidence.DeadLettered}
}

func (c *pacing) observe(v view, e *evidence.Event, m *message, r *receipt, out *ruling) {
	switch e.Kind {
	case evidence.ProcessExited:
		if e.Actor == ledger.Broker {
			clear(c.open) // a restarted broker may deliver its stored messages at once
		}
		return
	case evidence.SessionEnded:
		for k, n := range c.open {
			if n.session == e.Session && !n.confirmed {
				delete(c.open, k) // the end of a session may return its messages at once
			}
		}
		return
	}
	if m == nil || v.Limits.NackDelay <= 0 {
		return
	}
	if e.Kind == evidence.DeadLettered { // it may be redriven at once
		for i := range m.Receipts {
			delete(c.open, givenBack{m.Ref, m.Receipts[i].Sub})
		}
		return
	}
	if r == nil {
		return
	}
	k := givenBack{m.Ref, r.Sub}
	n := c.open[k]
	switch {
	case e.Kind == evidence.NackCalled:
		c.open[k] = &nack{called: ledger.StampOf(e), session: e.Session}
		return
	case n == nil:
		return
	case e.Kind == evidence.Delivered:
		if n.again.Seq == 0 {
			n.again = ledger.StampOf(e)
		}
	case e.Ack == evidence.AckConfirmed:
		n.confirmed = true
	default: // refused: another session holds it; sent or unknown: the redelivery may have another cause
		delete(c.open, k)
		return
	}
	if n.confirmed && n.again.Seq != 0 {
		delete(c.open, k)
		c.judge(v, m, r, n, out)
	}
}

func (c *pacing) judge(v view, m *message, r *receipt, n *nack, out *ruling) {
	if m.StruckAt(ledger.FrameDeliver) {
		return
	}
	out.instances++
	waited := n.again.At - n.called.At
	if out.instances == 1 || waited < c.soon {
		c.soon = waited
	}
	if waited >= v.Limits.NackDelay {
		return
	}
	f := v.finding(m, r, "too-soon", BrokerToConsumer, n.called.Seq, n.again.Seq)
	f.Text = fmt.Sprintf("%s came again %v after the call of its NACK, and the profile states at least %v", v.Label(m), waited, v.Limits.NackDelay)
	out.violate(byEvents, f)
}

func (c *pacing) conclude(v view, out *ruling) {
	if v.Limits.NackDelay <= 0 {
		out.notApplicable = "the profile states no delay after a NACK"
	}
	if out.instances > 0 {
		out.measures = []Measure{{"shortest wait after a NACK", milliseconds(c.soon), "ms"}}
	}
}
