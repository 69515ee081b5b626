package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// publisherRetries: one message ID is one message.
var publisherRetries = script.Scenario{
	Name:  "publisher-retries",
	Why:   "The publisher sends one message twice under one message ID: there is one row, and it is kept for who comes later.",
	Needs: []string{string(systems.NeedMessageID), string(systems.NeedDedup), string(systems.NeedRows)},
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c0", Destination: "orders", Silent: true, Window: 10},
		script.Publish{BusinessID: "order-1", By: "p1", MessageID: "m-1"},
		script.Retry{BusinessID: "order-1", By: "p1", SameID: true},
		script.Await{Condition: script.Delivered("order-1", 0)},
		script.Stop{Actor: "c0"},
	},
	Reached: []evidence.Condition{
		script.Accepted("order-1"),
	},
	Expect: expect(evidence.NoAcceptedLoss, evidence.NoPhantom, evidence.RowsMatchClients, evidence.Survives),
}
