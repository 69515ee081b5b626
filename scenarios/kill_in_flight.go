package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// killInFlight: an unacknowledged message remains the broker's, even if broker
// and consumer die.
var killInFlight = script.Scenario{
	Name:  "kill-in-flight",
	Why:   "The broker is killed while a consumer holds a message that it has not acknowledged, and the consumer never comes back.",
	Needs: []string{string(systems.NeedAcks), string(systems.NeedRedelivery)},
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c0", Destination: "orders", Silent: true},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true, Offline: true},
		script.Publish{BusinessID: "order-", From: 1, To: 6, By: "p1"},
		script.Await{Condition: script.Delivered("order-1", 0)},
		script.Fault{Label: "died", Verb: "kill", Target: "broker"},
		script.Await{Condition: script.Fired("died")},
		script.Stop{Actor: "c0"},
		script.Start{Actor: "broker"},
		script.Start{Actor: "c1"},
		script.Publish{BusinessID: "order-7", By: "p1", Until: "accepted"},
		script.Await{Condition: script.Effect("order-7")},
	},
	Reached: []evidence.Condition{
		script.Fired("died"),
		script.InFlight("died", 0),
	},
	Expect: usual(),
}
