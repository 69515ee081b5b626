package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// lateConsumer: pending messages outlive their consumer.
var lateConsumer = script.Scenario{
	Name: "late-consumer",
	Why:  "Messages wait when their consumer leaves; a new one is served, one that does not match is not.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c0", Destination: "orders", Silent: true, Window: 10},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true, Offline: true},
		script.Consumer{Name: "c2", Destination: "mails", Idempotent: true},
		script.Publish{BusinessID: "order-", From: 1, To: 3, By: "p1"},
		script.Await{Condition: script.Delivered("order-3", 0)},
		script.Stop{Actor: "c0"},
		script.Start{Actor: "c1"},
		script.Await{Condition: script.Connected("c1", 0)},
		script.Publish{BusinessID: "order-4", By: "p1"},
		script.Await{Condition: script.Effect("order-4")},
	},
	Reached: []evidence.Condition{
		script.Delivered("order-3", 0),
		script.Connected("c1", 0),
	},
	Expect: usual(evidence.StableRedeliveryID, evidence.Routing),
}
