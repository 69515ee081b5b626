package scenarios

import (
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// consumerPaused: a message held for too long is taken back.
var consumerPaused = script.Scenario{
	Name:  "consumer-paused",
	Why:   "A consumer stands still with a message in its hands until another has been given it; its late acknowledgement settles nothing of the other's.",
	Needs: []string{string(systems.NeedCompeting), string(systems.NeedTimeout), string(systems.NeedAcks)},
	Steps: []script.Step{
		// Slow, so that it is paused before it can acknowledge.
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true, Child: true, Takes: 300 * time.Millisecond, TakesOn: script.IDs{Name: "order-1"}},
		script.Consumer{Name: "c2", Destination: "orders", Idempotent: true, Offline: true, Takes: 400 * time.Millisecond, TakesOn: script.IDs{Name: "order-1"}},
		script.Producer{Name: "p1", Destination: "orders"},
		script.Fault{Label: "stall", Verb: "pause", Target: "c1", When: script.After, Event: "frame deliver", Of: "order-1", On: "c1"},
		script.Publish{BusinessID: "order-1", By: "p1"},
		script.Await{Condition: script.Fired("stall")},
		script.Start{Actor: "c2"},
		script.Publish{BusinessID: "order-", From: 2, To: 10, By: "p1"},
		// The tenth is order-1, still being processed here when its first
		// holder resumes.
		script.Await{Condition: script.Carried("deliver", "c2", 10), Within: 20 * time.Second},
		script.Heal{Label: "stall"},
		script.Await{Condition: script.Acked("order-1"), Within: 20 * time.Second},
		script.Wait{Quiet: 300 * time.Millisecond},
	},
	Reached: []evidence.Condition{
		script.Fired("stall"),
		script.Acked("order-1"),
	},
	Expect: usual(evidence.StableRedeliveryID, evidence.SettledByHolder, evidence.ExclusiveDelivery),
}
