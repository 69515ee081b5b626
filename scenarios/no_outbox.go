package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// noOutbox: what a store keeps, it has been given. Nothing in it joins a message
// with the business row that the message tells of.
var noOutbox = script.Scenario{
	Name: "no-outbox",
	Why:  "A producer commits its business row and then publishes, another publishes and then commits; the system refuses the first and the answer to the second is lost: one has a row without a message, the other a message without a row.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders", Commits: script.CommitsFirst},
		script.Producer{Name: "p2", Destination: "orders", Commits: script.CommitsLast},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Publish{BusinessID: "order-1", By: "p1"},
		script.Publish{BusinessID: "order-2", By: "p2"},
		script.Fault{Label: "refused", Verb: "down", On: "p1"},
		script.Publish{BusinessID: "order-", From: 3, To: 4, By: "p1"},
		script.Heal{Label: "refused"},
		script.Fault{Label: "lost", Verb: "drop", Event: "frame accept", Of: "order-5", On: "p2"},
		script.Publish{BusinessID: "order-5", By: "p2"},
		script.Await{Condition: script.Effect("order-5")},
	},
	Reached: []evidence.Condition{
		script.Fired("refused"),
		script.Fired("lost"),
		script.Answered("rejected", "order-4"),
		script.Effect("order-5"),
	},
	Expect: usual(evidence.DeclinedMeansAbsent, evidence.OutboxAtomicity),
}
