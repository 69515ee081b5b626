package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// partitionConsumer: deliveries vanish in a silent partition.
var partitionConsumer = script.Scenario{
	Name:  "partition-consumer",
	Why:   "The consumer is cut off without any connection ending; what was sent to it comes again.",
	Needs: []string{string(systems.NeedRedelivery)},
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Fault{Label: "dark", Verb: "black-hole", On: "c1"},
		script.Publish{BusinessID: "order-1", By: "p1"},
		script.Await{Condition: script.Fired("dark")},
		script.Heal{Label: "dark"},
		script.Await{Condition: script.Effect("order-1")},
	},
	Reached: []evidence.Condition{
		script.Fired("dark"),
	},
	Expect: usual(),
}
