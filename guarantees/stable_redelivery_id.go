package guarantees

import (
	"fmt"

	"github.com/custodymq/custody/evidence"
)

var stableRedeliveryID = Guarantee{
	Name: evidence.StableRedeliveryID, Usual: "stable redelivery ID",
	Text: "Every redelivery carries the first delivery's message ID and says that it is one, where the system has such a mark.",
	Rule: "Per publish and logical subscriber. Two deliveries on two connections may be recorded in either order, so only a second unmarked delivery proves that a redelivery went unmarked.",
	new:  func() checker { return stable{} },
}

type stable struct{}

func (stable) on() []evidence.Kind { return []evidence.Kind{evidence.Delivered} }

func (stable) observe(l *ledger, e *evidence.Event, m *message, r *receipt, out *ruling) {
	if m == nil || r.deliveries < 2 {
		return
	}
	out.instances++
	if h := hash(e.MessageID); r.messageHash != h {
		f := l.finding(m, r, "changed-id", r.first.seq, e.Seq)
		f.MessageID, f.HandOver = e.MessageID, BrokerToConsumer
		f.Text = fmt.Sprintf("%s came again as %q: its first delivery had another message ID", l.label(m), e.MessageID)
		f.Follows = []string{evidence.SingleEffect}
		out.violate(byEvents, f)
		return
	}
	if l.manifest.Profile.MarksAgain && r.unmarked > 1+m.redriven && e.Mark != evidence.MarkRedelivered && e.Attempt <= 1 {
		f := l.finding(m, r, "unmarked", r.first.seq, e.Seq)
		f.HandOver = BrokerToConsumer
		f.Text = fmt.Sprintf("%s came again without saying so", l.label(m))
		out.violate(byEvents, f)
	}
}

func (stable) conclude(*ledger, *ruling) {}
