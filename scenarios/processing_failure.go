package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// processingFailure: no acknowledgement without the effect.
var processingFailure = script.Scenario{
	Name:  "processing-failure",
	Why:   "The handler fails twice and does not acknowledge; the message comes again until it succeeds.",
	Needs: []string{string(systems.NeedRedelivery)},
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true, Fails: "order-1", FailTimes: 2},
		script.Publish{BusinessID: "order-1", By: "p1"},
		script.Await{Condition: script.Effect("order-1")},
	},
	Reached: []evidence.Condition{
		script.HandlerFailed("order-1", 0),
	},
	Expect: usual(evidence.StableRedeliveryID),
}
