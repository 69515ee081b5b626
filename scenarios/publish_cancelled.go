package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// publishCancelled: cancelling a call does not recall the message.
var publishCancelled = script.Scenario{
	Name: "publish-cancelled",
	Why:  "The caller cancels once the frame has left: Unknown, and resolved later.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c0", Destination: "orders", Silent: true},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true, Offline: true},
		script.Fault{Label: "held", Verb: "hold", Event: "frame accept", Of: "order-1", On: "p1"},
		script.Publish{BusinessID: "order-1", By: "p1", Cancel: true},
		script.Await{Condition: script.Fired("held")},
		script.Heal{Label: "held"},
		script.Resolve{BusinessID: "order-1", By: "p1"},
		script.Stop{Actor: "c0"},
		script.Start{Actor: "c1"},
		script.Await{Condition: script.Connected("c1", 0)},
		script.Publish{BusinessID: "order-2", By: "p1"},
		script.Await{Condition: script.Effect("order-2")},
	},
	Reached: []evidence.Condition{
		script.Answered("unknown", "order-1"),
	},
	Expect: expect(evidence.NoPhantom, evidence.SingleEffect, evidence.UnknownResolved, evidence.Survives),
}
