package scenarios

import (
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// expiryOverRestart: a deadline is an instant; a restart does not extend it.
var expiryOverRestart = script.Scenario{
	Name:  "expiry-over-restart",
	Why:   "The broker is restarted in the middle of a message's time to live: it is not given more of it, and the others are not given less.",
	Needs: []string{string(systems.NeedTTL), string(systems.NeedAcks)},
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c0", Destination: "orders", Silent: true},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true, Offline: true},
		script.Publish{BusinessID: "order-1", By: "p1", TTL: time.Minute},
		script.Await{Condition: script.Delivered("order-1", 0)},
		script.Publish{BusinessID: "order-2", By: "p1", TTL: 2 * time.Second},
		script.Publish{BusinessID: "order-3", By: "p1", TTL: time.Minute},
		script.Stop{Actor: "c0"},
		script.Restart{Actor: "broker"},
		script.Elapse{BusinessID: "order-2", Margin: 300 * time.Millisecond},
		script.Start{Actor: "c1"},
		script.Publish{BusinessID: "order-4", By: "p1", Until: "accepted"},
		script.Await{Condition: script.Effect("order-4")},
	},
	Reached: []evidence.Condition{
		script.Delivered("order-1", 0),
		script.Effect("order-4"),
	},
	Expect: expect(evidence.NoAcceptedLoss, evidence.NoPhantom, evidence.SingleEffect, evidence.ExpiryHonoured, evidence.RowsMatchClients, evidence.Survives),
}
