package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// topics: a message reaches its destination's subscribers and nobody else.
var topics = script.Scenario{
	Name: "topics",
	Why:  "Three destinations are used at once, with the same keys and sizes: each subscriber gets what was sent to its own.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Producer{Name: "p2", Destination: "orders-returned"},
		script.Producer{Name: "p3", Destination: "mails"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true, Window: 30},
		script.Consumer{Name: "c2", Destination: "orders-returned", Idempotent: true, Window: 30},
		script.Consumer{Name: "c3", Destination: "mails", Idempotent: true, Window: 30},
		script.Publish{BusinessID: "order-", From: 1, To: 30, By: "p1", Size: 64, Keys: 3, Window: 10, Background: true},
		script.Publish{BusinessID: "return-", From: 1, To: 30, By: "p2", Size: 64, Keys: 3, Window: 10, Background: true},
		script.Publish{BusinessID: "mail-", From: 1, To: 30, By: "p3", Size: 64, Keys: 3, Window: 10, Background: true},
		script.Settle{},
		script.Await{Condition: script.Effect("order-30")},
		script.Await{Condition: script.Effect("return-30")},
		script.Await{Condition: script.Effect("mail-30")},
	},
	Reached: []evidence.Condition{
		script.Effect("order-30"),
		script.Effect("return-30"),
		script.Effect("mail-30"),
	},
	Expect: usual(evidence.Order, evidence.Routing, evidence.Answered, evidence.Availability),
}
