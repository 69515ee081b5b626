package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// deliveryLost strikes a delivery: with at-least-once it is redelivered, with
// at-most-once it may be lost.
var deliveryLost = script.Scenario{
	Name: "delivery-lost",
	Why:  "The connection is cut before order-2 reaches its consumer.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true, Window: 4},
		script.Fault{Label: "gone", Verb: "cut", When: script.Before, Event: "frame deliver", Of: "order-2", On: "c1"},
		script.Publish{BusinessID: "order-", From: 1, To: 2, By: "p1"},
		script.Await{Condition: script.Fired("gone")},
		script.Await{Condition: script.Connected("c1", 2)},
		script.Publish{BusinessID: "order-3", By: "p1"},
		script.Await{Condition: script.Effect("order-3")},
	},
	Reached: []evidence.Condition{
		script.Fired("gone"),
		script.Connected("c1", 2),
	},
	Expect: usual(),
}
