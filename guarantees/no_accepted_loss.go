package guarantees

import (
	"fmt"
	"slices"

	"github.com/custodymq/custody/evidence"
)

var noAcceptedLoss = Guarantee{
	Name: evidence.NoAcceptedLoss, Usual: "at-least-once, durability",
	Text: "Every accepted message reaches, for each matching logical subscriber, its business effect (its acknowledgement where the run has no effects), or is excused with proof.",
	Rule: "Excuses are a dead letter with its reason, a purge by command, an expiry. A loss needs an exact absent row, a passed barrier or recorded quiet; acknowledged without effect is lost at consumer → business. In a visible row with nobody there to take it, a message is held; with a consumer ready it is inconclusive. Where a delivery is its own acknowledgement, what its consumer then loses, or one that left meanwhile took with it, is shown, and breaks no claim. A loss is classified as prefix, middle or suffix of its producer's accepted sequence.",
	new:  func() checker { return &loss{kept: make(map[uint16]*sequence)} },
}

// loss finds accepted messages that nobody is responsible for any more.
type loss struct {
	lost      []lostOne
	kept      map[uint16]*sequence // by producer: what of its accepted sequence is not lost
	storeKept int
	excuses   int
}

// sequence is the range of counts of a producer's accepted publishes that are not lost.
type sequence struct{ first, last uint32 }

type lostOne struct {
	producer uint16
	count    uint32
	finding  Finding
}

func (c *loss) close(l *ledger, m *message, out *ruling) {
	if !m.accepted() {
		c.unconfirmed(l, m, out)
		return
	}
	isLost := false
	for _, r := range l.obliged(m) {
		out.instances++
		switch o := l.fateOf(m, r); o.fate {
		case kept:
			c.storeKept++
		case excused:
			c.excuses++
			if l.dropped(r) {
				f := l.finding(m, r, "dropped-by-design", m.returned.seq, r.last.seq)
				f.HandOver = BrokerToStore
				f.Text = fmt.Sprintf("%s was %s", l.label(m), o.why)
				out.show(f)
			}
		case waiting, unproven:
			out.undecided(fmt.Sprintf("%s: %s", l.label(m), o.why))
		case lost:
			f := l.finding(m, r, "", m.returned.seq, r.last.seq, r.acked.seq, r.ackCalled.seq)
			f.HandOver = o.handOver
			f.Text = fmt.Sprintf("%s was lost at %s: %s", l.label(m), o.handOver, o.why)
			f.Follows = []string{evidence.RecoveryBounded, evidence.RowsMatchClients}
			if l.automatic && (o.handOver == ConsumerToBusiness || l.left(m, r)) { // its delivery ended the system's part
				f.Kind = "lost-by-consumer"
				out.show(f)
				continue
			}
			isLost = true
			c.lost = append(c.lost, lostOne{m.slot.producer, m.slot.count, f})
		}
	}
	if s := c.kept[m.slot.producer]; isLost {
		return
	} else if s == nil {
		c.kept[m.slot.producer] = &sequence{m.slot.count, m.slot.count}
	} else {
		s.first, s.last = min(s.first, m.slot.count), max(s.last, m.slot.count)
	}
}

// left: a session of one who may have been sent it ended, as far as its system
// can have known, after the publish was called.
func (l *ledger) left(m *message, r *receipt) bool {
	since := m.called.at - l.limits.InFlightBound
	return r.deliveries == 0 && slices.ContainsFunc(l.matchingOf(m.destination), func(s *subscriber) bool {
		return (r.sub == 0 || r.sub == s.name) && (s.ended.seq != 0 && s.ended.at >= since || s.died.seq != 0 && s.died.at >= since)
	})
}

// unconfirmed shows the loss of a publish of which the application was told
// "ok" though the system never took responsibility (fire and forget).
func (c *loss) unconfirmed(l *ledger, m *message, out *ruling) {
	if !m.unknown() || !m.toldOK || out.unfinished {
		return
	}
	for i := range m.receipts {
		r := &m.receipts[i]
		if r.must && r.deliveries == 0 && !l.reached(m, r) && l.quiet() && l.ready(m, r.sub) {
			f := l.finding(m, r, "unconfirmed-loss", m.returned.seq)
			f.HandOver = ClientToBroker
			f.Text = fmt.Sprintf("%s was sent without confirmation, the application was told ok, and it never arrived", l.label(m))
			out.show(f)
		}
	}
}

func (c *loss) conclude(l *ledger, out *ruling) {
	slices.SortStableFunc(c.lost, func(a, b lostOne) int {
		if a.producer != b.producer {
			return int(a.producer) - int(b.producer)
		}
		return int(a.count) - int(b.count)
	})
	for _, x := range c.lost {
		s := c.kept[x.producer]
		switch {
		case s == nil:
			x.finding.Kind = "lost-all"
		case x.count < s.first:
			x.finding.Kind = "lost-prefix"
		case x.count > s.last:
			x.finding.Kind = "lost-suffix"
		default:
			x.finding.Kind = "lost-middle"
		}
		out.violate(byAbsence, x.finding)
	}
	out.layers = []Layer{
		{"broker", "redelivered", l.redelivered},
		{"store", "kept", c.storeKept},
		{"consumption log", "absorbed", l.absorbed},
		{"client", "retried", l.retried},
	}
	if c.excuses > 0 {
		out.held = fmt.Sprintf("%d excused with proof", c.excuses)
	}
}
