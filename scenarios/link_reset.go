package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// linkReset: connections are reset without notice.
var linkReset = script.Scenario{
	Name: "link-reset",
	Why:  "The connections of the consumer and of the producer are reset; both open new ones.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Publish{BusinessID: "order-1", By: "p1"},
		script.Await{Condition: script.Acked("order-1")},
		script.Fault{Label: "deaf", Verb: "reset", On: "c1"},
		script.Await{Condition: script.Connected("c1", 2)},
		script.Fault{Label: "dumb", Verb: "reset", On: "p1"},
		script.Publish{BusinessID: "order-2", By: "p1", Until: "accepted"},
		script.Await{Condition: script.Effect("order-2")},
	},
	Reached: []evidence.Condition{
		script.Fired("deaf"),
		script.Fired("dumb"),
	},
	Expect: usual(),
}
