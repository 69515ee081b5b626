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
	new:  func() checker { return &movement{latest: make(map[symbol]*moved)} },
}

type movement struct {
	latest  map[symbol]*moved // by logical subscriber
	longest time.Duration
}

type moved struct {
	stamp
	inHand int
}

func (c *movement) on() []evidence.Kind {
	return []evidence.Kind{evidence.Delivered, evidence.AckReturned, evidence.NackReturned, evidence.HandlerFailed, evidence.EffectCommitted}
}

func (c *movement) observe(v view, e *evidence.Event, m *message, r *receipt, out *ruling) {
	if m == nil || r == nil || v.Limits.ProgressBound <= 0 {
		return
	}
	now := c.latest[r.Sub]
	if now == nil {
		now = &moved{}
		c.latest[r.Sub] = now
	}
	switch e.Kind {
	case evidence.Delivered:
		if now.inHand == 0 && r.Deliveries == 1 && m.Accepted() && m.Struck == nil && !m.Frozen {
			out.instances++
			c.judge(v, m, r, now, v.Now, byEvents, out)
		}
		if !v.Automatic {
			now.inHand++
		}
	case evidence.AckReturned, evidence.NackReturned:
		now.inHand = max(0, now.inHand-1)
	}
	now.stamp = v.Now
}

// judge measures how long a subscriber made no progress until a time while a
// message was waiting for it.
func (c *movement) judge(v view, m *message, r *receipt, last *moved, until stamp, p proof, out *ruling) bool {
	s := v.Subscriber(r.Sub)
	if s == nil || s.Live == 0 || v.Moved() { // rows under another storage identity wait for that identity
		return false
	}
	from := max(m.Returned.At, s.LiveSince.At, last.At, r.Rewound.At)
	if v.DelayedSince(from) { // on any link
		return false
	}
	took := until.At - from
	c.longest = max(c.longest, took)
	if took <= v.Limits.ProgressBound {
		return false
	}
	f := v.finding(m, r, "stalled", BrokerToConsumer, m.Returned.Seq, last.Seq, until.Seq)
	f.Text = fmt.Sprintf("%s waited, %s was ready, and nothing moved for %v; the bound is %v", v.Label(m), v.Name(r.Sub), took, v.Limits.ProgressBound)
	f.Follows = []string{evidence.RecoveryBounded}
	out.violate(p, f)
	return true
}

func (c *movement) close(v view, m *message, out *ruling) {
	if v.Limits.ProgressBound <= 0 || m.Frozen || !m.Accepted() || m.Struck != nil || v.Drain.Seq == 0 {
		return
	}
	for _, r := range v.obliged(m) {
		if r.Deliveries > 0 || !v.Ready(m, r.Sub) || r.Sub == 0 {
			continue
		}
		if f := v.fateOf(m, r).fate; f != waiting && f != lost {
			continue
		}
		last := c.latest[r.Sub]
		if last == nil {
			last = &moved{}
		}
		if last.inHand > 0 {
			continue
		}
		out.instances++
		c.judge(v, m, r, last, v.Drain, byAbsence, out)
	}
}

func (c *movement) conclude(v view, out *ruling) {
	if v.Limits.ProgressBound <= 0 {
		out.notApplicable = "the profile names no bound"
		return
	}
	out.measures = []Measure{{"longest standstill", milliseconds(c.longest), "ms"}}
}
