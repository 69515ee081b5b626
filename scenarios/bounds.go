package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// bounds: conversations in which every answer is determined.
var bounds = script.Scenario{
	Name: "bounds",
	Why:  "The broker's limits are so tight that a few sessions meet each of them: what they say to it, and it to them, is what the protocol says, message by message, and nothing is left behind.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Set{Setting: "limits", Value: "tight"},
		script.Restart{Actor: "broker"},
		script.Publish{BusinessID: "order-1", By: "p1", Until: "accepted"},
		script.Await{Condition: script.Effect("order-1")},
		script.Probe{Target: "broker", Kind: "talks"},
		script.Probe{Target: "broker", Kind: "before-restart"},
		script.Restart{Actor: "broker"},
		script.Probe{Target: "broker", Kind: "after-restart"},
		script.Publish{BusinessID: "order-2", By: "p1", Until: "accepted"},
		script.Await{Condition: script.Effect("order-2")},
	},
	Reached: []evidence.Condition{
		script.Effect("order-2"),
	},
	Expect: usual(evidence.StrangersRefused),
}

// periods: the same for what takes its time.
var periods = script.Scenario{
	Name: "periods",
	Why:  "Deliveries stay unanswered, are given back with a delay, expire and are forgotten, in virtual time: each at its time and not before.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Set{Setting: "limits", Value: "tight"},
		script.Restart{Actor: "broker"},
		script.Publish{BusinessID: "order-1", By: "p1", Until: "accepted"},
		script.Await{Condition: script.Effect("order-1")},
		script.Probe{Target: "broker", Kind: "periods"},
		script.Publish{BusinessID: "order-2", By: "p1", Until: "accepted"},
		script.Await{Condition: script.Effect("order-2")},
	},
	Reached: []evidence.Condition{
		script.Effect("order-2"),
	},
	Expect: usual(evidence.StrangersRefused),
}
