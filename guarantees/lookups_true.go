package guarantees

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/custodymq/custody/evidence"
)

var lookupsTrue = Guarantee{
	Name: evidence.LookupsTrue, Usual: "status query",
	Text: "What the system's look-up says of a business ID is true: stored, settled, dead-lettered, forgotten or never stored.",
	Rule: "Per answered look-up, by what the run proves of every publish of the business ID at that time. Of several messages the one that says most answers: stored before settled before dead-lettered before forgotten. Whatever is not certain (an acknowledgement under way, a time to live about to end, a wrong clock, another partition) allows every answer.",
	new:  func() checker { return &lookups{} },
}

// lookups compares answers with what each message of a business ID can be.
type lookups struct{}

// standings are those that a message may have. The later says more.
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

func (c *lookups) close(l *ledger, m *message, out *ruling) {
	for i := range m.lookups {
		k := &m.lookups[i]
		said := standingBits[k.standing]
		if k.returned.seq == 0 || said == 0 {
			continue
		}
		about := []*message{m}
		if !k.byPublish {
			about = l.group(m)
		}
		// One of them says at least this much, and none says more than that.
		least, may := standings(0), standings(0)
		var proof *message
		for _, o := range about {
			can := c.standings(l, o, k)
			may |= can
			if low := can & -can; low > least {
				least, proof = low, o
			}
		}
		if may == 0 { // nothing was there to be stored
			may = mayBeAbsent | mayBeForgotten
		}
		out.instances++
		if said >= least && may&said != 0 {
			continue
		}
		if proof == nil {
			proof = m
		}
		f := l.finding(proof, nil, "lookup-"+k.standing.String(), k.called.seq, k.returned.seq, proof.returned.seq)
		f.HandOver = BrokerToClient
		f.Text = fmt.Sprintf("the system answered that %s is %s, and the run proves that it was %s", l.label(proof), k.standing, may.atLeast(least))
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

// standings of one message when it was asked for.
func (c *lookups) standings(l *ledger, m *message, k *lookup) standings {
	asked := func(s stamp) bool { return s.before(k.called) }
	since := func(s stamp) bool { return s.seq != 0 && s.seq > k.returned.seq && s.at > k.returned.at }
	switch {
	case m.called.seq == 0, since(m.called), repeats(l, m):
		return 0 // not there yet, or another one's message
	case l.automatic, l.clockSet, l.moved(), m.frozen, len(m.receipts) > 1:
		return mayBeAny
	case m.refused() && asked(m.returned):
		return 0
	case !m.accepted() || !asked(m.returned):
		return mayBeAny
	case asked(m.purged):
		return mayBeForgotten | mayBeSettled // after a restart its marker says only that it is finished
	case m.purged.seq != 0 && !since(m.purged), m.redriven > 0:
		return mayBeAny
	case c.seenDead(l, m, k):
		return mayBeDead
	case m.deadLettered.seq != 0 && !since(m.deadLettered):
		return mayBeAny
	}
	r := &receipt{}
	if len(m.receipts) == 1 {
		r = &m.receipts[0]
	}
	if m.ttl > 0 {
		tolerance := l.limits.ExpiryTolerance
		switch {
		case k.returned.at+tolerance < m.called.at+m.ttl: // it was alive
		case asked(m.returned) && k.called.at > m.returned.at+m.ttl+tolerance:
			return mayBeForgotten | mayBeSettled | mayBeDead
		default:
			return mayBeAny
		}
	}
	switch {
	case asked(r.confirm):
		may := mayBeSettled
		if remembers := l.limits.Remembers; remembers == 0 || k.returned.at-r.confirm.at >= remembers {
			may |= mayBeForgotten
		}
		if l.failedBetween(r.ackCalled, k.returned) { // the row may have outlived the confirmation
			may |= mayBeStored | mayBeDead
		}
		return may
	case r.ackCalled.seq != 0 && !since(r.ackCalled):
		return mayBeAny
	case l.deliverFrames && (r.deliveries == 0 || since(r.first)) && m.struck == nil && (m.carried.seq == 0 || since(m.carried)):
		return mayBeStored
	}
	return mayBeStored | mayBeDead
}

// repeats: it is an alias of another publish, whose message may be there.
func repeats(l *ledger, m *message) bool {
	return m.alias && slices.ContainsFunc(l.aliases(m), func(o *message) bool { return o != m && !o.alias && !o.refused() })
}

// seenDead: a look at the rows before has shown it dead, and nobody has moved it since.
func (c *lookups) seenDead(l *ledger, m *message, k *lookup) bool {
	for _, s := range m.rows {
		if s.certain && s.row.State == evidence.RowDead && stampOfSnapshot(s.snapshot).before(k.called) {
			return true
		}
	}
	return false
}

func (*lookups) conclude(*ledger, *ruling) {}
