package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// ackWindowConsumerExits: the ACK was the consumer's last action.
var ackWindowConsumerExits = script.Scenario{
	Name: "ack-window-consumer-exits",
	Why:  "The consumer is killed right after its ACK has left.",
	Steps: []script.Step{
		// First: a process takes a while to start, during which a session would
		// idle.
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true, Child: true},
		script.Consumer{Name: "c2", Destination: "orders", Idempotent: true, Offline: true},
		script.Producer{Name: "p1", Destination: "orders"},
		script.Fault{Label: "died", Verb: "kill", Target: "c1", When: script.After, Event: "frame ack", Of: "order-1", On: "c1"},
		script.Publish{BusinessID: "order-1", By: "p1"},
		script.Await{Condition: script.Fired("died")},
		script.Start{Actor: "c2"},
		script.Publish{BusinessID: "order-2", By: "p1"},
		script.Await{Condition: script.Acked("order-2")},
	},
	Reached: []evidence.Condition{
		script.Fired("died"),
	},
	Expect: usual(),
}
