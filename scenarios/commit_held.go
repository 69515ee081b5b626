package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// commitHeld: no acceptance before the commit has returned.
var commitHeld = script.Scenario{
	Name: "commit-held",
	Why:  "The answer of a COMMIT is held, and the next message waits behind it for longer than its caller does: Accepted must not be heard before.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Producer{Name: "p2", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Fault{Label: "held", Verb: "block", Target: "store", When: script.After, Event: "operation insert"},
		script.Publish{BusinessID: "order-1", By: "p1", Background: true},
		script.Await{Condition: script.Fired("held")},
		script.Publish{BusinessID: "order-2", By: "p2"},
		script.Heal{Label: "held"},
		script.Settle{},
		script.Await{Condition: script.Effect("order-1")},
		script.Await{Condition: script.Effect("order-2")},
	},
	Reached: []evidence.Condition{
		script.Fired("held"),
		script.Answered("unknown", "order-2"),
	},
	Expect: expect(evidence.NoPhantom, evidence.SingleEffect, evidence.PersistedBeforeAccepted, evidence.UnknownResolved, evidence.Survives),
}
