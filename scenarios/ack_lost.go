package scenarios

import (
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// ackLost: committed, but the ACK never reaches the broker.
var ackLost = script.Scenario{
	Name: "ack-lost",
	Why:  "The broker never hears the first ACK of order-1.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Fault{Label: "lost", Verb: "drop", Event: "frame ack", Of: "order-1", On: "c1"},
		script.Publish{BusinessID: "order-1", By: "p1"},
		script.Await{Condition: script.Fired("lost"), Within: 5 * time.Second},
		script.Provoke{BusinessID: "order-1"},
		script.Await{Condition: script.Delivered("order-1", 2)},
	},
	Reached: []evidence.Condition{
		script.Fired("lost"),
	},
	Expect: usual(evidence.StableRedeliveryID),
}
