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

func (refusal) close(v view, m *message, out *ruling) {
	if m.Frozen || !m.Refused() {
		return
	}
	out.instances++
	for i := range m.Receipts {
		if r := &m.Receipts[i]; r.Deliveries > 0 {
			f := v.finding(m, r, "delivered", BrokerToClient, m.Returned.Seq, r.First.Seq)
			f.Text = fmt.Sprintf("%s was %s, and was delivered to %s", v.Label(m), m.Acceptance, v.Name(r.Sub))
			out.violate(byEvents, f)
			return
		}
	}
	for _, s := range m.Rows {
		at := s.Snapshot
		// A row read during the call may have been rolled back.
		if at.Seq < m.Returned.Seq || !s.Certain && !allRefused(v, m) {
			continue
		}
		f := v.finding(m, nil, "left-a-row", BrokerToStore, m.Returned.Seq, at.Seq)
		f.Text = fmt.Sprintf("%s was %s, and left %s", v.Label(m), m.Acceptance, v.rowText(s))
		out.violate(byEvents, f)
		return
	}
	if v.BrokerEnd != nil && v.BrokerEnd.Trust == evidence.Lagging {
		out.undecided(v.Label(m) + ": the rows may lag behind")
	}
}

func allRefused(v view, m *message) bool {
	for _, o := range v.Group(m) {
		if !o.Refused() {
			return false
		}
	}
	return true
}
