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

// loss finds accepted messages for which nobody is responsible any more.
type loss struct {
	lost      []lostOne
	kept      map[uint16]*sequence // by producer: the range of its accepted publishes that are not lost
	storeKept int
	excuses   int
}

// sequence is the range of counts of a producer's accepted publishes that are
// not lost.
type sequence struct{ first, last uint32 }

type lostOne struct {
	producer uint16
	count    uint32
	finding  Finding
}

func (c *loss) close(v view, m *message, out *ruling) {
	if !m.Accepted() {
		c.unconfirmed(v, m, out)
		return
	}
	isLost := false
	for _, r := range v.obliged(m) {
		out.instances++
		switch o := v.fateOf(m, r); o.fate {
		case kept:
			c.storeKept++
		case excused:
			c.excuses++
			if v.dropped(r) {
				f := v.finding(m, r, "dropped-by-design", BrokerToStore, m.Returned.Seq, r.Last.Seq)
				f.Text = fmt.Sprintf("%s was %s", v.Label(m), o.why)
				out.show(f)
			}
		case waiting, unproven:
			out.undecided(fmt.Sprintf("%s: %s", v.Label(m), o.why))
		case lost:
			f := v.finding(m, r, "", o.handOver, m.Returned.Seq, r.Last.Seq, r.Acked.Seq, r.AckCalled.Seq)
			f.Text = fmt.Sprintf("%s was lost at %s: %s", v.Label(m), o.handOver, o.why)
			f.Follows = []string{evidence.RecoveryBounded, evidence.RowsMatchClients}
			if v.Automatic && (o.handOver == ConsumerToBusiness || v.left(m, r)) { // the system's responsibility ended with the delivery
				f.Kind = "lost-by-consumer"
				out.show(f)
				continue
			}
			isLost = true
			c.lost = append(c.lost, lostOne{m.Producer, m.Count, f})
		}
	}
	if s := c.kept[m.Producer]; isLost {
		return
	} else if s == nil {
		c.kept[m.Producer] = &sequence{m.Count, m.Count}
	} else {
		s.first, s.last = min(s.first, m.Count), max(s.last, m.Count)
	}
}

// left reports whether a session that may have been sent m ended after its
// publish was called, as far as the system can have known.
func (v view) left(m *message, r *receipt) bool {
	since := m.Called.At - v.Limits.InFlightBound
	return r.Deliveries == 0 && slices.ContainsFunc(v.Matching(m.Destination), func(s *subscriber) bool {
		return (r.Sub == 0 || r.Sub == s.Name) && (s.Ended.Seq != 0 && s.Ended.At >= since || s.Died.Seq != 0 && s.Died.At >= since)
	})
}

// unconfirmed reports the loss of a fire-and-forget publish: the application
// got "ok", but the system never took responsibility.
func (c *loss) unconfirmed(v view, m *message, out *ruling) {
	if !m.Unknown() || !m.ToldOK || out.unfinished {
		return
	}
	for i := range m.Receipts {
		r := &m.Receipts[i]
		if r.Must && r.Deliveries == 0 && !v.reached(m, r) && v.quiet() && v.Ready(m, r.Sub) {
			f := v.finding(m, r, "unconfirmed-loss", ClientToBroker, m.Returned.Seq)
			f.Text = fmt.Sprintf("%s was sent without confirmation, the application was told ok, and it never arrived", v.Label(m))
			out.show(f)
		}
	}
}

func (c *loss) conclude(v view, out *ruling) {
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
		{"broker", "redelivered", v.Redelivered},
		{"store", "kept", c.storeKept},
		{"consumption log", "absorbed", v.Absorbed},
		{"client", "retried", v.Retried},
	}
	if c.excuses > 0 {
		out.held = fmt.Sprintf("%d excused with proof", c.excuses)
	}
}
