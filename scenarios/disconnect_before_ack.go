package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// disconnectBeforeAck: committed, but cut before the ACK frame.
var disconnectBeforeAck = script.Scenario{
	Name: "disconnect-before-ack",
	Why:  "The link is cut after the commit and before the ACK.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Fault{Label: "gone", Verb: "cut", When: script.Before, Event: "frame ack", Of: "order-1", On: "c1"},
		script.Publish{BusinessID: "order-1", By: "p1"},
		script.Await{Condition: script.Fired("gone")},
		script.Await{Condition: script.Absorbed("order-1")},
	},
	Reached: []evidence.Condition{
		script.Fired("gone"),
		script.Connected("c1", 2),
	},
	Expect: usual(evidence.StableRedeliveryID),
}
