package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// storeVolumeFull: a real file system that takes no byte more.
var storeVolumeFull = script.Scenario{
	Name: "store-volume-full",
	Why:  "The file system of the store is full, and has space again: what could not be written is not Accepted, and nothing that was is lost.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Publish{BusinessID: "order-", From: 1, To: 3, By: "p1"},
		script.Fault{Label: "full", Verb: "fill", Target: "store"},
		script.Publish{BusinessID: "order-4", By: "p1", Size: 2 << 20},
		script.Heal{Label: "full"},
		script.Publish{BusinessID: "order-5", By: "p1", Until: "accepted"},
		script.Await{Condition: script.Effect("order-5")},
	},
	Reached: []evidence.Condition{
		script.Fired("full"),
		script.Accepted("order-3"),
		script.Accepted("order-5"),
	},
	Expect: usual(),
}

// storeConnectionsExhausted: a store that cannot be connected to was given nothing.
var storeConnectionsExhausted = script.Scenario{
	Name: "store-connections-exhausted",
	Why:  "The broker loses its connections to the store, and others have taken all that its server gives: nothing was sent, so that a publish is Rejected, and accepted when there is room again.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Publish{BusinessID: "order-1", By: "p1"},
		script.Await{Condition: script.Effect("order-1")},
		script.Fault{Label: "cut", Verb: "down", On: "store"},
		script.Fault{Label: "crowd", Verb: "exhaust", Target: "store"},
		script.Heal{Label: "cut"},
		script.Publish{BusinessID: "order-2", By: "p1"},
		script.Heal{Label: "crowd"},
		script.Publish{BusinessID: "order-2", By: "p1", Until: "accepted"},
		script.Await{Condition: script.Effect("order-2")},
	},
	Reached: []evidence.Condition{
		script.Fired("crowd"),
		script.Answered("rejected", "order-2"),
		script.Accepted("order-2"),
	},
	Expect: usual(evidence.DeclinedMeansAbsent),
}

// storeReadOnly: a fail-over can leave a broker with a server that takes no writes.
var storeReadOnly = script.Scenario{
	Name: "store-read-only",
	Why:  "The store's server takes no writes for a while, as the target of a fail-over that went wrong: a publish is Rejected and absent, and accepted when the server takes writes again.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Publish{BusinessID: "order-1", By: "p1"},
		script.Await{Condition: script.Effect("order-1")},
		script.Fault{Label: "reads", Verb: "read-only", Target: "store"},
		script.Publish{BusinessID: "order-2", By: "p1"},
		script.Heal{Label: "reads"},
		script.Publish{BusinessID: "order-2", By: "p1", Until: "accepted"},
		script.Await{Condition: script.Effect("order-2")},
	},
	Reached: []evidence.Condition{
		script.Fired("reads"),
		script.Answered("rejected", "order-2"),
		script.Accepted("order-2"),
	},
	Expect: usual(evidence.DeclinedMeansAbsent),
}
