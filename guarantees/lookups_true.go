package guarantees

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees/internal/ledger"
)

var lookupsTrue = Guarantee{
	Name: evidence.LookupsTrue, Usual: "status query",
	Text: "What the system's look-up says of a business ID is true: stored, settled, dead-lettered, forgotten or never stored.",
	Rule: "Per answered look-up, by what the run proves of every publish of the business ID at that time. Of several messages the one that says most answers: stored before settled before dead-lettered before forgotten. Whatever is not certain (an acknowledgement under way, a time to live about to end, a wrong clock, another partition) allows every answer.",
	new:  func() checker { return &lookups{} },
}

// lookups compares each answer with the possible standings of every message of
// the business ID.
type lookups struct{}

// standings is a set of possible standings of a message, least informative
// first.
type standings uint8

const (
	mayBeAbsent standings = 1 << iota
	mayBeForgotten
	mayBeDead
	mayBeSettled
	mayBeStored

	mayBeAny = mayBeAbsent | mayBeForgotten | mayBeDead | mayBeSettled | mayBeStored
)

var standingBits = map[evidence.Standing]standings{evidence.Absent: mayBeAbsent, evidence.Forgotten: mayBeForgotten,
	evidence.Dead: mayBeDead, evidence.Settled: mayBeSettled, evidence.Stored: mayBeStored}

func (c *lookups) close(v view, m *message, out *ruling) {
	for i := range m.Lookups {
		k := &m.Lookups[i]
		said := standingBits[k.Standing]
		if k.Returned.Seq == 0 || said == 0 {
			continue
		}
		about := []*message{m}
		if !k.ByPublish {
			about = v.Group(m)
		}
		// The answer must be at least the highest lower bound of any message,
		// and possible for one of them.
		least, may := standings(0), standings(0)
		var proof *message
		for _, o := range about {
			can := c.standings(v, o, k)
			may |= can
			if low := can & -can; low > least {
				least, proof = low, o
			}
		}
		if may == 0 { // provably nothing was stored
			may = mayBeAbsent | mayBeForgotten
		}
		out.instances++
		if said >= least && may&said != 0 {
			continue
		}
		if proof == nil {
			proof = m
		}
		f := v.finding(proof, nil, "lookup-"+k.Standing.String(), BrokerToClient, k.Called.Seq, k.Returned.Seq, proof.Returned.Seq)
		f.Text = fmt.Sprintf("the system answered that %s is %s, and the run proves that it was %s", v.Label(proof), k.Standing, may.atLeast(least))
		out.violate(byEvents, f)
	}
}

func (s standings) atLeast(least standings) string {
	text := ""
	for s &^= least - 1; s != 0; s &= s - 1 {
		if text != "" {
			text += " or "
		}
		text += standingNames[bits.TrailingZeros8(uint8(s))]
	}
	return text
}

var standingNames = [...]string{"never stored", "forgotten", "dead-lettered", "settled", "stored"}

// standings returns the possible standings of one message at the time of a
// look-up.
func (c *lookups) standings(v view, m *message, k *ledger.Lookup) standings {
	asked := func(s stamp) bool { return s.Before(k.Called) }
	since := func(s stamp) bool { return s.Seq != 0 && s.Seq > k.Returned.Seq && s.At > k.Returned.At }
	switch {
	case m.Called.Seq == 0, since(m.Called), repeats(v, m):
		return 0 // not published yet, or an alias
	case v.Automatic, v.ClockSet, v.Moved(), m.Frozen, len(m.Receipts) > 1:
		return mayBeAny
	case m.Refused() && asked(m.Returned):
		return 0
	case !m.Accepted() || !asked(m.Returned):
		return mayBeAny
	case asked(m.Purged):
		return mayBeForgotten
	case m.Purged.Seq != 0 && !since(m.Purged), m.Redriven > 0:
		return mayBeAny
	case c.seenDead(v, m, k):
		return mayBeDead
	case m.DeadLettered.Seq != 0 && !since(m.DeadLettered):
		return mayBeAny
	}
	r := &receipt{}
	if len(m.Receipts) == 1 {
		r = &m.Receipts[0]
	}
	if m.TTL > 0 {
		tolerance := v.Limits.ExpiryTolerance
		switch {
		case k.Returned.At+tolerance < m.Called.At+m.TTL: // it had not expired yet
		case asked(m.Returned) && k.Called.At > m.Returned.At+m.TTL+tolerance:
			may := mayBeForgotten | mayBeDead
			if r.AckCalled.Seq != 0 && !since(r.AckCalled) {
				may |= mayBeSettled
			}
			return may
		default:
			return mayBeAny
		}
	}
	switch {
	case asked(r.Confirm):
		may := mayBeSettled
		if remembers := v.Limits.Remembers; remembers == 0 || k.Returned.At-r.Confirm.At >= remembers {
			may |= mayBeForgotten
		}
		if v.FailedBetween(r.AckCalled, k.Returned) { // the row may have survived the confirmation
			may |= mayBeStored | mayBeDead
		}
		return may
	case r.AckCalled.Seq != 0 && !since(r.AckCalled):
		return mayBeAny
	case v.DeliverFrames && (r.Deliveries == 0 || since(r.First)) && m.Struck == nil && (m.Carried.Seq == 0 || since(m.Carried)):
		return mayBeStored
	}
	return mayBeStored | mayBeDead
}

// repeats reports whether m is an alias of another publish that may be stored.
func repeats(v view, m *message) bool {
	return m.Alias && slices.ContainsFunc(v.Aliases(m), func(o *message) bool { return o != m && !o.Alias && !o.Refused() })
}

// seenDead reports whether an earlier snapshot shows m dead-lettered.
func (c *lookups) seenDead(v view, m *message, k *ledger.Lookup) bool {
	for _, s := range m.Rows {
		if s.Certain && s.Row.State == evidence.RowDead && ledger.StampOfSnapshot(s.Snapshot).Before(k.Called) {
			return true
		}
	}
	return false
}
