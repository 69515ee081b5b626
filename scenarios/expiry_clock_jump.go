package scenarios

import (
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// expiryClockJump: the broker reckons expiry by its own clock.
var expiryClockJump = script.Scenario{
	Name:  "expiry-clock-jump",
	Why:   "The clock of the broker jumps past a time to live: the message expires by that clock, another does not.",
	Needs: []string{string(systems.NeedTTL), string(systems.NeedClock)},
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c0", Destination: "orders", Silent: true},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true, Offline: true},
		script.Publish{BusinessID: "order-1", By: "p1", TTL: 10 * time.Minute},
		script.Await{Condition: script.Delivered("order-1", 0)},
		script.Publish{BusinessID: "order-2", By: "p1"},
		script.Fault{Label: "skew", Verb: "clock", Target: "broker", By: 30 * time.Minute},
		script.Stop{Actor: "c0"},
		script.Start{Actor: "c1"},
		script.Await{Condition: script.Effect("order-2")},
	},
	Reached: []evidence.Condition{
		script.Fired("skew"),
		script.Effect("order-2"),
	},
	Expect: expect(evidence.NoPhantom, evidence.SingleEffect, evidence.ExpiryHonoured, evidence.RowsMatchClients, evidence.Survives),
}
