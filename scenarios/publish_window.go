package scenarios

import (
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// publishWindow: the bounds on unanswered publishes.
var publishWindow = script.Scenario{
	Name: "publish-window",
	Why:  "The store is slow, and more is published than may be unanswered at once, to more topics than are remembered, and again while it is on its way: each is answered as the protocol says, and nobody else notices.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Publish{BusinessID: "order-1", By: "p1"},
		// Every publish from here on stays unanswered this long.
		script.Fault{Label: "slow", Verb: "slow", Target: "store", Repeat: script.Every, When: script.Before, Event: "operation insert", By: 500 * time.Millisecond},
		script.Probe{Target: "broker", Kind: "window"},
		script.Heal{Label: "slow"},
		script.Publish{BusinessID: "order-2", By: "p1"},
		script.Await{Condition: script.Effect("order-2")},
	},
	Reached: []evidence.Condition{
		script.Fired("slow"),
		script.Effect("order-2"),
	},
	Expect: usual(evidence.StrangersRefused),
}
