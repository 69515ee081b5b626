package guarantees

import (
	"fmt"

	"github.com/custodymq/custody/evidence"
)

var rowsMatchClients = Guarantee{
	Name: evidence.RowsMatchClients, Usual: "reconciliation",
	Text: "The stored rows and what the clients saw tell the same story.",
	Rule: "Row by row where the last snapshot is exact; by count where it only counts; a lagging one proves no difference. An expired row that lingers is legal, and counted.",
	new:  func() checker { return &reconciliation{} },
}

// reconciliation compares the broker's last snapshot with the clients' calls.
type reconciliation struct {
	open, inDoubt   int // accepted and unsettled; unknown and unsettled
	fanOut, expired bool
	lingering       int
}

func (c *reconciliation) close(l *ledger, m *message, out *ruling) {
	if l.brokerEnd == nil {
		return
	}
	c.count(l, m)
	if l.brokerEnd.Trust == evidence.CountsOnly {
		return
	}
	if len(m.rows) > 0 {
		c.rows(l, m, out)
	}
	if m.accepted() {
		out.instances++
		c.missing(l, m, out)
	}
}

// count is for a system that shows no more than a number.
func (c *reconciliation) count(l *ledger, m *message) {
	settled := len(m.receipts) > 0
	must := 0
	for i := range m.receipts {
		settled = settled && l.acknowledged(&m.receipts[i])
		if m.receipts[i].must {
			must++
		}
	}
	c.fanOut = c.fanOut || must > 1
	c.expired = c.expired || m.ttl > 0
	switch {
	case settled, m.alias, m.purged.seq != 0, m.deadLettered.seq != 0:
	case m.accepted():
		c.open++
	case m.unknown():
		c.inDoubt++
	}
}

// place is where one message has one row: a message ID is known to its partition.
type place struct{ partition, subscription string }

func placeOf(r *evidence.StoredRow) place { return place{r.Partition, r.Subscription} }

// rows judges the rows of one publish.
func (c *reconciliation) rows(l *ledger, m *message, out *ruling) {
	pending := make(map[place]int)
	for _, o := range l.aliases(m) {
		if o.ref >= m.ref {
			continue
		}
		for _, s := range o.rows { // one stored message answers for both
			if s.snapshot == l.brokerEnd && s.certain && s.row.State == evidence.RowPending {
				pending[placeOf(s.row)] = 1
			}
		}
	}
	for _, s := range m.rows {
		if s.snapshot != l.brokerEnd {
			continue
		}
		row := s.row
		out.instances++
		if row.Expired {
			c.lingering++
		}
		switch {
		case row.Digest != "" && m.digestKey != 0 && hash(row.Digest) != m.digestKey && s.certain && !m.struckBy("corrupt"):
			c.differ(l, m, nil, out, "row-altered", fmt.Sprintf("%s is stored with another payload than was sent", l.label(m)))
		case row.State == evidence.RowPending:
			if !s.certain {
				break
			}
			if pending[placeOf(row)]++; pending[placeOf(row)] == 2 && !m.struckBy("duplicate") {
				c.differ(l, m, nil, out, "double-row", fmt.Sprintf("%s has two pending rows", l.label(m)))
			}
			c.acknowledged(l, m, row, out)
		case row.State == evidence.RowProcessed && !row.Expired && !(l.clockSet && m.ttl > 0) && s.certain && !l.automatic && !asked(m):
			c.differ(l, m, nil, out, "processed-unseen", fmt.Sprintf("%s is marked processed, and no client acknowledged it", l.label(m)))
		}
	}
}

// acknowledged judges a pending row of what every client acknowledged.
func (c *reconciliation) acknowledged(l *ledger, m *message, row *evidence.StoredRow, out *ruling) {
	at := l.brokerEnd.At
	var last *receipt
	for i := range m.receipts {
		r := &m.receipts[i]
		if row.Subscription != "" && l.name(r.sub) != row.Subscription || !r.must && r.deliveries == 0 {
			continue
		}
		if r.confirm.seq == 0 || at <= r.confirm.at+l.limits.DeleteBound || l.paused(r.confirm.at, at) || !l.manifest.Profile.ConfirmIsDurable && l.failedAround(r, false) {
			return
		}
		last = r
	}
	if last != nil && !m.struckBy("duplicate") && l.limits.DeleteBound > 0 {
		c.differ(l, m, last, out, "acked-but-pending", fmt.Sprintf("%s was acknowledged and confirmed, and is still pending", l.label(m)))
	}
}

