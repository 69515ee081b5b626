package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// businessSuccess is one message from end to end.
var businessSuccess = script.Scenario{
	Name: "business-success",
	Why:  "The effect is committed, then the message is acknowledged, then its row is gone.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Publish{BusinessID: "order-1", By: "p1"},
		script.Await{Condition: script.Acked("order-1")},
		script.Await{Condition: script.Gone("order-1")},
	},
	Reached: []evidence.Condition{
		script.Effect("order-1"),
		script.Acked("order-1"),
	},
	Expect: usual(evidence.AckIsFinal),
}
