package scenarios

import (
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// redeliveryInOrder: redeliveries keep the publish order.
var redeliveryInOrder = script.Scenario{
	Name:  "redelivery-in-order",
	Why:   "A consumer dies with ten messages in its hands: they come again, to another, in the order in which they were published.",
	Needs: []string{string(systems.NeedRedelivery), string(systems.NeedAcks)},
	Steps: []script.Step{
		script.Consumer{Name: "c1", Destination: "orders", Silent: true, Window: 10, Child: true},
		script.Consumer{Name: "c2", Destination: "orders", Idempotent: true, Window: 5, Offline: true},
		script.Producer{Name: "p1", Destination: "orders"},
		script.Publish{BusinessID: "order-", From: 1, To: 20, By: "p1", Window: 5},
		script.Await{Condition: script.Delivered("order-10", 0)},
		script.Fault{Label: "died", Verb: "kill", Target: "c1"},
		script.Await{Condition: script.Fired("died")},
		script.Start{Actor: "c2"},
		script.Await{Condition: script.Effect("order-10"), Within: 20 * time.Second},
		script.Await{Condition: script.Effect("order-20"), Within: 20 * time.Second},
	},
	Reached: []evidence.Condition{
		script.InFlight("died", 10),
		script.Redelivery("order-10"),
	},
	Expect: usual(evidence.StableRedeliveryID, evidence.Order, evidence.RedeliveryOrder),
}
