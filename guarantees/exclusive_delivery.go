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
	Rule: "A hold ends with an acknowledgement or a refusal (from its call on), the session, the redelivery period where the profile redelivers by timeout or claim, an order, or any fault in between. It cannot have run out before the period has passed since the publish was called (of a redelivery: since the in-flight bound before it was seen). Both holders must be alive for the in-flight bound after. Not applicable where a delivery is its own acknowledgement, or where a rebalance moves what is held.",
	new:  func() checker { return &exclusive{doubts: make(map[holding]doubt)} },
}

// maxDoubts hand-overs wait for what is recorded late.
const maxDoubts = 1 << 12

type exclusive struct{ doubts map[holding]doubt }

type holding struct {
	ref ref
	sub uint32
}

// doubt is a second hand-over, unless an end of the first hold is recorded yet.
type doubt struct {
	at, before stamp
	holder     *session
	name       uint32 // of the holder's session
	same       bool
}

func (c *exclusive) on() []evidence.Kind {
	return []evidence.Kind{evidence.Delivered, evidence.HandlerFailed, evidence.EffectFailed, evidence.AckCalled, evidence.NackCalled}
}

func (c *exclusive) observe(l *ledger, e *evidence.Event, m *message, r *receipt, out *ruling) {
	switch {
	case m == nil || r == nil:
	case e.Kind == evidence.Delivered:
		c.delivered(l, e, m, r, out)
	case len(c.doubts) > 0: // an end of the hold that was recorded late
		k := holding{m.ref, r.sub}
		if d, ok := c.doubts[k]; ok && e.At <= d.at.at && l.name(d.name) == e.Session {
			delete(c.doubts, k)
		}
	}
}

func (c *exclusive) delivered(l *ledger, e *evidence.Event, m *message, r *receipt, out *ruling) {
	out.instances++
	if s := l.sessions[r.session]; s != nil && s.ended.before(l.now) {
		f := l.finding(m, r, "after-session-end", s.ended.seq, e.Seq)
		f.HandOver = BrokerToConsumer
		f.Text = fmt.Sprintf("%s was delivered on session %s after it had ended", l.label(m), e.Session)
		out.violate(byEvents, f)
		return
	}
	holder := l.sessions[r.holder]
	if r.deliveries < 2 || !r.newest || holder == nil || holder.ended.seq != 0 || l.automatic || m.struckBy("duplicate") || m.redriven > 0 ||
		r.ackCalled.seq != 0 || r.nacked.seq > r.before.seq || r.failed.seq > r.before.seq || r.rewound.seq > r.before.seq ||
		m.deadLettered.seq > r.before.seq || l.stirred() || l.now.at > l.holdsUntil(m, holder, r) {
		return
	}
	if len(c.doubts) < maxDoubts {
		c.doubts[holding{m.ref, r.sub}] = doubt{l.now, r.before, holder, r.holder, r.holder == r.session}
	} else {
		out.undecided("too many hand-overs to remember")
	}
}

// stirred: a fault is at work that may end sessions without their client's
// knowledge, or move the clock.
func (l *ledger) stirred() bool {
	if l.clockSet || len(l.active) == 0 {
		return l.clockSet
	}
	for label := range l.active {
		if l.class[label] != evidence.Link {
			return true
		}
	}
	return l.delayedSince(l.now.at)
}

// holdsUntil is the earliest time at which the hold before the last delivery
// can have run out.
func (l *ledger) holdsUntil(m *message, s *session, r *receipt) time.Duration {
	switch l.manifest.Profile.Redelivers {
	case evidence.RedeliverTimeout, evidence.RedeliverClaim:
	default:
		return l.now.at
	}
	if l.limits.RedeliveryPeriod <= 0 {
		return 0
	}
	from := max(r.before.at-l.limits.InFlightBound, s.openCalled.at)
	if r.deliveries == 2 { // the hold before was the first
		from = max(from, m.called.at)
	}
	return from + l.limits.RedeliveryPeriod - 1
}

func (c *exclusive) conclude(l *ledger, out *ruling) {
	switch {
	case l.automatic:
		out.notApplicable = "a delivery is its own acknowledgement: nobody holds anything"
	case l.manifest.Profile.Redelivers == evidence.RedeliverRebalance:
		out.notApplicable = "a rebalance moves what a consumer holds to another"
	}
	if out.notApplicable != "" {
		return
	}
	found := slices.Collect(maps.Keys(c.doubts))
	slices.SortFunc(found, func(a, b holding) int { return cmp.Compare(c.doubts[a].at.seq, c.doubts[b].at.seq) })
	for _, k := range found {
		d, m := c.doubts[k], l.message(k.ref)
		until := d.at.at + l.limits.InFlightBound
		if l.struckBetween(d.before.at-l.limits.InFlightBound, d.at.at) {
			continue
		}
		if d.holder.ended.seq != 0 && d.holder.ended.at <= until || l.now.at < until {
			out.undecided(fmt.Sprintf("%s was handed out twice, and its first holder ended too soon after to say that it still held it", l.label(m)))
			continue
		}
		r := m.find(k.sub)
		f := l.finding(m, r, "two-holders", d.before.seq, d.at.seq)
		f.HandOver = BrokerToConsumer
		f.Text = fmt.Sprintf("%s was handed to another consumer while session %s held it", l.label(m), l.name(d.name))
		if d.same {
			f.Kind, f.Text = "again-while-held", fmt.Sprintf("%s was handed to session %s again while it held it", l.label(m), l.name(d.name))
		}
		out.violate(byAbsence, f)
	}
}
