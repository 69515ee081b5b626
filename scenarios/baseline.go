package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// baseline has no fault.
var baseline = script.Scenario{
	Name: "baseline",
	Why:  "Several producers and topics, a consumer for each, sizes from nothing to 1 MiB, and nothing goes wrong.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Producer{Name: "p2", Destination: "orders"},
		script.Producer{Name: "p3", Destination: "mails"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true, Window: 30},
		script.Consumer{Name: "c2", Destination: "mails", Idempotent: true, Window: 50},
		script.Publish{BusinessID: "order-", From: 1, To: 20, By: "p1", Window: 8},
		script.Publish{BusinessID: "big-1", By: "p2", Size: 1},
		script.Publish{BusinessID: "big-2", By: "p2", Size: 1024},
		script.Publish{BusinessID: "big-3", By: "p2", Size: 65536},
		script.Publish{BusinessID: "big-4", By: "p2", Size: 1 << 20},
		script.Publish{BusinessID: "mail-", From: 1, To: 20, By: "p3", Window: 4},
		script.Await{Condition: script.Delivered("mail-20", 0)},
		script.Await{Condition: script.Delivered("big-4", 0)},
	},
	Reached: []evidence.Condition{
		script.Delivered("order-20", 0),
		script.Delivered("big-4", 0),
		script.Delivered("mail-20", 0),
	},
	Expect: expect(evidence.NoAcceptedLoss, evidence.NoPhantom, evidence.SingleEffect, evidence.NoDuplicateDelivery, evidence.Order, evidence.AckIsFinal, evidence.RowsMatchClients, evidence.RecoveryBounded, evidence.Survives, evidence.Routing, evidence.MessageIdentity, evidence.CreditKept, evidence.Answered, evidence.AnswerDelivered, evidence.Availability, evidence.SessionStability),
}
