package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// duplicateDelivery: two deliveries, one effect.
var duplicateDelivery = script.Scenario{
	Name: "duplicate-delivery",
	Why:  "The delivery of order-1 comes twice over the wire, and the publisher sends order-2 twice.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Fault{Label: "twice", Verb: "duplicate", Event: "frame deliver", Of: "order-1", On: "c1"},
		script.Publish{BusinessID: "order-1", By: "p1"},
		script.Publish{BusinessID: "order-2", By: "p1", MessageID: "m-2"},
		script.Retry{BusinessID: "order-2", By: "p1", SameID: true},
		script.Await{Condition: script.Delivered("order-1", 2)},
		script.Await{Condition: script.Acked("order-2")},
	},
	Reached: []evidence.Condition{
		script.Fired("twice"),
	},
	Expect: usual(),
}
