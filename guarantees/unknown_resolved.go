package guarantees

import (
	"fmt"

	"github.com/custodymq/custody/evidence"
)

var unknownResolved = Guarantee{
	Name: evidence.UnknownResolved, Usual: "in-doubt resolution",
	Text: "Every Unknown publish is settled as stored or not stored by the end of the run.",
	Rule: "Per publish where a row, delivery or effect carries its publish ID, else per business ID; a lookup settles it too. Not stored needs the publishing connection to be dead first. Violated where the system's answer contradicts proof.",
	new:  func() checker { return resolution{} },
}

type resolution struct{}

func (c resolution) close(l *ledger, m *message, out *ruling) {
	for i := range m.lookups {
		c.contradiction(l, m, &m.lookups[i], out)
	}
	if !m.unknown() {
		return
	}
	out.instances++
	if l.stored(m) || c.settledByGroup(l, m) {
		return
	}
	dead := l.connectionEnded(m)
	if l.exactEnd() && dead.seq != 0 && dead.seq < l.brokerEnd.Seq {
		return // an exact look after its connection's end shows nothing: not stored
	}
	out.undecided(l.label(m) + " is still in doubt")
}

// settledByGroup looks at the other publishes of the business ID and at lookups.
func (resolution) settledByGroup(l *ledger, m *message) bool {
	if l.effectsOf(m, 0) > 0 {
		return true
	}
	dead := l.connectionEnded(m)
	for _, o := range l.group(m) {
		if o != m && l.stored(o) || l.anyEffect(o) {
			return true
		}
		for i := range o.lookups {
			k := &o.lookups[i]
			if k.byPublish && o != m {
				continue
			}
			if k.acceptance == evidence.Accepted || k.acceptance == evidence.Rejected && dead.before(k.called) {
				return true
			}
		}
	}
	return false
}

// contradiction finds an answer that proof belies.
func (resolution) contradiction(l *ledger, m *message, k *lookup, out *ruling) {
	if k.returned.seq == 0 || k.standing == evidence.Forgotten {
		return
	}
	about := []*message{m}
	if !k.byPublish {
		about = l.group(m)
	}
	switch k.acceptance {
	case evidence.Rejected:
		for _, o := range about {
			if by := l.storedWhenAsked(o, k); by.seq != 0 {
				f := l.finding(o, nil, "lookup-denied", by.seq, k.called.seq, k.returned.seq)
				f.HandOver = BrokerToClient
				f.Text = fmt.Sprintf("%s is stored, and the system answered that it is not", l.label(o))
				out.violate(byEvents, f)
				return
			}
		}
	case evidence.Accepted:
		p := byEvents
		for _, o := range about {
			// What has expired since was stored, and left nothing.
			expired := o.ttl > 0 && (o.called.at+o.ttl <= l.now.at || l.clockSet)
			if o.accepted() || l.stored(o) || l.anyEffect(o) || expired || o.purged.seq != 0 {
				return
			}
			if !o.refused() {
				p = byAbsence
			}
		}
		if p == byAbsence && !l.exactEnd() {
			return
		}
		f := l.finding(m, nil, "lookup-invented", k.called.seq, k.returned.seq)
		f.HandOver = BrokerToClient
		f.Text = fmt.Sprintf("the system answered that %s is stored, and it is nowhere", l.label(m))
		out.violate(p, f)
	}
}

// stored: something that carries this very publish shows that it was.
func (l *ledger) stored(m *message) bool {
	if _, delivered := m.delivered(); delivered || m.carried.seq != 0 {
		return true
	}
	for _, s := range m.rows {
		if s.certain {
			return true
		}
	}
	return false
}

func (l *ledger) anyEffect(m *message) bool {
	for i := range m.receipts {
		if l.effectsOf(m, m.receipts[i].sub) > 0 {
			return true
		}
	}
	return l.effectsOf(m, 0) > 0
}

// storedWhenAsked gives the proof that a publish was stored when a lookup was
// called: it was seen before, or it was seen at any time and its connection was
// dead before, for so long that nothing of it was under way any more.
func (l *ledger) storedWhenAsked(m *message, k *lookup) stamp {
	if m.accepted() && m.returned.before(k.called) {
		return m.returned
	}
	first, delivered := m.delivered()
	if delivered && first.before(k.called) {
		return first
	}
	dead := l.connectionEnded(m)
	over := dead.seq != 0 && dead.before(k.called) && k.called.at-dead.at > l.limits.InFlightBound
	if delivered && over {
		return first
	}
	for _, s := range m.rows {
		at := stampOfSnapshot(s.snapshot)
		if s.certain && (over || at.before(k.called)) {
			return at
		}
	}
	return stamp{}
}

// connectionEnded is when the session that published it ended.
func (l *ledger) connectionEnded(m *message) stamp {
	id := m.session
	if id == 0 {
		id = m.actor
	}
	if s := l.sessions[id]; s != nil {
		return s.ended
	}
	return stamp{}
}

func (resolution) conclude(*ledger, *ruling) {}
