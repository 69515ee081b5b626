package scenarios

import (
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// deadLetters: redriving one dead letter affects no other.
var deadLetters = script.Scenario{
	Name: "dead-letters",
	Why:  "Three messages always fail and are dead-lettered; one is redriven and fails again, one is discarded, one stays, and the others go on.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true, Window: 4, Fails: []script.Failing{{On: script.IDs{Name: "order-2"}}, {On: script.IDs{Name: "order-4"}}, {On: script.IDs{Name: "order-6"}}}},
		script.Publish{BusinessID: "order-", From: 1, To: 8, By: "p1", Size: 32, Headers: 2, Keys: 2},
		script.Await{Condition: script.Dead("order-2")},
		script.Await{Condition: script.Dead("order-4")},
		script.Await{Condition: script.Dead("order-6")},
		script.Snapshot{Checkpoint: "dead"},
		script.Redrive{BusinessID: "order-4"},
		script.Discard{BusinessID: "order-2"},
		script.Await{Condition: script.HandlerFailed("order-4", 6)},
		script.Publish{BusinessID: "order-9", By: "p1"},
		script.Await{Condition: script.Effect("order-9")},
		script.Wait{Quiet: time.Second},
	},
	Reached: []evidence.Condition{
		script.Dead("order-2"),
		script.Dead("order-4"),
		script.Dead("order-6"),
		script.HandlerFailed("order-4", 6),
		script.Effect("order-9"),
	},
	Expect: usual(evidence.BoundedRetry, evidence.AttemptsUsed),
}
