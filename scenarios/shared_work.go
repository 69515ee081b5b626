package scenarios

import (
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// sharedWork: no ready consumer starves.
var sharedWork = script.Scenario{
	Name:  "shared-work",
	Why:   "Three consumers compete for two hundred messages, and then for sixty that come one at a time: each of them is served.",
	Needs: []string{string(systems.NeedCompeting), string(systems.NeedAcks)},
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true, Window: 5, Takes: 2 * time.Millisecond},
		script.Consumer{Name: "c2", Destination: "orders", Idempotent: true, Window: 5, Takes: 2 * time.Millisecond},
		script.Consumer{Name: "c3", Destination: "orders", Idempotent: true, Window: 5, Takes: 2 * time.Millisecond},
		script.Publish{BusinessID: "order-", From: 1, To: 200, By: "p1", Keys: 10, Window: 40},
		script.Await{Condition: script.Effect("order-200"), Within: 30 * time.Second},
		script.Publish{BusinessID: "order-", From: 201, To: 260, By: "p1"}, // one at a time: each finds them all free
		script.Await{Condition: script.Effect("order-260"), Within: 30 * time.Second},
	},
	Reached: []evidence.Condition{
		script.Effect("order-260"),
	},
	Expect: usual(evidence.FairService, evidence.CreditKept, evidence.ExclusiveDelivery),
}
