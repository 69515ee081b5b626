package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// poisonMessage: it must neither block others nor be redelivered forever.
var poisonMessage = script.Scenario{
	Name: "poison-message",
	Why:  "One message always fails: after bounded attempts it is dead-lettered with its reason, the others go on, and it can be redriven.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true, Fails: []script.Failing{{On: script.IDs{Name: "order-1"}, Times: 5}}},
		script.Publish{BusinessID: "order-", From: 1, To: 4, By: "p1"},
		script.Await{Condition: script.Acked("order-4")},
		script.Await{Condition: script.Dead("order-1")},
		script.Snapshot{Checkpoint: "dead"},
		script.Redrive{BusinessID: "order-1"},
		script.Await{Condition: script.Effect("order-1")},
	},
	Reached: []evidence.Condition{
		script.HandlerFailed("order-1", 5),
		script.Dead("order-1"),
		script.Effect("order-1"),
	},
	Expect: usual(evidence.BoundedRetry, evidence.AttemptsUsed, evidence.RedeliveryPaced),
}
