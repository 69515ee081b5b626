package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// nodeLost: what a standby was not sent is lost with the server.
var nodeLost = script.Scenario{
	Name: "node-lost",
	Why:  "The standby of the store's server is cut off, a message is published, and the server is lost for good: what was accepted is in the standby that is promoted.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c0", Destination: "orders", Silent: true, Window: 10},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true, Offline: true},
		script.Publish{BusinessID: "order-1", By: "p1"},
		script.Await{Condition: script.Delivered("order-1", 0)},
		script.Fault{Label: "apart", Verb: "down", On: "standby"},
		script.Publish{BusinessID: "order-2", By: "p1"},
		script.Fault{Label: "lost", Verb: "fail-over", Target: "store"},
		script.Stop{Actor: "c0"},
		script.Restart{Actor: "broker"},
		script.Start{Actor: "c1"},
		script.Publish{BusinessID: "order-3", By: "p1", Until: "accepted"},
		script.Await{Condition: script.Effect("order-3")},
	},
	Reached: []evidence.Condition{
		script.Fired("apart"),
		script.Fired("lost"),
		script.Accepted("order-1"),
		script.Accepted("order-3"),
	},
	Expect: usual(),
}
