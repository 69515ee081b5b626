package scenarios

import (
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// storageSlow: a late write still happens.
var storageSlow = script.Scenario{
	Name: "storage-slow",
	Why:  "A write takes longer than the caller waits: Unknown, and the message arrives all the same.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Fault{Label: "slow", Verb: "slow", Target: "store", When: script.Before, Event: "operation insert", By: 1500 * time.Millisecond},
		script.Publish{BusinessID: "order-1", By: "p1"},
		script.Await{Condition: script.Effect("order-1")},
	},
	Reached: []evidence.Condition{
		script.Answered("unknown", "order-1"),
		script.Effect("order-1"),
	},
	Expect: expect(evidence.NoPhantom, evidence.SingleEffect, evidence.UnknownResolved, evidence.Survives),
}
