package guarantees

import (
	"fmt"

	"github.com/custodymq/custody/evidence"
)

// checkpointEnd is the snapshot that is taken after the watch.
const checkpointEnd = "end"

// readRows puts the stored rows beside the publishes they belong to.
func (l *ledger) readRows() {
	l.effects = make(map[effectKey][]*evidence.StoredRow)
	for i := range l.snapshots {
		s := &l.snapshots[i]
		if s.Source == evidence.SourceBusiness {
			l.businessEnd = s // the newest decides
			continue
		}
		if s.Checkpoint == checkpointEnd {
			l.brokerEnd = s
		}
		for k := range s.Rows {
			l.placeRow(s, &s.Rows[k])
		}
	}
	if l.businessEnd == nil {
		return
	}
	rows := l.businessEnd.Rows
	for i := range rows {
		r := &rows[i]
		if r.State == evidence.RowEffect {
			k := effectKey{hash(r.BusinessID), l.symbol(r.Subscription)}
			l.effects[k] = append(l.effects[k], r)
		}
	}
}

func (l *ledger) placeRow(snapshot *evidence.Snapshot, row *evidence.StoredRow) {
	var m *message
	if row.PublishID == "" || l.lookUp(row.PublishID) != 0 {
		m = l.resolve(row.PublishID, row.MessageID, row.BusinessID)
	}
	if m == nil {
		l.strayRows = append(l.strayRows, stray{snapshot, row})
		return
	}
	// Publishes of one chosen message ID share it: then it names none of them.
	named := row.PublishID != "" || row.MessageID != "" && m.messageKey == hash(row.MessageID) && len(l.aliases(m)) == 1
	if named || m.sole() {
		m.rows = append(m.rows, rowSeen{snapshot, row, true})
		return
	}
	for _, o := range l.group(m) {
		o.rows = append(o.rows, rowSeen{snapshot, row, false})
	}
}

// effectsOf counts the business rows of a message's business ID for one logical
// subscriber; a row that names none counts for each.
func (l *ledger) effectsOf(m *message, sub uint32) int {
	n := len(l.effects[effectKey{m.businessKey, sub}])
	if sub != 0 {
		n += len(l.effects[effectKey{m.businessKey, 0}])
	}
	return n
}

// endRow is a row of a message in the broker's last snapshot in this state.
func (l *ledger) endRow(m *message, sub uint32, state evidence.RowState) *evidence.StoredRow {
	for _, s := range m.rows {
		if s.snapshot == l.brokerEnd && s.row.State == state &&
			(s.row.Subscription == "" || sub == 0 || l.symbols[s.row.Subscription] == sub) {
			return s.row
		}
	}
	return nil
}

// exactEnd reports whether the broker's last snapshot shows every row.
func (l *ledger) exactEnd() bool {
	return l.brokerEnd != nil && l.brokerEnd.Trust == evidence.Exact
}

// emptyEnd reports whether the broker counts no row at all at the end.
func (l *ledger) emptyEnd() bool {
	return l.brokerEnd != nil && l.brokerEnd.Trust == evidence.CountsOnly && l.brokerEnd.Count == 0
}

// quiet reports whether the drain ended with a proof that nothing more comes.
func (l *ledger) quiet() bool {
	switch l.drainReason {
	case evidence.DrainSettled, evidence.DrainBarrier, evidence.DrainQuiet:
		return true
	}
	return false
}

// ready reports whether a logical subscriber has a consumer now, at the end.
// None named: whether any that matches has.
func (l *ledger) ready(m *message, sub uint32) bool {
	if s := l.bySymbol[sub]; s != nil {
		return s.live > 0
	}
	for _, s := range l.matching[m.destination] {
		if s.live > 0 {
			return true
		}
	}
	return false
}

// fate is what became of an accepted message for one logical subscriber.
type fate uint8

const (
	fulfilled fate = iota
	excused        // with proof: dead-lettered with a reason, purged, expired
	kept           // in a visible row, and nobody there to take it
	waiting        // in a visible row or in flight, with a consumer ready
	unproven       // not served, and nothing proves it lost
	lost
)

