package scenarios

import (
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// twoSubscribers: each logical subscriber receives every message, including
// those published while it was away.
var twoSubscribers = script.Scenario{
	Name:  "two-subscribers",
	Why:   "Two subscribers get everything, each for itself; one is away for a while, and misses nothing of what the system keeps for it.",
	Needs: []string{string(systems.NeedFanOut), string(systems.NeedAcks)},
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", As: "billing", Idempotent: true},
		script.Consumer{Name: "c2", Destination: "orders", As: "stock", Idempotent: true},
		script.Publish{BusinessID: "order-", From: 1, To: 3, By: "p1"},
		script.Await{Condition: script.Delivered("order-3", 2)},
		script.Stop{Actor: "c2"},
		script.Publish{BusinessID: "order-", From: 4, To: 6, By: "p1"},
		script.Wait{Quiet: 300 * time.Millisecond}, // publishes during the reconnect are not part of this scenario
		script.Start{Actor: "c2"},
		script.Publish{BusinessID: "order-7", By: "p1"},
		script.Await{Condition: script.Delivered("order-7", 2)},
	},
	Reached: []evidence.Condition{
		script.Connected("c2", 2),
		script.Delivered("order-7", 2),
	},
	Expect: usual(evidence.Order, evidence.Routing),
}
