package guarantees

import (
	"fmt"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees/internal/ledger"
)

var unknownResolved = Guarantee{
	Name: evidence.UnknownResolved, Usual: "in-doubt resolution",
	Text: "Every Unknown publish is settled as stored or not stored by the end of the run.",
	Rule: "Per publish where a row, delivery or effect carries its publish ID, else per business ID; a lookup settles it too. Not stored needs the publishing connection to be dead first. Violated where the system's answer contradicts proof.",
	new:  func() checker { return resolution{} },
}

type resolution struct{}

func (c resolution) close(v view, m *message, out *ruling) {
	for i := range m.Lookups {
		c.contradiction(v, m, &m.Lookups[i], out)
	}
	if !m.Unknown() {
		return
	}
	out.instances++
	if v.stored(m) || c.settledByGroup(v, m) {
		return
	}
	dead := v.connectionEnded(m)
	if v.ExactEnd() && dead.Seq != 0 && dead.Seq < v.BrokerEnd.Seq {
		return // absent from an exact snapshot after its connection ended: not stored
	}
	out.undecided(v.Label(m) + " is still in doubt")
}

// settledByGroup consults the other publishes of the business ID and its
// look-ups.
func (resolution) settledByGroup(v view, m *message) bool {
	if v.EffectsOf(m, 0) > 0 {
		return true
	}
	dead := v.connectionEnded(m)
	for _, o := range v.Group(m) {
		if o != m && v.stored(o) || v.anyEffect(o) {
			return true
		}
		for i := range o.Lookups {
			k := &o.Lookups[i]
			if k.ByPublish && o != m {
				continue
			}
			if k.Acceptance == evidence.Accepted || k.Acceptance == evidence.Rejected && dead.Before(k.Called) {
				return true
			}
		}
	}
	return false
}

// contradiction finds an answer that is proven wrong.
func (resolution) contradiction(v view, m *message, k *ledger.Lookup, out *ruling) {
	if k.Returned.Seq == 0 || k.Standing == evidence.Forgotten {
		return
	}
	about := []*message{m}
	if !k.ByPublish {
		about = v.Group(m)
	}
	switch k.Acceptance {
	case evidence.Rejected:
		for _, o := range about {
			if by := v.storedWhenAsked(o, k); by.Seq != 0 {
				f := v.finding(o, nil, "lookup-denied", BrokerToClient, by.Seq, k.Called.Seq, k.Returned.Seq)
				f.Text = fmt.Sprintf("%s is stored, and the system answered that it is not", v.Label(o))
				out.violate(byEvents, f)
				return
			}
		}
	case evidence.Accepted:
		p := byEvents
		for _, o := range about {
			// It may have been stored and expired since.
			expired := o.TTL > 0 && (o.Called.At+o.TTL <= v.Now.At || v.ClockSet)
			if o.Accepted() || v.stored(o) || v.anyEffect(o) || expired || o.Purged.Seq != 0 {
				return
			}
			if !o.Refused() {
				p = byAbsence
			}
		}
		if p == byAbsence && !v.ExactEnd() {
			return
		}
		f := v.finding(m, nil, "lookup-invented", BrokerToClient, k.Called.Seq, k.Returned.Seq)
		f.Text = fmt.Sprintf("the system answered that %s is stored, and it is nowhere", v.Label(m))
		out.violate(p, f)
	}
}

// stored reports whether a delivery, a frame or a row carries this very
// publish.
func (v view) stored(m *message) bool {
	if _, delivered := m.Delivered(); delivered || m.Carried.Seq != 0 {
		return true
	}
	for _, s := range m.Rows {
		if s.Certain {
			return true
		}
	}
	return false
}

func (v view) anyEffect(m *message) bool {
	for i := range m.Receipts {
		if v.EffectsOf(m, m.Receipts[i].Sub) > 0 {
			return true
		}
	}
	return v.EffectsOf(m, 0) > 0
}

// storedWhenAsked returns proof that a publish was stored when a look-up was
// called: it was seen before; or it was seen at any time, and its connection
// had ended so long before that nothing on it was still in flight.
func (v view) storedWhenAsked(m *message, k *ledger.Lookup) stamp {
	if m.Accepted() && m.Returned.Before(k.Called) {
		return m.Returned
	}
	first, delivered := m.Delivered()
	if delivered && first.Before(k.Called) {
		return first
	}
	dead := v.connectionEnded(m)
	over := dead.Seq != 0 && dead.Before(k.Called) && k.Called.At-dead.At > v.Limits.InFlightBound
	if delivered && over {
		return first
	}
	for _, s := range m.Rows {
		at := ledger.StampOfSnapshot(s.Snapshot)
		if s.Certain && (over || at.Before(k.Called)) {
			return at
		}
	}
	return stamp{}
}

// connectionEnded returns when the publisher's session ended.
func (v view) connectionEnded(m *message) stamp {
	id := m.Session
	if id == 0 {
		id = m.Actor
	}
	if s := v.Session(id); s != nil {
		return s.Ended
	}
	return stamp{}
}
