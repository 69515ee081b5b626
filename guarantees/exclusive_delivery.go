package guarantees

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/custodymq/custody/evidence"
)

var exclusiveDelivery = Guarantee{
	Name: evidence.ExclusiveDelivery, Usual: "competing consumers, visibility timeout",
	Text: "A message that was handed to one consumer of a competing set is handed to nobody again while that consumer holds it, and nothing is delivered on a session that has ended.",
	Rule: "A hold ends with an acknowledgement or a refusal (from its call on), the session, the redelivery period where the profile redelivers by timeout or claim, an order, or any fault in between. It cannot have run out before the period has passed since the publish was called (of a redelivery that no fault kept back: since the in-flight bound before it was seen). Both holders must be alive for the in-flight bound after. Not applicable where a delivery is its own acknowledgement, or where a rebalance moves what is held.",
	new:  func() checker { return &exclusive{doubts: make(map[holding]doubt)} },
}

// maxDoubts bounds the hand-overs kept until late-recorded events are known.
const maxDoubts = 1 << 12

type exclusive struct{ doubts map[holding]doubt }

type holding struct {
	ref ref
	sub symbol
}

// doubt is a second hand-over whose first hold may have ended earlier, by an
// event that is recorded late.
type doubt struct {
	at, before stamp
	holder     *session
	name       symbol // of the holder's session
	same       bool
}

func (c *exclusive) on() []evidence.Kind {
	return []evidence.Kind{evidence.Delivered, evidence.HandlerFailed, evidence.EffectFailed, evidence.AckCalled, evidence.NackCalled}
}

func (c *exclusive) observe(v view, e *evidence.Event, m *message, r *receipt, out *ruling) {
	switch {
	case m == nil || r == nil:
	case e.Kind == evidence.Delivered:
		c.delivered(v, e, m, r, out)
	case len(c.doubts) > 0: // the hold had ended earlier, recorded late
		k := holding{m.Ref, r.Sub}
		if d, ok := c.doubts[k]; ok && e.At <= d.at.At && v.Name(d.name) == e.Session {
			delete(c.doubts, k)
		}
	}
}

func (c *exclusive) delivered(v view, e *evidence.Event, m *message, r *receipt, out *ruling) {
	out.instances++
	if s := v.Session(r.Session); s != nil && s.Ended.Before(v.Now) {
		f := v.finding(m, r, "after-session-end", BrokerToConsumer, s.Ended.Seq, e.Seq)
		f.Text = fmt.Sprintf("%s was delivered on session %s after it had ended", v.Label(m), e.Session)
		out.violate(byEvents, f)
		return
	}
	holder := v.Session(r.Holder)
	if r.Deliveries < 2 || !r.Newest || holder == nil || holder.Ended.Seq != 0 || v.Automatic || m.StruckBy("duplicate") || m.Redriven > 0 ||
		r.AckCalled.Seq != 0 || r.Nacked.Seq > r.Before.Seq || r.Failed.Seq > r.Before.Seq || r.Rewound.Seq > r.Before.Seq ||
		m.DeadLettered.Seq > r.Before.Seq || v.stirred() || v.Now.At > v.holdsUntil(m, holder, r) {
		return
	}
	if len(c.doubts) < maxDoubts {
		c.doubts[holding{m.Ref, r.Sub}] = doubt{v.Now, r.Before, holder, r.Holder, r.Holder == r.Session}
	} else {
		out.undecided("too many hand-overs to remember")
	}
}

// stirred reports whether an active fault may end sessions without their
// clients noticing, or change the clock.
func (v view) stirred() bool {
	return v.ClockSet || v.FaultActive(evidence.Link) || v.FaultActive() && v.DelayedSince(v.Now.At)
}

// holdsUntil returns the earliest time at which the hold of the previous
// delivery can have expired.
func (v view) holdsUntil(m *message, s *session, r *receipt) time.Duration {
	switch v.Profile.Redelivers {
	case evidence.RedeliverTimeout, evidence.RedeliverClaim:
	default:
		return v.Now.At
	}
	if v.Limits.RedeliveryPeriod <= 0 {
		return 0
	}
	from := r.Before.At - v.Limits.InFlightBound
	if v.Delayed(s.Actor.Name, from, r.Before.At) { // delayed by our fault: it may have been sent long before
		from = 0
	}
	from = max(from, s.OpenCalled.At)
	if r.Deliveries == 2 { // the previous hold was the first
		from = max(from, m.Called.At)
	}
	return from + v.Limits.RedeliveryPeriod - 1
}

func (c *exclusive) conclude(v view, out *ruling) {
	switch {
	case v.Automatic:
		out.notApplicable = "a delivery is its own acknowledgement: nobody holds anything"
	case v.Profile.Redelivers == evidence.RedeliverRebalance:
		out.notApplicable = "a rebalance moves what a consumer holds to another"
	}
	if out.notApplicable != "" {
		return
	}
	found := slices.Collect(maps.Keys(c.doubts))
	slices.SortFunc(found, func(a, b holding) int { return cmp.Compare(c.doubts[a].at.Seq, c.doubts[b].at.Seq) })
	for _, k := range found {
		d, m := c.doubts[k], v.Message(k.ref)
		until := d.at.At + v.Limits.InFlightBound
		if v.StruckBetween(d.before.At-v.Limits.InFlightBound, d.at.At) {
			continue
		}
		if d.holder.Ended.Seq != 0 && d.holder.Ended.At <= until || v.Now.At < until {
			out.undecided(fmt.Sprintf("%s was handed out twice, and its first holder ended too soon after to say that it still held it", v.Label(m)))
			continue
		}
		r := m.Find(k.sub)
		f := v.finding(m, r, "two-holders", BrokerToConsumer, d.before.Seq, d.at.Seq)
		f.Text = fmt.Sprintf("%s was handed to another consumer while session %s held it", v.Label(m), v.Name(d.name))
		if d.same {
			f.Kind, f.Text = "again-while-held", fmt.Sprintf("%s was handed to session %s again while it held it", v.Label(m), v.Name(d.name))
		}
		out.violate(byAbsence, f)
	}
}
