package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// brokerRestart is an orderly restart under load.
var brokerRestart = script.Scenario{
	Name: "broker-restart",
	Why:  "The broker is restarted in order while messages are under way; what is refused meanwhile is tried again, and what was acknowledged before comes no more.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Fault{Label: "restarted", Verb: "shutdown", Target: "broker", When: script.Before, Event: "frame accept", Of: "order-10", On: "p1"},
		script.Publish{BusinessID: "order-", From: 1, To: 30, By: "p1", Window: 4, Until: "accepted", Background: true},
		script.Await{Condition: script.Fired("restarted")},
		script.Start{Actor: "broker"},
		script.Settle{},
		script.Await{Condition: script.Effect("order-30")},
	},
	Reached: []evidence.Condition{
		script.InFlight("restarted", 0),
		script.Connected("c1", 2),
		script.Accepted("order-30"),
	},
	Expect: usual(evidence.AckIsFinal, evidence.MessageIdentity, evidence.Progress),
}
