package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// disconnectAfterAck: the ACK was sent, which does not prove it was processed.
var disconnectAfterAck = script.Scenario{
	Name: "disconnect-after-ack",
	Why:  "The link is cut right after the ACK frame has passed.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Fault{Label: "gone", Verb: "cut", When: script.After, Event: "frame ack", Of: "order-1", On: "c1"},
		script.Publish{BusinessID: "order-1", By: "p1"},
		script.Await{Condition: script.Fired("gone")},
		script.Await{Condition: script.Connected("c1", 2)},
		script.Await{Condition: script.Gone("order-1")},
	},
	Reached: []evidence.Condition{
		script.Fired("gone"),
		script.Connected("c1", 2),
	},
	Expect: usual(),
}
