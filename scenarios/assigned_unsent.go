package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// assignedUnsent: the broker writes to its store between assigning a message and
// sending it, and the consumer may leave just then.
var assignedUnsent = script.Scenario{
	Name:  "assigned-unsent",
	Why:   "A consumer leaves after messages were assigned to it and before they are sent, while the store holds up the record of their attempts: the others get every one.",
	Needs: []string{string(systems.NeedCompeting), string(systems.NeedAcks), string(systems.NeedRedelivery)},
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c0", Destination: "orders", Silent: true, Window: 2},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true, Window: 20, Offline: true},
		script.Consumer{Name: "c2", Destination: "orders", Idempotent: true, Window: 20, Offline: true},
		script.Publish{BusinessID: "order-", From: 1, To: 20, By: "p1", Window: 10},
		script.Await{Condition: script.Delivered("order-2", 0)},
		script.Fault{Label: "held", Verb: "block", Target: "store", When: script.Before, Event: "operation attempt"},
		script.Start{Actor: "c1"},
		script.Await{Condition: script.Fired("held")},
		script.Stop{Actor: "c1"},
		script.Heal{Label: "held"},
		script.Start{Actor: "c2"},
		script.Await{Condition: script.Effect("order-20")},
		script.Stop{Actor: "c0"},
		script.Await{Condition: script.Effect("order-1")},
		script.Await{Condition: script.Effect("order-2")},
	},
	Reached: []evidence.Condition{
		script.Fired("held"),
		script.Delivered("order-2", 0),
		script.Connected("c2", 0),
	},
	Expect: usual(evidence.StableRedeliveryID, evidence.Order, evidence.CreditKept),
}
