package guarantees

import (
	"fmt"

	"github.com/custodymq/custody/evidence"
)

var availability = Guarantee{
	Name: evidence.Availability, Usual: "availability",
	Text: "A publish is accepted while a matching consumer is ready and nothing is broken.",
	Rule: "Ready is subscribed before the call and until the answer. An answer that nobody is there to receive, or a refusal without a reason, is a violation then; one that names a limit, the request itself, a permission or the other mode is not. Nothing is judged while a fault is at work, nor within the recovery bound after the latest fault, order or start of the broker's process; a rejection is none after any of these.",
	new:  func() checker { return &readiness{} },
}

type readiness struct {
	refused suspicions
	armed   bool // a fault was armed, which may end an idle session before it is seen to fire
}

func (c *readiness) on() []evidence.Kind {
	return []evidence.Kind{evidence.PublishReturned, evidence.FaultArmed}
}

func (c *readiness) observe(v view, e *evidence.Event, m *message, _ *receipt, out *ruling) {
	c.armed = c.armed || e.Kind == evidence.FaultArmed
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
	out.instances++
	f := v.finding(m, nil, "false-decline", ClientToBroker, s.LiveSince.Seq, e.Seq)
	since := m.Called.At - v.Limits.RecoveryBound
	if e.Acceptance == evidence.Rejected {
		// A broken session is noticed by the first publish on it, however late.
		f.Kind, since = "false-rejection", 0
	}
	f.Subscription = v.Name(s.Name)
	f.Text = fmt.Sprintf("%s was %s while %s was ready for it%s", v.Label(m), e.Acceptance, v.Name(s.Name), quote(e))
	c.refused.add(since, v.Now.At+v.Limits.InFlightBound, f)
}

// readySince finds a logical subscriber that has been ready since before the
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
