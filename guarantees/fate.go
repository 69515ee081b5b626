package guarantees

import (
	"fmt"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees/internal/ledger"
)

// emptyEnd reports whether the broker counted no rows at the end.
func (v view) emptyEnd() bool {
	return v.BrokerEnd != nil && v.BrokerEnd.Trust == evidence.CountsOnly && v.BrokerEnd.Count == 0
}

// quiet reports whether the drain ended with proof that nothing more is coming.
func (v view) quiet() bool {
	switch v.DrainReason {
	case evidence.DrainSettled, evidence.DrainBarrier, evidence.DrainQuiet:
		return true
	}
	return false
}

// fate is what became of an accepted message for one logical subscriber.
type fate uint8

const (
	fulfilled fate = iota
	excused        // provably dead-lettered with a reason, purged or expired
	kept           // in a visible row, no consumer ready
	waiting        // in a visible row or in flight, a consumer ready
	unproven       // not served, but not proven lost
	lost
)

type outcomeOf struct {
	fate
	why      string
	handOver HandOver
}

// obliged returns the receipts owed for an accepted message. If no subscriber
// certainly matched, somebody must still get the message: then it is the
// receipt that got furthest, or an empty one.
func (v view) obliged(m *message) []*receipt {
	var must []*receipt
	for i := range m.Receipts {
		r := &m.Receipts[i]
		s := v.Subscriber(r.Sub)
		// A non-durable subscriber that ended before it was served is owed
		// nothing.
		if r.Must && (s == nil || s.Durable || s.Died.Seq < m.Called.Seq || r.Deliveries > 0) {
			must = append(must, r)
		}
	}
	if must != nil {
		return must
	}
	best := &receipt{}
	for i := range m.Receipts {
		r := &m.Receipts[i]
		if best.Sub == 0 || r.Deliveries > best.Deliveries || v.reached(m, r) && !v.reached(m, best) {
			best = r
		}
	}
	return []*receipt{best}
}

// reached reports whether there is a business effect, or, in a run without
// effects, an acknowledgement.
func (v view) reached(m *message, r *receipt) bool {
	if v.HasEffects {
		return v.EffectsOf(m, r.Sub) > 0
	}
	return v.Acknowledged(r)
}

// fateOf judges one obligation, once all events and rows are read.
func (v view) fateOf(m *message, r *receipt) outcomeOf {
	if v.HasEffects && v.BusinessEnd == nil {
		return outcomeOf{unproven, "effects were reported, and no business rows were read to judge them by", ""}
	}
	acked := v.Acknowledged(r)
	for _, o := range v.Aliases(m) {
		or := o.Find(r.Sub)
		if or == nil && r.Sub != 0 {
			continue
		}
		if r.Sub == 0 || o != m {
			for i := range o.Receipts {
				if (r.Sub == 0 || o.Receipts[i].Sub == r.Sub) && v.reached(o, &o.Receipts[i]) {
					return outcomeOf{fate: fulfilled}
				}
			}
		} else if v.reached(o, or) {
			return outcomeOf{fate: fulfilled}
		}
		if or != nil {
			acked = acked || v.Acknowledged(or)
		}
	}
	if why := v.excuse(m, r); why != "" {
		return outcomeOf{excused, why, ""}
	}
	row := v.anyEndRow(m, r.Sub, evidence.RowPending)
	// A refused row is kept and never delivered.
	if v.anyEndRow(m, r.Sub, evidence.RowRefused) != nil {
		return outcomeOf{kept, "refused, its row untouched", ""}
	}
	if acked && v.HasEffects {
		return outcomeOf{lost, "acknowledged without its effect", ConsumerToBusiness}
	}
	maybeAcked := r.AckCalled.Seq != 0
	if row != nil {
		if v.Ready(m, r.Sub) {
			return outcomeOf{waiting, "still stored at the end with a consumer ready", ""}
		}
		return outcomeOf{kept, "stored, and no consumer there", ""}
	}
	if maybeAcked && !v.HasEffects {
		return outcomeOf{fate: fulfilled} // the client did its part, and no row remains
	}
	if !v.absent(m, r) {
		return outcomeOf{unproven, "not served by the end, and neither rows nor the drain prove that it never will be", ""}
	}
	if maybeAcked {
		return outcomeOf{lost, "acknowledged without its effect", ConsumerToBusiness}
	}
	if limit := v.Limits.MaxAttempts; limit > 0 && max(r.Deliveries, r.Attempt) >= limit && !v.ExactEnd() {
		return outcomeOf{unproven, "its attempts are used up, and no exact look shows the dead letters", ""}
	}
	if r.Rewound.Seq != 0 && r.Deliveries == 0 {
		return outcomeOf{lost, "its subscriber was put back, and it did not come again", v.lastSeen(m, r)}
	}
	if r.Deliveries > 0 {
		return outcomeOf{lost, "accepted, handed over, not settled, and kept nowhere", v.lastSeen(m, r)}
	}
	return outcomeOf{lost, "accepted and never served", v.lastSeen(m, r)}
}

