package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// repeatInFlight: one message ID is one message, even before it is stored.
var repeatInFlight = script.Scenario{
	Name:  "repeat-in-flight",
	Why:   "A publish is repeated under its message ID, by its publisher's other connections, while its first try is still on its way to the store: all are answered, and there is one row and one effect.",
	Needs: []string{string(systems.NeedMessageID), string(systems.NeedDedup), string(systems.NeedRows)},
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Producer{Name: "p2", Destination: "orders"},
		script.Producer{Name: "p3", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Publish{BusinessID: "order-3", By: "p1", MessageID: "m-3", Background: true}, // all three at once
		script.Publish{BusinessID: "order-3", By: "p2", MessageID: "m-3", Background: true},
		script.Publish{BusinessID: "order-3", By: "p3", MessageID: "m-3", Background: true},
		script.Settle{},
		script.Fault{Label: "held", Verb: "block", Target: "store", When: script.Before, Event: "operation insert"},
		script.Publish{BusinessID: "order-1", By: "p1", MessageID: "m-1", Background: true},
		script.Await{Condition: script.Fired("held")},
		script.Publish{BusinessID: "order-1", By: "p2", MessageID: "m-1", Background: true},
		script.Publish{BusinessID: "order-1", By: "p3", MessageID: "m-1", Background: true},
		script.Await{Condition: published("p2", 2)},
		script.Await{Condition: published("p3", 2)},
		script.Snapshot{Checkpoint: "held"},
		script.Heal{Label: "held"},
		script.Settle{},
		script.Publish{BusinessID: "order-2", By: "p2"},
		script.Await{Condition: script.Effect("order-1")},
		script.Await{Condition: script.Effect("order-2")},
	},
	Reached: []evidence.Condition{
		script.Fired("held"),
		published("p3", 2),
		script.Effect("order-1"),
	},
	Expect: usual(evidence.NoDuplicateDelivery),
}
