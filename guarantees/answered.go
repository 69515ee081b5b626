package guarantees

import (
	"fmt"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees/internal/ledger"
)

var answered = Guarantee{
	Name: evidence.Answered, Usual: "response time, no hang",
	Text: "Every publish, acknowledgement, look-up and subscription is answered within the bound while nothing is broken, and the broker ends when it is told to.",
	Rule: "The bound is the profile's. A client that waited as long and gave up, or was answered later, shows a violation; a publish still unanswered at the end, with the bound passed, is one too, and so is a stop that the harness waited for in vain. What a fault of ours struck is left out, and so is every call made while one was at work or within the recovery bound after it, or during which something was disturbed.",
	new:  func() checker { return &promptness{asked: make(map[symbol]stamp)} },
}

type promptness struct {
	asked   map[symbol]stamp // by session: when it requested its subscription
	longest time.Duration
	late    suspicions
}

func (c *promptness) on() []evidence.Kind {
	return []evidence.Kind{evidence.PublishReturned, evidence.SubscribeCalled, evidence.SubscribeReturned, evidence.AckReturned, evidence.LookupReturned, evidence.ProcessExited}
}

func (c *promptness) observe(v view, e *evidence.Event, m *message, r *receipt, out *ruling) {
	if v.Limits.AnswerBound <= 0 {
		return
	}
	var called stamp
	what := "a publish"
	switch e.Kind {
	case evidence.ProcessExited:
		c.stopped(v, e, out)
		return
	case evidence.SubscribeCalled:
		c.asked[v.Symbol(e.Session)] = v.Now
		return
	case evidence.SubscribeReturned:
		called, what = c.asked[v.Symbol(e.Session)], "a subscription"
	case evidence.PublishReturned:
		called = m.Called
	case evidence.AckReturned:
		if r.Acked.Seq != e.Seq && r.Acked.Seq != 0 || r.Deliveries > 1 || e.Ack == evidence.AckSent {
			return // only a message's first call is recorded
		}
		called, what = r.AckCalled, "an acknowledgement"
	case evidence.LookupReturned:
		called, what = m.Lookups[len(m.Lookups)-1].Called, "a look-up"
	}
	if called.Seq == 0 || !called.Before(v.Now) || m != nil && m.Frozen {
		return
	}
	out.instances++
	took := v.Now.At - called.At
	if !v.FaultActive() {
		c.longest = max(c.longest, took)
	}
	if took < v.Limits.AnswerBound || m != nil && m.Struck != nil {
		return
	}
	f := Finding{Kind: "late", HandOver: BrokerToClient, Events: events(called.Seq, e.Seq)}
	subject := "by " + e.Actor
	if m != nil {
		f = v.finding(m, r, "late", BrokerToClient, called.Seq, e.Seq)
		subject = "of " + v.Label(m)
	}
	f.Text = fmt.Sprintf("%s %s had no answer within %v; the bound is %v", what, subject, took, v.Limits.AnswerBound)
	c.late.add(called.At-v.Limits.RecoveryBound, v.Now.At+v.Limits.InFlightBound, f)
}

// stopped judges an order to stop, whose answer is the end of the process.
func (c *promptness) stopped(v view, e *evidence.Event, out *ruling) {
	switch {
	case e.Actor != ledger.Broker || e.Exit == nil || e.Exit.Waited < v.Limits.AnswerBound:
	case v.FaultActive():
		out.undecided("the broker was told to stop and did not, and a fault may be why")
	default:
		out.violate(byEvents, Finding{Kind: "does-not-stop", HandOver: BrokerToClient, Events: []uint64{e.Seq},
			Text: fmt.Sprintf("the broker was told to stop, did not within %v, and had to be killed", e.Exit.Waited.Round(time.Millisecond))})
	}
}

func (c *promptness) close(v view, m *message, out *ruling) {
	if v.Limits.AnswerBound <= 0 || m.Frozen || m.Called.Seq == 0 || m.Returned.Seq != 0 || m.Struck != nil {
		return
	}
	out.instances++
	switch {
	case !v.Calm(m.Called.At-v.Limits.RecoveryBound, m.Called.At+v.Limits.AnswerBound):
		out.undecided(v.Label(m) + " was never answered, and a fault or an order may be why")
	case v.Now.At-m.Called.At < v.Limits.AnswerBound:
		out.undecided(v.Label(m) + " was not answered, and the run ended before the bound had passed")
	default:
		f := v.finding(m, nil, "never", BrokerToClient)
		f.Text = fmt.Sprintf("%s was never answered; the bound is %v", v.Label(m), v.Limits.AnswerBound)
		out.violate(byAbsence, f)
	}
}

func (c *promptness) conclude(v view, out *ruling) {
	if v.Limits.AnswerBound <= 0 {
		out.notApplicable = "the profile names no bound"
		return
	}
	c.late.conclude(v, out)
	out.measures = []Measure{{"longest answer", milliseconds(c.longest), "ms"}}
}
