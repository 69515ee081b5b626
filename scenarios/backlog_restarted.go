package scenarios

import (
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// backlogRestarted: a backlog survives a restart intact and is not confused
// with later messages.
var backlogRestarted = script.Scenario{
	Name:  "backlog-restarted",
	Why:   "Two hundred messages wait, some of them in the hands of a consumer, when the broker is restarted in order: each is served as it was sent, and IDs do not begin again.",
	Needs: []string{string(systems.NeedAcks), string(systems.NeedRedelivery)}, // so that messages wait
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c0", Destination: "orders", Silent: true, Window: 20},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true, Window: 20, Offline: true},
		script.Publish{BusinessID: "order-", From: 1, To: 200, By: "p1", Size: 0, SizeTo: 8192, Headers: 3, Keys: 4, Window: 50},
		script.Await{Condition: script.Delivered("order-20", 0)},
		script.Stop{Actor: "c0"},
		script.Restart{Actor: "broker"},
		script.Start{Actor: "c1"},
		script.Publish{BusinessID: "order-", From: 201, To: 220, By: "p1", Headers: 1, Window: 5, Until: "accepted"},
		script.Await{Condition: script.Effect("order-220"), Within: 30 * time.Second},
	},
	Reached: []evidence.Condition{
		script.Delivered("order-20", 0),
		script.Accepted("order-200"),
		script.Connected("c1", 0),
		script.Accepted("order-220"),
	},
	Expect: usual(evidence.Order, evidence.MessageIdentity, evidence.CreditKept, evidence.Routing),
}
