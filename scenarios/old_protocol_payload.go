package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// oldProtocolPayload: an unknown version is refused, never misread.
var oldProtocolPayload = script.Scenario{
	Name: "old-protocol-payload",
	Why:  "A row of an older protocol version lies among newer ones: it is refused and untouched, the others are served.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Plant{What: script.Old, BusinessID: "old-1", Destination: "orders"},
		script.Restart{Actor: "broker"},
		script.Await{Condition: script.Connected("c1", 2)},
		script.Publish{BusinessID: "order-1", By: "p1", Until: "accepted"},
		script.Await{Condition: script.Effect("order-1")},
	},
	Reached: []evidence.Condition{
		script.Effect("order-1"),
	},
	Expect: expect(evidence.NoAcceptedLoss, evidence.NoPhantom, evidence.SingleEffect, evidence.RowsMatchClients, evidence.Survives),
}
