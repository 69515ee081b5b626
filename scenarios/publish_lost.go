package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// publishLost strikes a publish: a confirmed one ends Unknown, a
// fire-and-forget one was reported as ok.
var publishLost = script.Scenario{
	Name: "publish-lost",
	Why:  "The connection is cut before order-2 reaches the system.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Fault{Label: "gone", Verb: "cut", When: script.Before, Event: "frame publish", Of: "order-2", On: "p1"},
		script.Publish{BusinessID: "order-", From: 1, To: 2, By: "p1"},
		script.Await{Condition: script.Fired("gone")},
		script.Publish{BusinessID: "order-3", By: "p1"},
		script.Await{Condition: script.Effect("order-3")},
	},
	Reached: []evidence.Condition{
		script.Fired("gone"),
	},
	Expect: usual(),
}
