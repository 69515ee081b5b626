package guarantees

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/custodymq/custody/guarantees/internal/ledger"
)

// table selects the messages for the report: first those named by a finding,
// then those never settled, then the rest in call order.
func (v view) table(found []Finding) (table []Message, leftOut int) {
	named := make(map[ref]bool, len(found))
	for _, f := range found {
		if r := v.LookUp(f.PublishID); r != 0 {
			named[v.Message(r).Ref] = true // Message restores it if it was frozen
		}
	}
	type row struct {
		rank int
		seq  uint64
		ref  ref
	}
	var rows []row
	total := 0
	frozen := v.EachHot(func(m *message) {
		if m.Called.Seq == 0 {
			return
		}
		total++
		switch {
		case named[m.Ref]:
			rows = append(rows, row{0, m.Called.Seq, m.Ref})
		case !m.Frozen && v.open(m):
			rows = append(rows, row{1, m.Called.Seq, m.Ref})
		case m.Steps != nil:
			rows = append(rows, row{2, m.Called.Seq, m.Ref})
		}
	})
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.seq, b.seq))
	})
	rows = rows[:min(len(rows), MaxMessages)]
	slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(a.seq, b.seq) })
	for _, r := range rows {
		table = append(table, v.tableRow(v.Message(r.ref)))
	}
	return table, total + frozen - len(table)
}

// open reports whether an accepted message is unsettled for some subscriber.
func (v view) open(m *message) bool {
	for i := range m.Receipts {
		if !v.Acknowledged(&m.Receipts[i]) {
			return true
		}
	}
	return m.Accepted() && len(m.Receipts) == 0
}

func (v view) tableRow(m *message) Message {
	t := Message{BusinessID: m.BusinessID, PublishID: v.PublishID(m), MessageID: m.MessageID,
		Acceptance: m.Acceptance, HeldBy: m.HeldBy, Acked: len(m.Receipts) > 0}
	for i := range m.Receipts {
		r := &m.Receipts[i]
		t.Deliveries += r.Deliveries
		t.Acked = t.Acked && v.Acknowledged(r)
		t.Effects += v.EffectsOf(m, r.Sub)
	}
	for _, s := range m.Rows {
		t.Rows = append(t.Rows, fmt.Sprintf("%s: %s", s.Snapshot.Checkpoint, s.Row.State))
	}
	steps := m.Steps
	if steps == nil && m.Called.Seq > 1 {
		steps = v.reconstruct(m)
	}
	end := v.Now.At
	for i, s := range steps {
		to := end
		if i+1 < len(steps) {
			to = steps[i+1].At
		}
		t.Custody = append(t.Custody, Interval{Party: s.Party.String(), From: int64(s.At), To: int64(max(to, s.At)), Mark: s.Mark, Event: s.Seq})
	}
	return t
}

// reconstruct builds a timeline from the stamps of a record.
func (v view) reconstruct(m *message) []ledger.Step {
	steps := []ledger.Step{{Stamp: m.Called, Party: ledger.PartyClient}}
	add := func(s stamp, p ledger.Party) {
		if s.Seq != 0 {
			steps = append(steps, ledger.Step{Stamp: s, Party: p})
		}
	}
	if m.Accepted() {
		add(m.Returned, ledger.Holder(m.HeldBy))
	}
	for i := range m.Receipts {
		r := &m.Receipts[i]
		add(r.First, ledger.PartyConsumer)
		add(r.Acked, ledger.PartySettled)
	}
	add(m.DeadLettered, ledger.PartyDead)
	add(m.Purged, ledger.PartyNobody)
	slices.SortStableFunc(steps, func(a, b ledger.Step) int { return cmp.Compare(a.Seq, b.Seq) })
	for i := range m.Struck {
		for k := len(steps) - 1; k >= 0; k-- {
			if steps[k].Seq <= m.Struck[i].Seq {
				steps[k].Mark = m.Struck[i].How + " " + m.Struck[i].Frame
				break
			}
		}
	}
	return steps
}
