package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// storeServerPaused: a server that stands is one that has not answered yet.
var storeServerPaused = script.Scenario{
	Name: "store-server-paused",
	Why:  "The store's server stands still with a write under way, for longer than a publisher waits, and goes on: a late answer is no refusal, and nothing is stored twice.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true, Window: 4},
		script.Publish{BusinessID: "order-", From: 1, To: 5, By: "p1"},
		script.Fault{Label: "stands", Verb: "pause", Target: "store", When: script.After, Event: "frame insert", Of: "order-6", On: "store"},
		script.Publish{BusinessID: "order-6", By: "p1"},
		script.Await{Condition: script.Fired("stands")},
		script.Publish{BusinessID: "order-7", By: "p1"},
		script.Heal{Label: "stands"},
		script.Publish{BusinessID: "order-8", By: "p1", Until: "accepted"},
		script.Await{Condition: script.Effect("order-8")},
	},
	Reached: []evidence.Condition{
		script.Fired("stands"),
		script.Answered("unknown", "order-6"),
		script.Accepted("order-8"),
	},
	Expect: usual(evidence.UnknownResolved),
}
