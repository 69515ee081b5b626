package ledger

import "github.com/custodymq/custody/evidence"

// checkpointEnd names the snapshot taken after the watch.
const checkpointEnd = "end"

// ReadRows attributes the stored rows to publishes, once all events are read.
func (l *Ledger) ReadRows() {
	l.Effects = make(map[EffectKey][]*evidence.StoredRow)
	for i := range l.Snapshots {
		s := &l.Snapshots[i]
		if s.Source == evidence.SourceBusiness {
			l.BusinessEnd = s // the newest wins
			continue
		}
		if s.Checkpoint == checkpointEnd {
			l.BrokerEnd = s
		}
		for k := range s.Rows {
			l.placeRow(s, &s.Rows[k])
		}
	}
	if l.BusinessEnd == nil {
		return
	}
	for i := range l.BusinessEnd.Rows {
		if r := &l.BusinessEnd.Rows[i]; r.State == evidence.RowEffect {
			k := EffectKey{Hash(r.BusinessID), l.Symbol(r.Subscription)}
			l.Effects[k] = append(l.Effects[k], r)
		}
	}
}

func (l *Ledger) placeRow(snapshot *evidence.Snapshot, row *evidence.StoredRow) {
	var m *Message
	if row.PublishID == "" || l.LookUp(row.PublishID) != 0 {
		m = l.Resolve(row.PublishID, row.MessageID, row.BusinessID)
	}
	if m == nil {
		l.Strays = append(l.Strays, Stray{snapshot, row})
		return
	}
	// Publishes that chose the same message ID share it, so it identifies none
	// of them.
	named := row.PublishID != "" || row.MessageID != "" && m.MessageKey == Hash(row.MessageID) && len(l.Aliases(m)) == 1
	if named || m.Sole() {
		m.Rows = append(m.Rows, Row{snapshot, row, true})
		return
	}
	for _, o := range l.Group(m) {
		o.Rows = append(o.Rows, Row{snapshot, row, false})
	}
}

// EffectsOf counts the business rows of m's business ID for one logical
// subscriber. A row without a subscriber counts for every subscriber.
func (v *View) EffectsOf(m *Message, sub Symbol) int {
	n := len(v.Effects[EffectKey{m.BusinessKey, sub}])
	if sub != 0 {
		n += len(v.Effects[EffectKey{m.BusinessKey, 0}])
	}
	return n
}

// EndRow returns a row of m in this state in the broker's last snapshot, or
// nil.
func (v *View) EndRow(m *Message, sub Symbol, state evidence.RowState) *evidence.StoredRow {
	for _, s := range m.Rows {
		if s.Snapshot == v.BrokerEnd && s.Row.State == state &&
			(s.Row.Subscription == "" || sub == 0 || v.symbols[s.Row.Subscription] == sub) {
			return s.Row
		}
	}
	return nil
}

// ExactEnd reports whether the broker's last snapshot shows every row.
func (v *View) ExactEnd() bool { return v.BrokerEnd != nil && v.BrokerEnd.Trust == evidence.Exact }

// Foreign reports whether a row belongs to a different partition than its
// snapshot.
func Foreign(s *evidence.Snapshot, row *evidence.StoredRow) bool {
	return row.Partition != "" && row.Partition != s.Partition
}
