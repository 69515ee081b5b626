package scenarios

import (
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// expiry: no delivery after expiry, no drop before it.
var expiry = script.Scenario{
	Name:  "expiry",
	Why:   "The time to live passes while one message is in flight and one waits; others live on.",
	Needs: []string{string(systems.NeedTTL), string(systems.NeedAcks)}, // without acknowledgements nothing stays in flight
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c0", Destination: "orders", Silent: true},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true, Offline: true},
		script.Publish{BusinessID: "order-1", By: "p1", TTL: 2 * time.Second},
		script.Await{Condition: script.Delivered("order-1", 0)},
		script.Publish{BusinessID: "order-2", By: "p1", TTL: 2 * time.Second},
		script.Publish{BusinessID: "order-3", By: "p1", TTL: time.Minute},
		script.Publish{BusinessID: "order-4", By: "p1", TTL: 2 * time.Hour},
		script.Elapse{BusinessID: "order-2", Margin: 600 * time.Millisecond},
		script.Stop{Actor: "c0"},
		script.Start{Actor: "c1"},
		script.Await{Condition: script.Effect("order-3")},
		script.Await{Condition: script.Effect("order-4")},
	},
	Reached: []evidence.Condition{
		script.Delivered("order-1", 0),
		script.Connected("c1", 0),
	},
	Expect: expect(evidence.NoAcceptedLoss, evidence.NoPhantom, evidence.SingleEffect, evidence.ExpiryHonoured, evidence.RowsMatchClients, evidence.Survives),
}
