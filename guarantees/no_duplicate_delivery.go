package guarantees

import (
	"fmt"

	"github.com/custodymq/custody/evidence"
)

var noDuplicateDelivery = Guarantee{
	Name: evidence.NoDuplicateDelivery, Usual: "at-most-once",
	Text: "No publish is handed to one logical subscriber more than once.",
	Rule: "Counted per publish and logical subscriber, so fan-out is no duplicate; copies that our own faults forged are left out.",
	new:  func() checker { return duplicate{} },
}

type duplicate struct{}

func (duplicate) on() []evidence.Kind { return []evidence.Kind{evidence.Delivered} }

func (duplicate) observe(l *ledger, e *evidence.Event, m *message, r *receipt, out *ruling) {
	if m == nil {
		return
	}
	if r.deliveries == 1 {
		out.instances++
		for _, o := range l.aliases(m) {
			// The system said that the two are one message.
			if or := o.find(r.sub); o.ref != m.ref && or != nil && or.deliveries > 0 && m.struck == nil && o.struck == nil {
				f := l.finding(m, r, "alias-handed-too", or.first.seq, e.Seq)
				f.HandOver = BrokerToConsumer
				f.Text = fmt.Sprintf("%s was handed to %s, and so was %s, which the system called the same message", l.label(m), l.name(r.sub), l.publishID(o))
				out.violate(byEvents, f)
				return
			}
		}
		return
	}
	f := l.finding(m, r, "handed-twice", r.first.seq, e.Seq)
	f.HandOver = BrokerToConsumer
	f.Text = fmt.Sprintf("%s was handed to %s %d times", l.label(m), l.name(r.sub), r.deliveries)
	f.Follows = []string{evidence.SingleEffect}
	out.violate(byEvents, f)
}

func (duplicate) conclude(*ledger, *ruling) {}
