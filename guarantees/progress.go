package guarantees

import (
	"fmt"
	"time"

	"github.com/custodymq/custody/evidence"
)

var progressMade = Guarantee{
	Name: evidence.Progress, Usual: "liveness, no stall",
	Text: "While there is work and a consumer with nothing in hand, something moves within the bound, also during a fault that the claim covers.",
	Rule: "Measured for each logical subscriber from the latest of acceptance, a ready consumer, and the last thing that it was handed or did, until its next delivery, or to the end of the drain. Its own failures and new sessions begin the time anew; what a fault of ours struck, or kept back on a consumer's link, proves nothing, and neither does a run under several storage identities.",
	new:  func() checker { return &movement{latest: make(map[uint32]*moved)} },
}

type movement struct {
	latest  map[uint32]*moved // by logical subscriber
	longest time.Duration
}

type moved struct {
	stamp
	inHand int
}

func (c *movement) on() []evidence.Kind {
	return []evidence.Kind{evidence.Delivered, evidence.AckReturned, evidence.NackReturned, evidence.HandlerFailed, evidence.EffectCommitted}
}

func (c *movement) observe(l *ledger, e *evidence.Event, m *message, r *receipt, out *ruling) {
	if m == nil || r == nil || l.limits.ProgressBound <= 0 {
		return
	}
	now := c.latest[r.sub]
	if now == nil {
		now = &moved{}
		c.latest[r.sub] = now
	}
	switch e.Kind {
	case evidence.Delivered:
		if now.inHand == 0 && r.deliveries == 1 && m.accepted() && m.struck == nil && !m.frozen {
			out.instances++
			c.judge(l, m, r, now, l.now, byEvents, out)
		}
		if !l.automatic {
			now.inHand++
		}
	case evidence.AckReturned, evidence.NackReturned:
		now.inHand = max(0, now.inHand-1)
	}
	now.stamp = l.now
}

// judge measures how long a subscriber stood still before a time, with a
// message waiting for it.
func (c *movement) judge(l *ledger, m *message, r *receipt, last *moved, until stamp, p proof, out *ruling) bool {
	s := l.bySymbol[r.sub]
	if s == nil || s.live == 0 || l.moved() { // what is stored under another identity waits for it
		return false
	}
	from := max(m.returned.at, s.liveSince.at, last.at, r.rewound.at)
	if l.delayedSince(from) { // whoever's link it is
		return false
	}
	took := until.at - from
	c.longest = max(c.longest, took)
	if took <= l.limits.ProgressBound {
		return false
	}
	f := l.finding(m, r, "stalled", m.returned.seq, last.seq, until.seq)
	f.HandOver = BrokerToConsumer
	f.Text = fmt.Sprintf("%s waited, %s was ready, and nothing moved for %v; the bound is %v", l.label(m), l.name(r.sub), took, l.limits.ProgressBound)
	f.Follows = []string{evidence.RecoveryBounded}
	out.violate(p, f)
	return true
}

func (c *movement) close(l *ledger, m *message, out *ruling) {
	if l.limits.ProgressBound <= 0 || m.frozen || !m.accepted() || m.struck != nil || l.drain.seq == 0 {
		return
	}
	for _, r := range l.obliged(m) {
		if r.deliveries > 0 || !l.ready(m, r.sub) || r.sub == 0 {
			continue
		}
		if f := l.fateOf(m, r).fate; f != waiting && f != lost {
			continue
		}
		last := c.latest[r.sub]
		if last == nil {
			last = &moved{}
		}
		if last.inHand > 0 {
			continue
		}
		out.instances++
		c.judge(l, m, r, last, l.drain, byAbsence, out)
	}
}

func (c *movement) conclude(l *ledger, out *ruling) {
	if l.limits.ProgressBound <= 0 {
		out.notApplicable = "the profile names no bound"
		return
	}
	out.measures = []Measure{{"longest standstill", milliseconds(c.longest), "ms"}}
}
