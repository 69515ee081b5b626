package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// brokerKilled strikes between storing and answering.
var brokerKilled = script.Scenario{
	Name: "broker-killed",
	Why:  "SIGKILL before the acceptance of order-10 leaves the broker, under load.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Fault{Label: "died", Verb: "kill", Target: "broker", When: script.Before, Event: "frame accept", Of: "order-10", On: "p1"},
		script.Publish{BusinessID: "order-", From: 1, To: 30, By: "p1", Window: 4, Until: "accepted", Background: true},
		script.Await{Condition: script.Fired("died")},
		script.Start{Actor: "broker"},
		script.Settle{},
		script.Await{Condition: script.Effect("order-30")},
	},
	Reached: []evidence.Condition{
		script.InFlight("died", 0),
		script.Answered("unknown", "order-10"),
		script.Accepted("order-30"),
	},
	Expect: usual(evidence.AckIsFinal, evidence.UnknownResolved, evidence.Progress),
}
