package guarantees

import (
	"fmt"
	"slices"

	"github.com/custodymq/custody/evidence"
)

var expiryHonoured = Guarantee{
	Name: evidence.ExpiryHonoured, Usual: "TTL",
	Text: "Nothing leaves the broker after its time to live, and nothing is dropped before.",
	Rule: "Late: its deliver frame passed the link after returned + TTL + tolerance (without a link: its delivery, by the in-flight bound more). Early: the system said it expired, or an exact look found its row gone, before called + TTL - tolerance. Deliveries that our own faults delayed are left out, an Unknown publish is never late, and under a clock fault the broker's clock counts.",
	new:  func() checker { return expiry{} },
}

type expiry struct{}

func (expiry) on() []evidence.Kind { return []evidence.Kind{evidence.FrameCarried, evidence.Delivered} }

func (expiry) observe(l *ledger, e *evidence.Event, m *message, r *receipt, out *ruling) {
	if m == nil || m.ttl <= 0 || !m.accepted() || m.struckBy("delay", "hold") {
		return
	}
	tolerance := l.limits.ExpiryTolerance
	if e.Kind == evidence.Delivered {
		if l.deliverFrames {
			return // the frame has told
		}
		tolerance += l.limits.InFlightBound
	} else if e.Frame != frameDeliver || e.Struck != "" || l.delayed(l.symbol(e.Link), m.deadline()+tolerance, l.now.at) {
		return
	}
	elapsed := e.At - m.returned.at + l.clockRecently() - m.clock
	if elapsed <= m.ttl+tolerance {
		return
	}
	f := l.finding(m, r, "late", m.returned.seq, e.Seq)
	f.HandOver = BrokerToConsumer
	f.Text = fmt.Sprintf("%s was sent out %v after its acceptance, with a time to live of %v", l.label(m), elapsed, m.ttl)
	out.violate(byEvents, f)
}

func (c expiry) close(l *ledger, m *message, out *ruling) {
	if m.ttl <= 0 || !m.accepted() {
		return
	}
	served := l.served(m)
	if served.seq != 0 || l.now.at >= m.deadline() {
		out.instances++
	}
	earliest := m.called.at + m.ttl - l.limits.ExpiryTolerance
	// Under a clock fault the broker may rightly think that it is later.
	if l.clockSet {
		return
	}
	if s := m.expiredSaid; s.seq != 0 && s.at < earliest {
		c.early(l, m, out, byEvents, s, "the system said that it expired")
		return
	}
	for i := range l.snapshots {
		s := &l.snapshots[i]
		at := stampOfSnapshot(s)
		switch {
		case s.Source != evidence.SourceBroker || s.Trust != evidence.Exact || at.at >= earliest || !m.returned.before(at),
			m.heldBy != evidence.HeldByStore && m.heldBy != evidence.HeldByReplicas,
			served.seq != 0 && served.seq < at.seq, l.disposedOf(m), l.inSnapshot(m, s):
			continue
		}
		c.early(l, m, out, byAbsence, at, fmt.Sprintf("its row was gone at %q", s.Checkpoint))
		return
	}
}

func (expiry) early(l *ledger, m *message, out *ruling, p proof, at stamp, what string) {
	f := l.finding(m, nil, "early", m.returned.seq, at.seq)
	f.HandOver = StoreToConsumer
	f.Text = fmt.Sprintf("%s, with a time to live of %v, was dropped early: %s after %v", l.label(m), m.ttl, what, at.at-m.called.at)
	f.Follows = []string{evidence.NoAcceptedLoss, evidence.RowsMatchClients}
	out.violate(p, f)
}

// served is when the one stored message that a publish stands for was first seen
// on its way to a consumer.
func (l *ledger) served(m *message) (first stamp) {
	for _, o := range l.aliases(m) {
		at, delivered := o.delivered()
		if !delivered || o.carried.seq != 0 && o.carried.seq < at.seq {
			at = o.carried
		}
		if at.seq != 0 && (first.seq == 0 || at.seq < first.seq) {
			first = at
		}
	}
	return first
}

// disposedOf reports whether it was purged or dead-lettered.
func (l *ledger) disposedOf(m *message) bool {
	return slices.ContainsFunc(l.aliases(m), func(o *message) bool { return o.purged.seq != 0 || o.deadLettered.seq != 0 })
}

func (l *ledger) inSnapshot(m *message, snapshot *evidence.Snapshot) bool {
	for _, o := range l.aliases(m) {
		for _, s := range o.rows {
			if s.snapshot == snapshot {
				return true
			}
		}
	}
	return false
}

func (expiry) conclude(*ledger, *ruling) {}