type outcomeOf struct {
	fate
	why      string
	handOver HandOver
}

// obliged are the receipts that an accepted message owes. Where no subscriber
// matched for certain, somebody must still get it: then the receipt that came
// furthest, or an empty one.
func (l *ledger) obliged(m *message) []*receipt {
	var must []*receipt
	for i := range m.receipts {
		r := &m.receipts[i]
		s := l.bySymbol[r.sub]
		// A subscriber that ended before it was served is owed nothing of its
		// own; one that is durable, or was served, is.
		if r.must && (s == nil || s.durable || s.died.seq < m.called.seq || r.deliveries > 0) {
			must = append(must, r)
		}
	}
	if must != nil {
		return must
	}
	best := &receipt{}
	for i := range m.receipts {
		r := &m.receipts[i]
		if best.sub == 0 || r.deliveries > best.deliveries || l.reached(m, r) && !l.reached(m, best) {
			best = r
		}
	}
	return []*receipt{best}
}

// reached: the business effect is there; where the run has none, the acknowledgement.
func (l *ledger) reached(m *message, r *receipt) bool {
	if l.hasEffects {
		return l.effectsOf(m, r.sub) > 0
	}
	return l.acknowledged(r)
}

// fateOf judges one obligation. It is called when all events and rows are read.
func (l *ledger) fateOf(m *message, r *receipt) outcomeOf {
	if l.hasEffects && l.businessEnd == nil {
		return outcomeOf{unproven, "effects were reported, and no business rows were read to judge them by", ""}
	}
	acked := l.acknowledged(r)
	for _, o := range l.aliases(m) {
		or := o.find(r.sub)
		if or == nil && r.sub != 0 {
			continue
		}
		if r.sub == 0 || o != m {
			for i := range o.receipts {
				if (r.sub == 0 || o.receipts[i].sub == r.sub) && l.reached(o, &o.receipts[i]) {
					return outcomeOf{fate: fulfilled}
				}
			}
		} else if l.reached(o, or) {
			return outcomeOf{fate: fulfilled}
		}
		if or != nil {
			acked = acked || l.acknowledged(or)
		}
	}
	if why := l.excuse(m, r); why != "" {
		return outcomeOf{excused, why, ""}
	}
	row := l.anyEndRow(m, r.sub, evidence.RowPending)
	// A refused row (of another protocol version) is shown and kept, not served.
	if l.anyEndRow(m, r.sub, evidence.RowRefused) != nil {
		return outcomeOf{kept, "refused by version, its row untouched", ""}
	}
	if acked && l.hasEffects {
		return outcomeOf{lost, "acknowledged without its effect", ConsumerToBusiness}
	}
	maybeAcked := r.ackCalled.seq != 0
	if row != nil {
		if l.ready(m, r.sub) {
			return outcomeOf{waiting, "still stored at the end with a consumer ready", ""}
		}
		return outcomeOf{kept, "stored, and no consumer there", ""}
	}
	if maybeAcked && !l.hasEffects {
		return outcomeOf{fate: fulfilled} // the client did its part, and nothing is left
	}
	if !l.absent(m, r) {
		return outcomeOf{unproven, "not served by the end, and neither rows nor the drain prove that it never will be", ""}
	}
	if maybeAcked {
		return outcomeOf{lost, "acknowledged without its effect", ConsumerToBusiness}
	}
	if limit := l.limits.MaxAttempts; limit > 0 && max(r.deliveries, r.attempt) >= limit && !l.exactEnd() {
		return outcomeOf{unproven, "its attempts are used up, and no exact look shows the dead letters", ""}
	}
	if r.rewound.seq != 0 && r.deliveries == 0 {
		return outcomeOf{lost, "its subscriber was put back, and it did not come again", l.lastSeen(m, r)}
	}
	if r.deliveries > 0 {
		return outcomeOf{lost, "accepted, handed over, not settled, and kept nowhere", l.lastSeen(m, r)}
	}
	return outcomeOf{lost, "accepted and never served", l.lastSeen(m, r)}
}