func (v view) anyEndRow(m *message, sub symbol, state evidence.RowState) *evidence.StoredRow {
	for _, o := range v.Aliases(m) {
		if row := v.EndRow(o, sub, state); row != nil {
			return row
		}
	}
	return nil
}

// absent reports whether a message is provably gone: by an exact snapshot, or
// by a drain that ended on evidence. Messages held in memory have no rows, and
// quiet proves nothing if no consumer was ready, if one may still hold the
// message, or if a fault withheld it.
func (v view) absent(m *message, r *receipt) bool {
	if (v.ExactEnd() || v.emptyEnd()) && m.HeldBy != evidence.HeldByBrokerMemory && m.HeldBy != evidence.HeldByClient {
		return true
	}
	if m.Withheld.Seq > max(m.Carried.Seq, r.Last.Seq) {
		return false
	}
	return v.quiet() && v.Ready(m, r.Sub) && (v.DrainReason != evidence.DrainQuiet || !v.heldSomewhere(r.Sub))
}

// heldSomewhere reports whether a message may be held by a consumer that never
// settles, or be among rows that are only counted.
func (v view) heldSomewhere(sub symbol) bool {
	if v.BrokerEnd != nil && v.BrokerEnd.Trust == evidence.CountsOnly && v.BrokerEnd.Count > 0 {
		return true
	}
	for _, s := range v.Subscribers {
		if (sub == 0 || s.Name == sub) && s.Live > 0 && (s.InFlight > 0 || v.waitsForAck(s)) {
			return true
		}
	}
	return false
}

// waitsForAck reports whether the system still waits for an acknowledgement
// that one of our faults withheld, and so may hold back later messages.
func (v view) waitsForAck(s *subscriber) bool {
	return v.Profile.Redelivers != evidence.RedeliverTimeout && s.AckWithheld.Seq > max(s.Ended.Seq, s.Died.Seq)
}

// dropped reports whether a message was delivered so often that the system
// drops it by design.
func (v view) dropped(r *receipt) bool {
	limit := v.Limits.DropsAfter
	return limit > 0 && max(r.Deliveries, r.Attempt) >= limit
}

// excuse proves that a message was legitimately not served; empty without
// proof.
func (v view) excuse(m *message, r *receipt) string {
	if v.dropped(r) {
		return "dropped after its last delivery, as the profile says"
	}
	for _, o := range v.Aliases(m) {
		row := v.EndRow(o, r.Sub, evidence.RowDead)
		switch {
		case row != nil && row.Cause != evidence.NoCause:
			return "dead-lettered: " + quoteDead(row.Cause, wordsOf(row))
		case o.DeadLettered.Seq != 0 && o.DeadCause != evidence.NoCause:
			return "dead-lettered: " + quoteDead(o.DeadCause, o.DeadWords)
		case o.Purged.Seq != 0:
			return "purged by command"
		case o.ExpiredSaid.Seq != 0:
			return "expired, as the system said"
		}
		if row = v.EndRow(o, r.Sub, evidence.RowPending); row != nil && row.Expired {
			return "expired, its row lingers"
		}
		// The system's TTL starts at the call at the earliest.
		if o.Deadline() > 0 && o.Called.At+o.TTL <= v.Now.At && !o.Owed {
			return "expired before it was settled"
		}
	}
	return ""
}

// lastSeen returns the hand-over at which a message was lost: the one after
// the party last known to be responsible.
func (v view) lastSeen(m *message, r *receipt) HandOver {
	stored := len(m.Rows) > 0
	switch {
	case m.HeldBy == evidence.HeldByClient:
		return ClientToBroker
	case m.HeldBy == evidence.HeldByBrokerMemory || m.HeldBy == evidence.HeldByNobody && r.Deliveries > 0:
		return BrokerToConsumer
	case stored || r.Deliveries > 0 || m.Carried.Seq != 0:
		return StoreToConsumer
	}
	return BrokerToStore
}

// rowText describes a row within a sentence.
func (v view) rowText(s ledger.Row) string {
	return fmt.Sprintf("a %s row at %q", s.Row.State, s.Snapshot.Checkpoint)
}
