package scenarios

import (
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// competingConsumers: each message is held by one consumer at a time.
var competingConsumers = script.Scenario{
	Name:  "competing-consumers",
	Why:   "Three consumers share the work, and one of them is killed with a message in its hands.",
	Needs: []string{string(systems.NeedCompeting)},
	Steps: []script.Step{
		// First: a process takes a while to start, during which a session would
		// idle.
		script.Consumer{Name: "c3", Destination: "orders", Idempotent: true, Child: true},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Consumer{Name: "c2", Destination: "orders", Idempotent: true},
		script.Producer{Name: "p1", Destination: "orders"},
		script.Fault{Label: "died", Verb: "kill", Target: "c3", When: script.Before, Event: "frame ack", On: "c3"},
		script.Publish{BusinessID: "order-", From: 1, To: 30, By: "p1", Window: 8, Background: true},
		script.Await{Condition: script.Fired("died")},
		script.Settle{},
		// The dead consumer's share may wait for it alone.
		script.Wait{Quiet: 300 * time.Millisecond},
	},
	Reached: []evidence.Condition{
		script.Fired("died"),
		script.Accepted("order-30"),
	},
	Expect: usual(evidence.StableRedeliveryID, evidence.ExclusiveDelivery, evidence.SettledByHolder, evidence.CreditKept),
}