// asked: some client called an acknowledgement of it, if only before it was put
// back.
func asked(m *message) bool {
	for i := range m.receipts {
		if m.receipts[i].ackCalled.seq != 0 || m.receipts[i].rewound.seq != 0 {
			return true
		}
	}
	return false
}

// missing finds accepted messages that no client is through with and no row shows.
// Under a clock fault a time to live may be over for the broker.
func (c *reconciliation) missing(l *ledger, m *message, out *ruling) {
	if m.frozen || m.heldBy != evidence.HeldByStore && m.heldBy != evidence.HeldByReplicas || asked(m) || l.clockSet && m.ttl > 0 {
		return
	}
	for _, r := range l.obliged(m) {
		if l.fateOf(m, r).fate == lost && r.deliveries == 0 {
			c.differ(l, m, r, out, "missing-row", fmt.Sprintf("%s was accepted as stored, nobody was served, and it has no row", l.label(m)))
			return
		}
	}
}

func (c *reconciliation) differ(l *ledger, m *message, r *receipt, out *ruling, kind, text string) {
	s := l.brokerEnd
	if s.Trust != evidence.Exact {
		out.undecided(text + ", but the rows may lag behind")
		return
	}
	f := l.finding(m, r, kind, m.returned.seq, s.Seq)
	f.HandOver, f.Text = BrokerToStore, text
	out.violate(byEvents, f)
}

func (c *reconciliation) conclude(l *ledger, out *ruling) {
	if l.brokerEnd == nil {
		return
	}
	s := l.brokerEnd
	if s.Trust == evidence.CountsOnly {
		c.compareCounts(l, s, out)
		return
	}
	// What was there before the run, or belongs to others, is not ours to explain.
	before := make(map[string]bool)
	for i := range l.snapshots {
		if l.snapshots[i].Checkpoint == "start" {
			for _, row := range l.snapshots[i].Rows {
				before[row.MessageID+" "+row.BusinessID+" "+row.PublishID] = true
			}
		}
	}
	for _, x := range l.strayRows {
		row := x.row
		if x.snapshot != l.brokerEnd || foreign(x.snapshot, row) || row.State == evidence.RowRefused ||
			row.PublishID == "" && row.BusinessID == "" || before[row.MessageID+" "+row.BusinessID+" "+row.PublishID] {
			continue
		}
		out.instances++
		if s.Trust != evidence.Exact {
			out.undecided("a row that nobody published, but the rows may lag behind")
			continue
		}
		out.violate(byAbsence, Finding{Kind: "unknown-row", BusinessID: row.BusinessID, PublishID: row.PublishID, MessageID: row.MessageID,
			HandOver: ClientToBroker, Events: events(s.Seq),
			Text: fmt.Sprintf("a %s row of %s%s is stored, and nobody published it", row.State, row.BusinessID, row.PublishID)})
	}
	out.measures = []Measure{{"rows at the end", float64(s.Count), "rows"}, {"expired rows that linger", float64(c.lingering), "rows"}}
}

func (c *reconciliation) compareCounts(l *ledger, s *evidence.Snapshot, out *ruling) {
	out.instances++
	out.measures = []Measure{{"rows at the end", float64(s.Count), "rows"}}
	switch {
	case c.fanOut || c.expired || l.manifest.Profile.KeepsRows:
		out.undecided("a count cannot be compared where several subscribers, expiry or kept rows make it ambiguous")
	case s.Count < c.open || s.Count > c.open+c.inDoubt:
		f := Finding{Kind: "count-differs", HandOver: BrokerToStore, Events: events(s.Seq),
			Text: fmt.Sprintf("the broker counts %d rows; by the clients it should be %d to %d", s.Count, c.open, c.open+c.inDoubt)}
		out.violate(byAbsence, f)
	}
}
