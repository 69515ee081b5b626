package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// storageDown: a failure before the write proves the message absent, one during
// it may not.
var storageDown = script.Scenario{
	Name: "storage-down",
	Why:  "The store cannot be reached before the write, then during it: never Accepted without a row.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Fault{Label: "before", Verb: "unreachable", Target: "store", Repeat: script.Every, When: script.Before, Event: "operation insert"},
		script.Publish{BusinessID: "order-1", By: "p1"},
		script.Heal{Label: "before"},
		script.Fault{Label: "during", Verb: "unreachable", Target: "store", Repeat: script.Every, When: script.Before, Event: "operation write"},
		script.Publish{BusinessID: "order-2", By: "p1"},
		script.Heal{Label: "during"},
		script.Publish{BusinessID: "order-3", By: "p1", Until: "accepted"},
		script.Await{Condition: script.Effect("order-3")},
	},
	Reached: []evidence.Condition{
		script.Answered("rejected", "order-1"),
		script.Fired("during"),
		script.Accepted("order-3"),
	},
	Expect: usual(evidence.DeclinedMeansAbsent),
}
