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
	Rule:          "Per business ID of a producer that commits rows. A row whose every publish was refused or never reached the system, or that has none when the run ends, proves a violation; so does a message that was accepted, stored or delivered and has no row then. A row with a publish of unknown fate decides nothing, nor does one whose message is still in the outbox, unless a relay was there to the end of the drain and left it. It takes one transaction that holds both: a broker and its store know nothing of the row, so that no system may claim it.",
	OfApplication: true,
	new: func() checker {
		return &outbox{rows: map[uint64]record{}, commits: map[string]bool{}, relays: map[string]bool{}, live: map[string]bool{}}
	},
}

// outbox compares the rows that producers commit with what became of their
// messages.
type outbox struct {
	rows    map[uint64]record // by hash of the business ID
	commits map[string]bool   // the producers that commit rows
	relays  map[string]bool   // who published what another has committed
	live    map[string]bool   // who has a session
	drained map[string]bool   // who had one at the end of the drain
}

// record is a committed business row.
type record struct {
	businessID string
	by         string
	at         stamp
	judged     bool
}

func (*outbox) on() []evidence.Kind {
	return []evidence.Kind{evidence.RecordCommitted, evidence.PublishCalled, evidence.SessionOpened, evidence.SessionEnded, evidence.ProcessExited, evidence.DrainEnded}
}

func (c *outbox) observe(_ view, e *evidence.Event, _ *message, _ *receipt, _ *ruling) {
	switch e.Kind {
	case evidence.RecordCommitted:
		c.commits[e.Actor] = true
		c.rows[ledger.Hash(e.BusinessID)] = record{businessID: e.BusinessID, by: e.Actor, at: ledger.StampOf(e)}
	case evidence.PublishCalled:
		if row, ok := c.rows[ledger.Hash(e.BusinessID)]; ok && row.by != e.Actor {
			c.relays[e.Actor] = true
		}
	case evidence.SessionOpened, evidence.SessionEnded, evidence.ProcessExited:
		c.live[e.Actor] = e.Kind == evidence.SessionOpened
	case evidence.DrainEnded:
		c.drained = maps.Clone(c.live)
	}
}

// left reports whether the message of a business ID is still in the outbox, and
// whether a relay was there that could have published it.
func (c *outbox) left(v view, businessID string) (unsent, ignored bool) {
	unsent = v.BusinessEnd != nil && slices.ContainsFunc(v.BusinessEnd.Rows, func(r evidence.StoredRow) bool {
		return r.State == evidence.RowUnsent && r.BusinessID == businessID
	})
	for actor := range c.relays {
		ignored = ignored || unsent && c.drained[actor]
	}
	return unsent, ignored
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
		refused = refused && (o.Refused() || o.NeverReached())
	}
	if unsent, ignored := c.left(v, row.businessID); unsent && !ignored {
		out.undecided(v.Label(m) + ": its message is still in the outbox")
		return
	}
	if !refused {
		out.undecided(v.Label(m) + ": nothing proves whether it was published")
		return
	}
	f := v.finding(m, nil, "row-without-message", ClientToBroker, row.at.Seq, m.Returned.Seq)
	f.Text = fmt.Sprintf("the business row of %s was committed, and its message was %s and never published", row.businessID, m.Acceptance)
	if m.NeverReached() {
		f.Text = fmt.Sprintf("the business row of %s was committed, and its message was withheld on its way and never published", row.businessID)
	}
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
func (c *outbox) conclude(v view, out *ruling) {
	rows := slices.SortedFunc(maps.Values(c.rows), func(a, b record) int { return cmp.Compare(a.at.Seq, b.at.Seq) })
	for _, row := range rows {
		if row.judged {
			continue
		}
		out.instances++
		text := fmt.Sprintf("the business row of %s was committed, and its message was never published", row.businessID)
		switch unsent, ignored := c.left(v, row.businessID); {
		case ignored:
			text += ": it is still in the outbox, with a relay there that left it"
		case unsent:
			out.undecided(row.businessID + ": its message is still in the outbox")
			continue
		}
		out.violate(byAbsence, Finding{Kind: "row-without-message", HandOver: ClientToBroker, BusinessID: row.businessID, Events: events(row.at.Seq), Text: text})
	}
}
