package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// ackWindowKilled strikes between the ACK and the delete.
var ackWindowKilled = script.Scenario{
	Name: "ack-window-killed",
	Why:  "The broker dies after it took the ACK of order-1 and before it deleted the row: the message may come again, and the log absorbs it.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Fault{Label: "died", Verb: "kill", Target: "broker", When: script.Before, Event: "operation delete"},
		script.Publish{BusinessID: "order-1", By: "p1"},
		script.Await{Condition: script.Fired("died")},
		script.Start{Actor: "broker"},
		script.Await{Condition: script.Connected("c1", 2)},
		script.Await{Condition: script.Gone("order-1")},
	},
	Reached: []evidence.Condition{
		script.Fired("died"),
	},
	Expect: usual(),
}
