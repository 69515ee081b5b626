package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// storageReplyLost: the row is stored although the store reported failure.
var storageReplyLost = script.Scenario{
	Name: "storage-reply-lost",
	Why:  "COMMIT is done and its answer is lost: Unknown or Accepted, never Rejected.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Fault{Label: "lost", Verb: "lose-reply", Target: "store", When: script.After, Event: "operation insert"},
		script.Publish{BusinessID: "order-1", By: "p1", MessageID: "m-1"},
		script.Retry{BusinessID: "order-1", By: "p1", SameID: true},
		script.Await{Condition: script.Effect("order-1")},
	},
	Reached: []evidence.Condition{
		script.Fired("lost"),
		script.Effect("order-1"),
	},
	Expect: usual(),
}
