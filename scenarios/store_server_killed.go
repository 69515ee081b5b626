package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// storeServerKilled: what the server had confirmed is there when it is back.
var storeServerKilled = script.Scenario{
	Name: "store-server-killed",
	Why:  "The store's server is killed with a write under way, and stays down for a while: nobody is told Accepted without a row, and nothing accepted is lost when it is back, nor when the broker is started again.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true, Window: 4},
		script.Publish{BusinessID: "order-", From: 1, To: 5, By: "p1"},
		script.Fault{Label: "died", Verb: "kill", Target: "store", When: script.After, Event: "frame insert", Of: "order-8", On: "store"},
		script.Publish{BusinessID: "order-", From: 6, To: 10, By: "p1", Background: true},
		script.Await{Condition: script.Fired("died")},
		script.Settle{},
		script.Publish{BusinessID: "order-11", By: "p1"},
		script.Start{Actor: "store"},
		script.Publish{BusinessID: "order-12", By: "p1"},
		// A broker does not go on with a server that has lost what it had confirmed.
		script.Restart{Actor: "broker"},
		script.Publish{BusinessID: "order-13", By: "p1", Until: "accepted"},
		script.Await{Condition: script.Effect("order-13")},
	},
	Reached: []evidence.Condition{
		script.Fired("died"),
		script.Accepted("order-7"),
		script.Accepted("order-13"),
	},
	Expect: usual(evidence.DeclinedMeansAbsent),
}
