package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// partitionProducer: publishes vanish in a silent partition.
var partitionProducer = script.Scenario{
	Name: "partition-producer",
	Why:  "The producer is cut off without any connection ending: Unknown, not lost; after the partition it is tried again.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Publish{BusinessID: "order-1", By: "p1"},
		script.Fault{Label: "dark", Verb: "black-hole", On: "p1"},
		script.Publish{BusinessID: "order-2", By: "p1", MessageID: "m-2"},
		script.Heal{Label: "dark"},
		script.Retry{BusinessID: "order-2", By: "p1", SameID: true},
		script.Await{Condition: script.Effect("order-2")},
	},
	Reached: []evidence.Condition{
		script.Fired("dark"),
		script.Answered("unknown", "order-2"),
	},
	Expect: usual(evidence.UnknownResolved),
}
