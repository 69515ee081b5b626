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

func (duplicate) observe(v view, e *evidence.Event, m *message, r *receipt, out *ruling) {
	if m == nil {
		return
	}
	if r.Deliveries == 1 {
		out.instances++
		for _, o := range v.Aliases(m) {
			// The system declared both publishes to be one message.
			if or := o.Find(r.Sub); o.Ref != m.Ref && or != nil && or.Deliveries > 0 && m.Struck == nil && o.Struck == nil {
				f := v.finding(m, r, "alias-handed-too", BrokerToConsumer, or.First.Seq, e.Seq)
				f.Text = fmt.Sprintf("%s was handed to %s, and so was %s, which the system called the same message", v.Label(m), v.Name(r.Sub), v.PublishID(o))
				out.violate(byEvents, f)
				return
			}
		}
		return
	}
	f := v.finding(m, r, "handed-twice", BrokerToConsumer, r.First.Seq, e.Seq)
	f.Text = fmt.Sprintf("%s was handed to %s %d times", v.Label(m), v.Name(r.Sub), r.Deliveries)
	f.Follows = []string{evidence.SingleEffect}
	out.violate(byEvents, f)
}
