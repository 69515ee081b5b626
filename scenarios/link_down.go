package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// linkDown: a refused connection proves that nothing was sent.
var linkDown = script.Scenario{
	Name: "link-down",
	Why:  "The system refuses the producer: Rejected, and absent; when it answers again, the next message goes through.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Publish{BusinessID: "order-1", By: "p1"},
		script.Fault{Label: "refused", Verb: "down", On: "p1"},
		script.Publish{BusinessID: "order-2", By: "p1"},
		script.Publish{BusinessID: "order-3", By: "p1"},
		script.Heal{Label: "refused"},
		script.Publish{BusinessID: "order-4", By: "p1", Until: "accepted"},
		script.Await{Condition: script.Effect("order-4")},
	},
	Reached: []evidence.Condition{
		script.Fired("refused"),
		script.Answered("rejected", "order-3"),
		script.Answered("accepted", "order-4"),
	},
	Expect: usual(evidence.DeclinedMeansAbsent),
}
