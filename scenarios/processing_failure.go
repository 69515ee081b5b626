package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// processingFailure: no acknowledgement without the effect.
var processingFailure = script.Scenario{
	Name: "processing-failure",
	Why:  "The handler fails twice and does not acknowledge; the message comes again until it succeeds.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true, Window: 4, Fails: []script.Failing{{On: script.IDs{Name: "order-1"}, Times: 2}}},
		script.Publish{BusinessID: "order-0", By: "p1"},
		script.Await{Condition: script.Effect("order-0")},
		script.Publish{BusinessID: "order-1", By: "p1"},
		script.Await{Condition: script.HandlerFailed("order-1", 0)},
	},
	Reached: []evidence.Condition{
		script.Effect("order-0"),
		script.HandlerFailed("order-1", 0),
	},
	Expect: usual(evidence.StableRedeliveryID, evidence.RedeliveryPaced),
}
