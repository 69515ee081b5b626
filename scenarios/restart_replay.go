package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// restartReplay: order is kept when messages are read from the store.
var restartReplay = script.Scenario{
	Name:  "restart-replay",
	Why:   "Messages wait in the store over a restart of the broker and are served in the order in which they were published.",
	Needs: []string{string(systems.NeedRedelivery)}, // so that messages wait
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c0", Destination: "orders", Silent: true},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true, Offline: true},
		script.Publish{BusinessID: "order-", From: 1, To: 6, By: "p1"},
		script.Fault{Label: "restarted", Verb: "shutdown", Target: "broker"},
		script.Stop{Actor: "c0"},
		script.Start{Actor: "broker"},
		script.Start{Actor: "c1"},
		script.Await{Condition: script.Connected("c1", 0)},
		script.Publish{BusinessID: "order-7", By: "p1", Until: "accepted"},
		script.Await{Condition: script.Effect("order-7")},
	},
	Reached: []evidence.Condition{
		script.Fired("restarted"),
		script.Connected("c1", 0),
	},
	Expect: usual(evidence.Order, evidence.MessageIdentity),
}
