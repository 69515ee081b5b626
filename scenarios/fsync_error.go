package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// fsyncError: after a failed fsync, reading back proves nothing.
var fsyncError = script.Scenario{
	Name: "fsync-error",
	Why:  "fsync fails with EIO: Unknown, or Rejected where that is proven.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Fault{Label: "eio", Verb: "fsync-error", Target: "store", When: script.Before, Event: "operation sync"},
		script.Publish{BusinessID: "order-1", By: "p1", MessageID: "m-1"},
		script.Retry{BusinessID: "order-1", By: "p1", SameID: true},
		script.Await{Condition: script.Effect("order-1")},
	},
	Reached: []evidence.Condition{
		script.Fired("eio"),
		script.Effect("order-1"),
	},
	Expect: usual(),
}
