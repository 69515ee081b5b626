package guarantees

import (
	"fmt"
	"time"

	"github.com/custodymq/custody/evidence"
)

var answered = Guarantee{
	Name: evidence.Answered, Usual: "response time, no hang",
	Text: "Every publish, acknowledgement, look-up and subscription is answered within the bound while nothing is broken.",
	Rule: "The bound is the profile's. A client that waited as long and gave up, or was answered later, shows a violation; a publish still unanswered at the end, with the bound passed, is one too. What a fault of ours struck is left out, and so is every call made while one was at work or within the recovery bound after it, or during which something was disturbed.",
	new:  func() checker { return &promptness{asked: make(map[uint32]stamp)} },
}

type promptness struct {
	asked   map[uint32]stamp // by session: its subscription, or its latest acknowledgement of one message
	longest time.Duration
	late    suspicions
}

func (c *promptness) on() []evidence.Kind {
	return []evidence.Kind{evidence.PublishReturned, evidence.SubscribeCalled, evidence.SubscribeReturned, evidence.AckReturned, evidence.LookupReturned}
}

func (c *promptness) observe(l *ledger, e *evidence.Event, m *message, r *receipt, out *ruling) {
	if l.limits.AnswerBound <= 0 {
		return
	}
	var called stamp
	what := "a publish"
	switch e.Kind {
	case evidence.SubscribeCalled:
		c.asked[l.symbol(e.Session)] = l.now
		return
	case evidence.SubscribeReturned:
		called, what = c.asked[l.symbol(e.Session)], "a subscription"
	case evidence.PublishReturned:
		called = m.called
	case evidence.AckReturned:
		if r.acked.seq != e.Seq && r.acked.seq != 0 || r.deliveries > 1 || e.Ack == evidence.AckSent {
			return // only the first call of a message is remembered
		}
		called, what = r.ackCalled, "an acknowledgement"
	case evidence.LookupReturned:
		called, what = m.lookups[len(m.lookups)-1].called, "a look-up"
	}
	if called.seq == 0 || !called.before(l.now) || m != nil && m.frozen {
		return
	}
	out.instances++
	took := l.now.at - called.at
	if len(l.active) == 0 {
		c.longest = max(c.longest, took)
	}
	if took < l.limits.AnswerBound || m != nil && m.struck != nil {
		return
	}
	f := Finding{Kind: "late", HandOver: BrokerToClient, Events: events(called.seq, e.Seq)}
	subject := "by " + e.Actor
	if m != nil {
		f = l.finding(m, r, "late", called.seq, e.Seq)
		f.HandOver = BrokerToClient
		subject = "of " + l.label(m)
	}
	f.Text = fmt.Sprintf("%s %s had no answer within %v; the bound is %v", what, subject, took, l.limits.AnswerBound)
	c.late.add(called.at-l.limits.RecoveryBound, l.now.at+l.limits.InFlightBound, f)
}

func (c *promptness) close(l *ledger, m *message, out *ruling) {
	if l.limits.AnswerBound <= 0 || m.frozen || m.called.seq == 0 || m.returned.seq != 0 || m.struck != nil {
		return
	}
	out.instances++
	switch {
	case !l.calm(m.called.at-l.limits.RecoveryBound, m.called.at+l.limits.AnswerBound):
		out.undecided(l.label(m) + " was never answered, and a fault or an order may be why")
	case l.now.at-m.called.at < l.limits.AnswerBound:
		out.undecided(l.label(m) + " was not answered, and the run ended before the bound had passed")
	default:
		f := l.finding(m, nil, "never")
		f.HandOver = BrokerToClient
		f.Text = fmt.Sprintf("%s was never answered; the bound is %v", l.label(m), l.limits.AnswerBound)
		out.violate(byAbsence, f)
	}
}

func (c *promptness) conclude(l *ledger, out *ruling) {
	if l.limits.AnswerBound <= 0 {
		out.notApplicable = "the profile names no bound"
		return
	}
	c.late.conclude(l, out)
	out.measures = []Measure{{"longest answer", milliseconds(c.longest), "ms"}}
}
