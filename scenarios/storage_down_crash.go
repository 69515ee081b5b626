package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// storageDownCrash: what was not written must not be accepted.
var storageDownCrash = script.Scenario{
	Name:  "storage-down-crash",
	Why:   "The store refuses a message and takes the next; then the broker dies before anybody has processed either.",
	Needs: []string{string(systems.NeedSurvival)},
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c0", Destination: "orders", Silent: true, Window: 10},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true, Offline: true},
		script.Fault{Label: "refused", Verb: "unreachable", Target: "store", Repeat: script.Every, When: script.Before, Event: "operation insert"},
		script.Publish{BusinessID: "order-1", By: "p1"},
		script.Heal{Label: "refused"},
		script.Publish{BusinessID: "order-2", By: "p1"},
		script.Await{Condition: script.Delivered("order-2", 0)},
		script.Fault{Label: "died", Verb: "kill", Target: "broker"},
		script.Stop{Actor: "c0"},
		script.Start{Actor: "broker"},
		script.Start{Actor: "c1"},
		script.Await{Condition: script.Effect("order-2")},
	},
	Reached: []evidence.Condition{
		script.Fired("refused"),
		script.Accepted("order-2"),
		script.Redelivery("order-2"),
	},
	Expect: usual(evidence.DeclinedMeansAbsent),
}
