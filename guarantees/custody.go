package guarantees

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/custodymq/custody/evidence"
)

// The parties that can be responsible for a message.
type party uint8

const (
	partyClient party = iota
	partyBroker
	partyStore
	partyConsumer
	partyBusiness
	partySettled
	partyDead
	partyNobody
)

var partyNames = [...]string{"client", "broker", "store", "consumer", "business", "settled", "dead-letter", "nobody"}

// step begins an interval of a custody timeline, or marks the one that is open.
type step struct {
	stamp
	party party
	mark  string
}

// maxSteps of one timeline: a message that is redelivered for ever must not
// fill the memory.
const maxSteps = 64

// holder is the party that an acceptance names.
func holder(h evidence.HeldBy) party {
	switch h {
	case evidence.HeldByStore, evidence.HeldByReplicas:
		return partyStore
	case evidence.HeldByClient:
		return partyClient
	}
	return partyBroker
}

// step hands a message to the next party. Timelines are kept for the first
// publishes of a run only; see ledger.table for the others.
func (l *ledger) step(m *message, p party) {
	n := len(m.steps)
	if m.steps == nil || n == maxSteps || n > 0 && (m.steps[n-1].party == p || m.steps[n-1].party == partySettled && p != partyConsumer) {
		return
	}
	m.steps = append(m.steps, step{stamp: l.now, party: p})
}

// mark notes on the open interval that a fault struck in it.
func (l *ledger) mark(m *message, what string) {
	n := len(m.steps)
	if n == 0 || m.steps[n-1].mark == what {
		return
	}
	if m.steps[n-1].mark == "" {
		m.steps[n-1].mark = what
	} else if len(m.steps[n-1].mark) < 200 {
		m.steps[n-1].mark += ", " + what
	}
}

// table gives the messages of the report: those that a finding names first,
// then what never settled, then the rest in the order of their calls.
func (l *ledger) table(found []Finding) (table []Message, leftOut int) {
	named := make(map[ref]bool, len(found))
	for _, f := range found {
		if r := l.lookUp(f.PublishID); r != 0 {
			named[r] = true
		}
	}
	type row struct {
		rank int
		seq  uint64
		ref  ref
	}
	var rows []row
	total := 0
	for r := ref(1); r <= ref(l.slots.n); r++ {
		s := l.slots.at(uint32(r))
		if s.hot == 0 && !named[r] {
			total++
			continue
		}
		m := l.message(r)
		if m.called.seq == 0 {
			continue
		}
		total++
		switch {
		case named[r]:
			rows = append(rows, row{0, m.called.seq, r})
		case l.open(m) && !m.frozen:
			rows = append(rows, row{1, m.called.seq, r})
		case m.steps != nil:
			rows = append(rows, row{2, m.called.seq, r})
		}
	}
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.seq, b.seq))
	})
	rows = rows[:min(len(rows), MaxMessages)]
	slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(a.seq, b.seq) })
	for _, r := range rows {
		table = append(table, l.tableRow(l.message(r.ref)))
	}
	return table, total - len(table)
}

// open reports whether an accepted message is not settled with every subscriber.
func (l *ledger) open(m *message) bool {
	for i := range m.receipts {
		if !l.acknowledged(&m.receipts[i]) {
			return true
		}
	}
	return m.accepted() && len(m.receipts) == 0
}

func (l *ledger) tableRow(m *message) Message {
	t := Message{BusinessID: m.businessID, PublishID: m.publishID, MessageID: m.messageID,
		Acceptance: m.acceptance, HeldBy: m.heldBy, Acked: len(m.receipts) > 0}
	for i := range m.receipts {
		r := &m.receipts[i]
		t.Deliveries += r.deliveries
		t.Acked = t.Acked && l.acknowledged(r)
		t.Effects += l.effectsOf(m, r.sub)
	}
	for _, s := range m.rows {
		t.Rows = append(t.Rows, fmt.Sprintf("%s: %s", s.snapshot.Checkpoint, s.row.State))
	}
	steps := m.steps
	if steps == nil && m.called.seq > 1 {
		steps = l.reconstruct(m)
	}
	end := l.now.at
	for i, s := range steps {
		to := end
		if i+1 < len(steps) {
			to = steps[i+1].at
		}
		t.Custody = append(t.Custody, Interval{Party: partyNames[s.party], From: int64(s.at), To: int64(max(to, s.at)), Mark: s.mark, Event: s.seq})
	}
	return t
}

// reconstruct makes a timeline from the stamps that every open record has.
func (l *ledger) reconstruct(m *message) []step {
	steps := []step{{stamp: m.called, party: partyClient}}
	add := func(s stamp, p party) {
		if s.seq != 0 {
			steps = append(steps, step{stamp: s, party: p})
		}
	}
	if m.accepted() {
		add(m.returned, holder(m.heldBy))
	}
	for i := range m.receipts {
		r := &m.receipts[i]
		add(r.first, partyConsumer)
		add(r.acked, partySettled)
	}
	add(m.deadLettered, partyDead)
	add(m.purged, partyNobody)
	slices.SortStableFunc(steps, func(a, b step) int { return cmp.Compare(a.seq, b.seq) })
	for i := range m.struck {
		for k := len(steps) - 1; k >= 0; k-- {
			if steps[k].seq <= m.struck[i].seq {
				steps[k].mark = m.struck[i].how + " " + m.struck[i].frame
				break
			}
		}
	}
	return steps
}

// milliseconds for a measure.
func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
