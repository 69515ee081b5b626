package guarantees

import (
	"fmt"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees/internal/ledger"
)

var stableRedeliveryID = Guarantee{
	Name: evidence.StableRedeliveryID, Usual: "stable redelivery ID",
	Text: "Every redelivery carries the first delivery's message ID and says that it is one, where the system has such a mark.",
	Rule: "Per publish and logical subscriber. Two deliveries on two connections may be recorded in either order, so only a second unmarked delivery proves that a redelivery went unmarked.",
	new:  func() checker { return stable{} },
}

type stable struct{}

func (stable) on() []evidence.Kind { return []evidence.Kind{evidence.Delivered} }

func (stable) observe(v view, e *evidence.Event, m *message, r *receipt, out *ruling) {
	if m == nil || r.Deliveries < 2 {
		return
	}
	out.instances++
	if h := ledger.Hash(e.MessageID); r.MessageHash != h {
		f := v.finding(m, r, "changed-id", BrokerToConsumer, r.First.Seq, e.Seq)
		f.MessageID = e.MessageID
		f.Text = fmt.Sprintf("%s came again as %q: its first delivery had another message ID", v.Label(m), e.MessageID)
		f.Follows = []string{evidence.SingleEffect}
		out.violate(byEvents, f)
		return
	}
	if v.Profile.MarksAgain && r.Unmarked > 1+m.Redriven && e.Mark != evidence.MarkRedelivered && e.Attempt <= 1 {
		f := v.finding(m, r, "unmarked", BrokerToConsumer, r.First.Seq, e.Seq)
		f.Text = fmt.Sprintf("%s came again without saying so", v.Label(m))
		out.violate(byEvents, f)
	}
}
