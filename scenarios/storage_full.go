package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// storageFull: a full disk is a definite refusal.
var storageFull = script.Scenario{
	Name: "storage-full",
	Why:  "No space is left before the write: Rejected, nothing lost, nothing accepted falsely.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Fault{Label: "full", Verb: "full", Target: "store", Repeat: script.Every, When: script.Before, Event: "operation write"},
		script.Publish{BusinessID: "order-1", By: "p1"},
		script.Heal{Label: "full"},
		script.Publish{BusinessID: "order-2", By: "p1", Until: "accepted"},
		script.Await{Condition: script.Effect("order-2")},
	},
	Reached: []evidence.Condition{
		script.Answered("rejected", "order-1"),
		script.Accepted("order-2"),
	},
	Expect: usual(evidence.DeclinedMeansAbsent),
}
