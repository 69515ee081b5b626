package scenarios

import (
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// consumerLeaves: a departing consumer's unsettled messages go to the others.
var consumerLeaves = script.Scenario{
	Name:  "consumer-leaves",
	Why:   "One of two consumers closes its session with messages in its hands and more on their way to it, and another comes: those who are there get them all.",
	Needs: []string{string(systems.NeedCompeting), string(systems.NeedRedelivery), string(systems.NeedAcks)},
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Silent: true, Window: 10},
		script.Consumer{Name: "c2", Destination: "orders", Idempotent: true, Window: 10, Takes: 5 * time.Millisecond},
		script.Consumer{Name: "c3", Destination: "orders", Idempotent: true, Window: 10, Offline: true},
		script.Publish{BusinessID: "order-", From: 1, To: 60, By: "p1", Size: 16, Keys: 3, Window: 20, Background: true},
		script.Await{Condition: script.Connected("c2", 0)},
		script.Settle{},
		script.Stop{Actor: "c1"},
		script.Start{Actor: "c3"}, // takes over the first one's seat, where seats matter
		script.Await{Condition: script.Effect("order-60")},
	},
	Reached: []evidence.Condition{
		script.Accepted("order-60"),
		script.Effect("order-60"),
	},
	Expect: usual(evidence.StableRedeliveryID, evidence.ExclusiveDelivery, evidence.CreditKept),
}
