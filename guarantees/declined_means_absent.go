package guarantees

import (
	"fmt"

	"github.com/custodymq/custody/evidence"
)

var declinedMeansAbsent = Guarantee{
	Name: evidence.DeclinedMeansAbsent, Usual: "atomic acceptance",
	Text: "A publish that was declined or rejected is never delivered and leaves no row.",
	Rule: "A delivery or a row that names the publish or its message ID proves a violation; one that names only the business ID does if every publish of it was refused.",
	new:  func() checker { return refusal{} },
}

type refusal struct{}

func (refusal) close(l *ledger, m *message, out *ruling) {
	if m.frozen || !m.refused() {
		return
	}
	out.instances++
	for i := range m.receipts {
		if r := &m.receipts[i]; r.deliveries > 0 {
			f := l.finding(m, r, "delivered", m.returned.seq, r.first.seq)
			f.HandOver = BrokerToClient
			f.Text = fmt.Sprintf("%s was %s, and was delivered to %s", l.label(m), m.acceptance, l.name(r.sub))
			out.violate(byEvents, f)
			return
		}
	}
	for _, s := range m.rows {
		at := s.snapshot
		// A row read while the call was under way may have been rolled back.
		if at.Seq < m.returned.seq || !s.certain && !allRefused(l, m) {
			continue
		}
		f := l.finding(m, nil, "left-a-row", m.returned.seq, at.Seq)
		f.HandOver = BrokerToStore
		f.Text = fmt.Sprintf("%s was %s, and left %s", l.label(m), m.acceptance, l.rowText(s))
		out.violate(byEvents, f)
		return
	}
	if l.brokerEnd != nil && l.brokerEnd.Trust == evidence.Lagging {
		out.undecided(l.label(m) + ": the rows may lag behind")
	}
}

func allRefused(l *ledger, m *message) bool {
	for _, o := range l.group(m) {
		if !o.refused() {
			return false
		}
	}
	return true
}

func (refusal) conclude(*ledger, *ruling) {}
