package guarantees

import (
	"fmt"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees/internal/ledger"
)

var rowsMatchClients = Guarantee{
	Name: evidence.RowsMatchClients, Usual: "reconciliation",
	Text: "The stored rows and what the clients saw tell the same story.",
	Rule: "Row by row where the last snapshot is exact; by count where it only counts; a lagging one proves no difference. An expired row that lingers is legal, and counted. A row that the system must refuse (of another protocol version, or damaged) stays where it was first seen, with its content.",
	new:  func() checker { return &reconciliation{} },
}

// reconciliation compares the broker's last snapshot with the clients' calls.
type reconciliation struct {
	open, inDoubt   int // accepted and unsettled; unknown and unsettled
	fanOut, expired bool
	lingering       int
}

func (c *reconciliation) close(v view, m *message, out *ruling) {
	if v.BrokerEnd == nil {
		return
	}
	c.count(v, m)
	if v.BrokerEnd.Trust == evidence.CountsOnly {
		return
	}
	if len(m.Rows) > 0 {
		c.rows(v, m, out)
	}
	if m.Accepted() {
		out.instances++
		c.missing(v, m, out)
	}
}

// count handles systems that report only the number of their rows.
func (c *reconciliation) count(v view, m *message) {
	settled := len(m.Receipts) > 0
	must := 0
	for i := range m.Receipts {
		settled = settled && v.Acknowledged(&m.Receipts[i])
		if m.Receipts[i].Must {
			must++
		}
	}
	c.fanOut = c.fanOut || must > 1
	c.expired = c.expired || m.TTL > 0
	switch {
	case settled, m.Alias, m.Purged.Seq != 0, m.DeadLettered.Seq != 0:
	case m.Accepted():
		c.open++
	case m.Unknown():
		c.inDoubt++
	}
}

// place is where one message has at most one row.
type place struct{ partition, subscription string }

func placeOf(r *evidence.StoredRow) place { return place{r.Partition, r.Subscription} }

// rows judges the rows of one publish.
func (c *reconciliation) rows(v view, m *message, out *ruling) {
	pending := make(map[place]int)
	for _, o := range v.Aliases(m) {
		if o.Ref >= m.Ref {
			continue
		}
		for _, s := range o.Rows { // aliases share one stored message
			if s.Snapshot == v.BrokerEnd && s.Certain && s.Row.State == evidence.RowPending {
				pending[placeOf(s.Row)] = 1
			}
		}
	}
	for _, s := range m.Rows {
		if s.Snapshot != v.BrokerEnd {
			continue
		}
		row := s.Row
		out.instances++
		if row.Expired {
			c.lingering++
		}
		switch {
		case row.Digest != "" && m.DigestKey != 0 && ledger.Hash(row.Digest) != m.DigestKey && s.Certain && !m.StruckBy("corrupt"):
			c.differ(v, m, nil, out, "row-altered", fmt.Sprintf("%s is stored with another payload than was sent", v.Label(m)))
		case row.State == evidence.RowPending:
			if !s.Certain {
				break
			}
			if pending[placeOf(row)]++; pending[placeOf(row)] == 2 && !m.Copied() {
				c.differ(v, m, nil, out, "double-row", fmt.Sprintf("%s has two pending rows", v.Label(m)))
			}
			c.acknowledged(v, m, row, out)
		case row.State == evidence.RowProcessed && !row.Expired && !(v.ClockSet && m.TTL > 0) && s.Certain && !v.Automatic && !asked(m):
			c.differ(v, m, nil, out, "processed-unseen", fmt.Sprintf("%s is marked processed, and no client acknowledged it", v.Label(m)))
		}
	}
}

// acknowledged judges a pending row of a message that every client has
// acknowledged.
func (c *reconciliation) acknowledged(v view, m *message, row *evidence.StoredRow, out *ruling) {
	at := v.BrokerEnd.At
	var last *receipt
	for i := range m.Receipts {
		r := &m.Receipts[i]
		if row.Subscription != "" && v.Name(r.Sub) != row.Subscription || !r.Must && r.Deliveries == 0 {
			continue
		}
		if r.Confirm.Seq == 0 || at <= r.Confirm.At+v.Limits.DeleteBound || v.Paused(r.Confirm.At, at) || !v.Profile.ConfirmIsDurable && v.MayOwe(r, at) {
			return
		}
		last = r
	}
	if last != nil && !m.Copied() && v.Limits.DeleteBound > 0 {
		c.differ(v, m, last, out, "acked-but-pending", fmt.Sprintf("%s was acknowledged and confirmed, and is still pending", v.Label(m)))
	}
}

