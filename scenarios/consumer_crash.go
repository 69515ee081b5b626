package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// consumerCrash: committed, but dead before the ACK.
var consumerCrash = script.Scenario{
	Name: "consumer-crash",
	Why:  "The consumer is killed after the commit and before its ACK: another takes over, and the effect stays single.",
	Steps: []script.Step{
		// First: a process takes a while to start, during which a session would
		// idle.
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true, Child: true},
		script.Consumer{Name: "c2", Destination: "orders", Idempotent: true, Offline: true},
		script.Producer{Name: "p1", Destination: "orders"},
		script.Fault{Label: "died", Verb: "kill", Target: "c1", When: script.Before, Event: "frame ack", Of: "order-1", On: "c1"},
		script.Publish{BusinessID: "order-1", By: "p1"},
		script.Await{Condition: script.Fired("died")},
		script.Start{Actor: "c2"},
		script.Await{Condition: script.Absorbed("order-1")},
	},
	Reached: []evidence.Condition{
		script.Fired("died"),
		script.Connected("c2", 0),
	},
	Expect: usual(evidence.StableRedeliveryID),
}
