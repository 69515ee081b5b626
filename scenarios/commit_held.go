package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// commitHeld: no acceptance passes while the commit has not answered.
var commitHeld = script.Scenario{
	Name: "commit-held",
	Why:  "The answer of COMMIT is held for longer than the caller waits: Accepted must not be heard before it.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Fault{Label: "held", Verb: "block", Target: "store", When: script.After, Event: "operation insert"},
		script.Publish{BusinessID: "order-1", By: "p1"},
		script.Heal{Label: "held"},
		script.Await{Condition: script.Effect("order-1")},
	},
	Reached: []evidence.Condition{
		script.Fired("held"),
		script.Answered("unknown", "order-1"),
	},
	Expect: expect(evidence.NoPhantom, evidence.SingleEffect, evidence.PersistedBeforeAccepted, evidence.UnknownResolved, evidence.Survives),
}
