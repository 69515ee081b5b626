package guarantees

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees/internal/ledger"
)

var outboxAtomicity = Guarantee{
	Name: evidence.OutboxAtomicity, Usual: "transactional outbox",
	Text:          "A producer's business row is committed if and only if the message that tells of it is published.",
	Rule:          "Per business ID of a producer that commits rows. A row whose every publish was refused, or that has none when the run ends, proves a violation; so does a message that was accepted, stored or delivered and has no row then. A row with a publish of unknown fate decides nothing. It takes one transaction that holds both: a broker and its store know nothing of the row, so that no system may claim it.",
	OfApplication: true,
	new: func() checker {
		return &outbox{rows: map[uint64]record{}, commits: map[string]bool{}}
	},
}

// outbox compares the rows that producers commit with what became of their
// messages.
type outbox struct {
	rows    map[uint64]record // by hash of the business ID
	commits map[string]bool   // the producers that commit rows
}

// record is a committed business row.
type record struct {
	businessID string
	at         stamp
	judged     bool
}

func (*outbox) on() []evidence.Kind { return []evidence.Kind{evidence.RecordCommitted} }

func (c *outbox) observe(_ view, e *evidence.Event, _ *message, _ *receipt, _ *ruling) {
	c.commits[e.Actor] = true
	c.rows[ledger.Hash(e.BusinessID)] = record{businessID: e.BusinessID, at: ledger.StampOf(e)}
}

func (c *outbox) close(v view, m *message, out *ruling) {
	if len(c.rows) == 0 {
		return
	}
	row, committed := c.rows[m.BusinessKey]
	if !committed {
		if !m.Frozen && c.commits[v.Name(m.Actor)] && published(m) {
			out.instances++
			f := v.finding(m, nil, "message-without-row", ClientToBroker, m.Returned.Seq)
			f.Text = fmt.Sprintf("%s was published, and its producer never committed the row that it tells of", v.Label(m))
			out.violate(byAbsence, f)
		}
		return
	}
	if row.judged {
		return
	}
	row.judged = true
	c.rows[m.BusinessKey] = row
	out.instances++
	refused := true
	for _, o := range v.Group(m) {
		if published(o) {
			return
		}
		refused = refused && o.Refused()
	}
	if !refused {
		out.undecided(v.Label(m) + ": nothing proves whether it was published")
		return
	}
	f := v.finding(m, nil, "row-without-message", ClientToBroker, row.at.Seq, m.Returned.Seq)
	f.Text = fmt.Sprintf("the business row of %s was committed, and its message was %s and never published", row.businessID, m.Acceptance)
	out.violate(byAbsence, f)
}

// published is proven by an answer, a row or a delivery; what was settled long ago
// is frozen.
func published(m *message) bool {
	if m.Frozen || m.Acceptance == evidence.Accepted {
		return true
	}
	for i := range m.Receipts {
		if m.Receipts[i].Deliveries > 0 {
			return true
		}
	}
	for _, row := range m.Rows {
		if row.Certain {
			return true
		}
	}
	return false
}

// conclude finds the rows that no publish followed.
func (c *outbox) conclude(_ view, out *ruling) {
	rows := slices.SortedFunc(maps.Values(c.rows), func(a, b record) int { return cmp.Compare(a.at.Seq, b.at.Seq) })
	for _, row := range rows {
		if row.judged {
			continue
		}
		out.instances++
		out.violate(byAbsence, Finding{Kind: "row-without-message", HandOver: ClientToBroker, BusinessID: row.businessID, Events: events(row.at.Seq),
			Text: fmt.Sprintf("the business row of %s was committed, and its message was never published", row.businessID)})
	}
}
