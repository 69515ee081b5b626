package guarantees

import (
	"fmt"
	"slices"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees/internal/ledger"
)

var expiryHonoured = Guarantee{
	Name: evidence.ExpiryHonoured, Usual: "TTL",
	Text: "Nothing leaves the broker after its time to live, and nothing is dropped before.",
	Rule: "Late: its deliver frame passed the link after returned + TTL + tolerance (without a link: its delivery, by the in-flight bound more). Early: the system said it expired, or an exact look found its row gone, before called + TTL - tolerance. Deliveries that our own faults delayed are left out, an Unknown publish is never late, and under a clock fault the broker's clock counts.",
	new:  func() checker { return expiry{} },
}

type expiry struct{}

func (expiry) on() []evidence.Kind { return []evidence.Kind{evidence.FrameCarried, evidence.Delivered} }

func (expiry) observe(v view, e *evidence.Event, m *message, r *receipt, out *ruling) {
	if m == nil || m.TTL <= 0 || !m.Accepted() || m.StruckBy("delay", "hold") {
		return
	}
	tolerance := v.Limits.ExpiryTolerance
	if e.Kind == evidence.Delivered {
		if v.DeliverFrames {
			return // judged by its frame instead
		}
		tolerance += v.Limits.InFlightBound
	} else if e.Frame != ledger.FrameDeliver || e.Struck != "" || v.Delayed(v.Symbol(e.Link), m.Deadline()+tolerance, v.Now.At) {
		return
	}
	elapsed := e.At - m.Returned.At + v.ClockRecently() - m.Clock
	if elapsed <= m.TTL+tolerance {
		return
	}
	f := v.finding(m, r, "late", BrokerToConsumer, m.Returned.Seq, e.Seq)
	f.Text = fmt.Sprintf("%s was sent out %v after its acceptance, with a time to live of %v", v.Label(m), elapsed, m.TTL)
	out.violate(byEvents, f)
}

func (c expiry) close(v view, m *message, out *ruling) {
	if m.TTL <= 0 || !m.Accepted() {
		return
	}
	served := v.served(m)
	if served.Seq != 0 || v.Now.At >= m.Deadline() {
		out.instances++
	}
	earliest := m.Called.At + m.TTL - v.Limits.ExpiryTolerance
	// Under a clock fault the broker may legitimately assume a later time.
	if v.ClockSet {
		return
	}
	if s := m.ExpiredSaid; s.Seq != 0 && s.At < earliest {
		c.early(v, m, out, byEvents, s, "the system said that it expired")
		return
	}
	for i := range v.Snapshots {
		s := &v.Snapshots[i]
		at := ledger.StampOfSnapshot(s)
		switch {
		case s.Source != evidence.SourceBroker || s.Trust != evidence.Exact || at.At >= earliest || !m.Returned.Before(at),
			m.HeldBy != evidence.HeldByStore && m.HeldBy != evidence.HeldByReplicas,
			served.Seq != 0 && served.Seq < at.Seq, v.disposedOf(m), v.inSnapshot(m, s):
			continue
		}
		c.early(v, m, out, byAbsence, at, fmt.Sprintf("its row was gone at %q", s.Checkpoint))
		return
	}
}

func (expiry) early(v view, m *message, out *ruling, p proof, at stamp, what string) {
	f := v.finding(m, nil, "early", StoreToConsumer, m.Returned.Seq, at.Seq)
	f.Text = fmt.Sprintf("%s, with a time to live of %v, was dropped early: %s after %v", v.Label(m), m.TTL, what, at.At-m.Called.At)
	f.Follows = []string{evidence.NoAcceptedLoss, evidence.RowsMatchClients}
	out.violate(p, f)
}

// served returns when the stored message of a publish, or of an alias, was
// first seen on its way to a consumer.
func (v view) served(m *message) (first stamp) {
	for _, o := range v.Aliases(m) {
		at, delivered := o.Delivered()
		if !delivered || o.Carried.Seq != 0 && o.Carried.Seq < at.Seq {
			at = o.Carried
		}
		if at.Seq != 0 && (first.Seq == 0 || at.Seq < first.Seq) {
			first = at
		}
	}
	return first
}

// disposedOf reports whether m was purged or dead-lettered.
func (v view) disposedOf(m *message) bool {
	return slices.ContainsFunc(v.Aliases(m), func(o *message) bool { return o.Purged.Seq != 0 || o.DeadLettered.Seq != 0 })
}

func (v view) inSnapshot(m *message, snapshot *evidence.Snapshot) bool {
	for _, o := range v.Aliases(m) {
		for _, s := range o.Rows {
			if s.Snapshot == snapshot {
				return true
			}
		}
	}
	return false
}
