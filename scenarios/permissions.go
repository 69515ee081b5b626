package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/faults"
	"github.com/custodymq/custody/script"
)

// permissions: users do what they may, also after they are changed.
var permissions = script.Scenario{
	Name: "permissions",
	Why:  "The broker knows its clients by name: each does what it may and nothing else, and who is changed or removed while the broker runs loses the session, and nobody else.",
	Steps: []script.Step{
		script.Set{Setting: "users", Value: "several"},
		script.Restart{Actor: faults.Broker},
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Publish{BusinessID: "order-1", By: "p1"},
		script.Probe{Target: faults.Broker, Kind: "permissions"},
		script.Publish{BusinessID: "order-2", By: "p1"},
		script.Await{Condition: script.Effect("order-2")},
	},
	Reached: []evidence.Condition{
		script.Effect("order-2"),
	},
	Expect: usual(evidence.StrangersRefused, evidence.SessionStability),
}
