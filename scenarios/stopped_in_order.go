package scenarios

import (
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/faults"
	"github.com/custodymq/custody/script"
)

// stoppedInOrder: an orderly stop answers what was taken and makes what was
// answered.
var stoppedInOrder = script.Scenario{
	Name: "stopped-in-order",
	Why:  "The broker is stopped while publishes are on their way to a slow store and a settled row waits to be deleted: each publish is answered, nothing is lost, and what was settled does not come back.",
	Steps: []script.Step{
		script.Fault{Label: "insert", Verb: "slow", Target: faults.Store, Repeat: script.Every, When: script.Before, Event: "operation insert", By: 100 * time.Millisecond},
		script.Probe{Target: faults.Broker, Kind: "stopping"},
		script.Heal{Label: "insert"},
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Publish{BusinessID: "order-1", By: "p1"},
		script.Await{Condition: script.Effect("order-1")},
	},
	Reached: []evidence.Condition{
		script.Fired("insert"),
		script.Effect("order-1"),
	},
	Expect: usual(evidence.StrangersRefused),
}