func (l *ledger) anyEndRow(m *message, sub uint32, state evidence.RowState) *evidence.StoredRow {
	for _, o := range l.aliases(m) {
		if row := l.endRow(o, sub, state); row != nil {
			return row
		}
	}
	return nil
}

// absent reports whether it is proven that a message is nowhere any more: an
// exact look at the rows, or a drain that ended on evidence. Memory shows no
// rows, and quiet proves nothing where nobody was there to be served, where
// somebody may still have it, or where it is we who kept it back.
func (l *ledger) absent(m *message, r *receipt) bool {
	if (l.exactEnd() || l.emptyEnd()) && m.heldBy != evidence.HeldByBrokerMemory && m.heldBy != evidence.HeldByClient {
		return true
	}
	if m.withheld.seq > max(m.carried.seq, r.last.seq) {
		return false
	}
	return l.quiet() && l.ready(m, r.sub) && (l.drainReason != evidence.DrainQuiet || !l.heldSomewhere(r.sub))
}

// heldSomewhere reports whether a message may be in the hands of a consumer that settles
// nothing, or among rows that are only counted.
func (l *ledger) heldSomewhere(sub uint32) bool {
	if l.brokerEnd != nil && l.brokerEnd.Trust == evidence.CountsOnly && l.brokerEnd.Count > 0 {
		return true
	}
	for _, s := range l.subscribers {
		if (sub == 0 || s.name == sub) && s.live > 0 && s.inFlight > 0 {
			return true
		}
	}
	return false
}

// dropped reports whether a message has had all the deliveries after which its
// system drops it by design.
func (l *ledger) dropped(r *receipt) bool {
	limit := l.limits.DropsAfter
	return limit > 0 && max(r.deliveries, r.attempt) >= limit
}

// excuse is the proof that lets a message off; empty if there is none.
func (l *ledger) excuse(m *message, r *receipt) string {
	if l.dropped(r) {
		return "dropped after its last delivery, as the profile says"
	}
	for _, o := range l.aliases(m) {
		row := l.endRow(o, r.sub, evidence.RowDead)
		switch {
		case row != nil && row.Cause != evidence.NoCause:
			return "dead-lettered: " + quoteDead(row.Cause, wordsOf(row))
		case o.deadLettered.seq != 0 && o.deadCause != evidence.NoCause:
			return "dead-lettered: " + quoteDead(o.deadCause, o.deadWords)
		case o.purged.seq != 0:
			return "purged by command"
		case o.expiredSaid.seq != 0:
			return "expired, as the system said"
		}
		if row = l.endRow(o, r.sub, evidence.RowPending); row != nil && row.Expired {
			return "expired, its row lingers"
		}
		// The system counts from when it took the message: after the call at the earliest.
		if o.deadline() > 0 && o.called.at+o.ttl <= l.now.at && !o.owed {
			return "expired before it was settled"
		}
	}
	return ""
}

// lastSeen is the hand-over at which a lost message was last seen: the one
// after the party that was responsible.
func (l *ledger) lastSeen(m *message, r *receipt) HandOver {
	stored := len(m.rows) > 0
	switch {
	case m.heldBy == evidence.HeldByClient:
		return ClientToBroker
	case m.heldBy == evidence.HeldByBrokerMemory || m.heldBy == evidence.HeldByNobody && r.deliveries > 0:
		return BrokerToConsumer
	case stored || r.deliveries > 0 || m.carried.seq != 0:
		return StoreToConsumer
	}
	return BrokerToStore
}

// rowText names a row in a sentence.
func (l *ledger) rowText(s rowSeen) string {
	return fmt.Sprintf("a %s row at %q", s.row.State, s.snapshot.Checkpoint)
}

// foreign reports whether a row belongs to another partition than its snapshot.
func foreign(s *evidence.Snapshot, row *evidence.StoredRow) bool {
	return row.Partition != "" && row.Partition != s.Partition
}
