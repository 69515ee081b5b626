package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// limits: what is within a limit is accepted, what exceeds it is refused.
var limits = script.Scenario{
	Name: "limits",
	Why:  "Every limit of the protocol is met exactly and exceeded by one, and what cannot be done is asked for: the former is accepted in full, the latter refused with its cause, and nothing is left of it.",
	Steps: []script.Step{
		// First, because only its answers show the state of a broker that
		// serves nobody.
		script.Probe{Target: "broker", Kind: "limits"},
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Publish{BusinessID: "order-1", By: "p1"},
		script.Probe{Target: "broker", Kind: "requests"},
		script.Publish{BusinessID: "order-2", By: "p1"},
		script.Await{Condition: script.Effect("order-2")},
	},
	Reached: []evidence.Condition{
		script.Effect("order-2"),
	},
	Expect: usual(evidence.StrangersRefused),
}
