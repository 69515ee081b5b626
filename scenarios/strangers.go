package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// strangers: unauthorised clients are refused, at no cost to others.
var strangers = script.Scenario{
	Name: "strangers",
	Why:  "Clients with a wrong token, of another protocol, and with messages that are none come while others work: each is refused as the protocol says, and the others are served.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true, Window: 200},
		script.Publish{BusinessID: "order-", From: 1, To: 100, By: "p1", Headers: 2, Window: 4, Background: true, Until: "accepted"},
		script.Probe{Target: "broker", Kind: "strangers"},
		script.Settle{},
		script.Publish{BusinessID: "order-101", By: "p1", Until: "accepted"},
		script.Await{Condition: script.Effect("order-100")},
		script.Await{Condition: script.Effect("order-101")},
	},
	Reached: []evidence.Condition{
		script.Effect("order-100"),
		script.Effect("order-101"),
	},
	Expect: usual(evidence.StrangersRefused),
}
