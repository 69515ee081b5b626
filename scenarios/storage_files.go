package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// storageFiles: damaged data is reported and never served, and two owners
// never write to the same files.
var storageFiles = script.Scenario{
	Name: "storage-files",
	Why:  "Files of the store are damaged, moved, exchanged and opened by a second owner: what is sound is given, what is not is named, and nothing is written where it would be lost.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Publish{BusinessID: "order-1", By: "p1"},
		script.Probe{Target: "broker", Kind: "storage"},
		script.Publish{BusinessID: "order-2", By: "p1"},
		script.Await{Condition: script.Effect("order-2")},
	},
	Reached: []evidence.Condition{
		script.Effect("order-2"),
	},
	Expect: usual(evidence.StrangersRefused),
}
