package scenarios

import (
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// steadyLoad is ordinary production load: batches, windows, keys, headers and
// sizes, from two publishers at once.
var steadyLoad = script.Scenario{
	Name:  "steady-load",
	Why:   "Two publishers send hundreds of messages at once, with keys, headers and sizes of every kind, and nothing goes wrong.",
	Needs: []string{string(systems.NeedAcks)}, // so that the window applies
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Producer{Name: "p2", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true, Window: 10},
		script.Publish{BusinessID: "order-", From: 1, To: 200, By: "p1", Size: 0, SizeTo: 4096, Headers: 3, Keys: 4, Window: 50, Background: true},
		script.Publish{BusinessID: "mail-", From: 1, To: 200, By: "p2", Size: 100, SizeTo: 300, Headers: 1, Keys: 7, Window: 20, Background: true},
		script.Settle{},
		script.Await{Condition: script.Effect("order-200"), Within: 30 * time.Second},
		script.Await{Condition: script.Effect("mail-200"), Within: 30 * time.Second},
	},
	Reached: []evidence.Condition{
		script.Effect("order-200"),
		script.Effect("mail-200"),
	},
	Expect: usual(evidence.Order, evidence.AckIsFinal, evidence.NoDuplicateDelivery, evidence.Routing, evidence.MessageIdentity, evidence.CreditKept, evidence.Answered, evidence.AnswerDelivered, evidence.Availability, evidence.SessionStability, evidence.Progress),
}
