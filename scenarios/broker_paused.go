package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// brokerPaused: a stopped process, which is neither alive nor dead.
var brokerPaused = script.Scenario{
	Name: "broker-paused",
	Why:  "The broker stands still for longer than every timeout, then goes on: no zombie delivery.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Fault{Label: "frozen", Verb: "pause", Target: "broker", When: script.Before, Event: "frame publish", Of: "order-5", On: "p1"},
		script.Publish{BusinessID: "order-", From: 1, To: 10, By: "p1", Window: 4, Until: "accepted", Background: true},
		script.Await{Condition: script.Fired("frozen")},
		script.Await{Condition: script.Answered("unknown", "order-5")},
		script.Heal{Label: "frozen"},
		script.Settle{},
		script.Await{Condition: script.Effect("order-10")},
	},
	Reached: []evidence.Condition{
		script.InFlight("frozen", 0),
		script.Answered("unknown", "order-5"),
	},
	Expect: usual(evidence.UnknownResolved, evidence.Progress),
}