// asked reports whether any client ever called an acknowledgement of m, even
// before a rewind.
func asked(m *message) bool {
	for i := range m.Receipts {
		if m.Receipts[i].AckCalled.Seq != 0 || m.Receipts[i].Rewound.Seq != 0 {
			return true
		}
	}
	return false
}

// missing finds accepted messages that are neither settled by a client nor in
// any row. Under a clock fault, a message may have expired by the broker's
// clock.
func (c *reconciliation) missing(v view, m *message, out *ruling) {
	if m.Frozen || m.HeldBy != evidence.HeldByStore && m.HeldBy != evidence.HeldByReplicas || asked(m) || v.ClockSet && m.TTL > 0 {
		return
	}
	for _, r := range v.obliged(m) {
		if v.fateOf(m, r).fate == lost && r.Deliveries == 0 {
			c.differ(v, m, r, out, "missing-row", fmt.Sprintf("%s was accepted as stored, nobody was served, and it has no row", v.Label(m)))
			return
		}
	}
}

func (c *reconciliation) differ(v view, m *message, r *receipt, out *ruling, kind, text string) {
	s := v.BrokerEnd
	if s.Trust != evidence.Exact {
		out.undecided(text + ", but the rows may lag behind")
		return
	}
	f := v.finding(m, r, kind, BrokerToStore, m.Returned.Seq, s.Seq)
	f.Text = text
	out.violate(byEvents, f)
}

func (c *reconciliation) conclude(v view, out *ruling) {
	if v.BrokerEnd == nil {
		return
	}
	s := v.BrokerEnd
	if s.Trust == evidence.CountsOnly {
		c.compareCounts(v, s, out)
		return
	}
	c.untouched(v, s, out)
	// Rows from before the run, or of other partitions, are not judged.
	before := make(map[string]bool)
	for i := range v.Snapshots {
		if v.Snapshots[i].Checkpoint == "start" {
			for _, row := range v.Snapshots[i].Rows {
				before[identity(&row)] = true
			}
		}
	}
	for _, x := range v.Strays {
		row := x.Row
		if x.Snapshot != v.BrokerEnd || ledger.Foreign(x.Snapshot, row) || row.State == evidence.RowRefused ||
			row.PublishID == "" && row.BusinessID == "" || before[identity(row)] {
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

func identity(row *evidence.StoredRow) string {
	return row.MessageID + " " + row.BusinessID + " " + row.PublishID
}

// untouched compares each refused row of the last snapshot with those before.
func (c *reconciliation) untouched(v view, end *evidence.Snapshot, out *ruling) {
	kept := make(map[string]*evidence.StoredRow)
	for i := range end.Rows {
		if row := &end.Rows[i]; row.State == evidence.RowRefused {
			kept[identity(row)] = row
		}
	}
	seen := make(map[string]bool)
	for i := range v.Snapshots {
		s := &v.Snapshots[i]
		if s == end || s.Source != evidence.SourceBroker || s.Trust != evidence.Exact {
			continue
		}
		for k := range s.Rows {
			row := &s.Rows[k]
			if row.State != evidence.RowRefused || seen[identity(row)] {
				continue
			}
			seen[identity(row)] = true
			out.instances++
			f := Finding{BusinessID: row.BusinessID, MessageID: row.MessageID, HandOver: BrokerToStore, Events: events(s.Seq, end.Seq)}
			switch now := kept[identity(row)]; {
			case end.Trust != evidence.Exact:
				out.undecided("a row must be refused and kept, but the last rows may lag behind")
				continue
			case now == nil:
				f.Kind, f.Text = "refused-row-gone", fmt.Sprintf("the row of %s, which the system must refuse and keep, is gone", row.BusinessID)
			case now.Digest != row.Digest || now.Destination != row.Destination || now.Version != row.Version:
				f.Kind, f.Text = "refused-row-altered", fmt.Sprintf("the row of %s, which the system must refuse and leave as it is, was altered", row.BusinessID)
			default:
				continue
			}
			out.violate(byEvents, f)
		}
	}
}

func (c *reconciliation) compareCounts(v view, s *evidence.Snapshot, out *ruling) {
	out.instances++
	out.measures = []Measure{{"rows at the end", float64(s.Count), "rows"}}
	switch {
	case c.fanOut || c.expired || v.Profile.KeepsRows:
		out.undecided("a count cannot be compared where several subscribers, expiry or kept rows make it ambiguous")
	case s.Count < c.open || s.Count > c.open+c.inDoubt:
		f := Finding{Kind: "count-differs", HandOver: BrokerToStore, Events: events(s.Seq),
			Text: fmt.Sprintf("the broker counts %d rows; by the clients it should be %d to %d", s.Count, c.open, c.open+c.inDoubt)}
		out.violate(byAbsence, f)
	}
}
