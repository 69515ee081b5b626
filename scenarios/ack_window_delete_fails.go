package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// ackWindowDeleteFails strikes the delete itself.
var ackWindowDeleteFails = script.Scenario{
	Name: "ack-window-delete-fails",
	Why:  "The delete of an acknowledged row fails; it is tried again until the row is gone.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Fault{Label: "down", Verb: "unreachable", Target: "store", Repeat: script.Every, When: script.Before, Event: "operation delete"},
		script.Publish{BusinessID: "order-1", By: "p1"},
		script.Await{Condition: script.Fired("down")},
		script.Heal{Label: "down"},
		script.Await{Condition: script.Gone("order-1")},
	},
	Reached: []evidence.Condition{
		script.Fired("down"),
		script.Acked("order-1"),
	},
	Expect: usual(),
}
