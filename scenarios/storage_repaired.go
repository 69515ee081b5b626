package scenarios

import (
	"slices"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// storageRepaired: definite answers stay true after the store recovers.
var storageRepaired = script.Scenario{
	Name:  "storage-repaired",
	Why:   "Commits fail when they may be written already, of several messages, again and again, and while the store cannot be written to; then it works again. What was said of each message stays true over a crash, and each can be sent until it is accepted.",
	Needs: []string{string(systems.NeedLookup), string(systems.NeedMessageID), string(systems.NeedDedup)},
	Steps: slices.Concat(
		[]script.Step{
			script.Producer{Name: "p1", Destination: "orders"},
			script.Producer{Name: "p2", Destination: "orders"},
			script.Producer{Name: "p3", Destination: "orders"},
			script.Consumer{Name: "c1", Destination: "orders", Idempotent: true, Window: 4},
			script.Publish{BusinessID: "order-1", By: "p1"},
			script.Await{Condition: script.Effect("order-1")},
			quiet, // the store must sync nothing else

			// While the commit of one message is held, two more gather.
			script.Fault{Label: "first", Verb: "block", Target: "store", When: script.Before, Event: "operation sync"},
			script.Fault{Label: "second", Verb: "fsync-error", Target: "store", When: script.Before, Event: "operation sync", N: 2},
			script.Publish{BusinessID: "order-2", By: "p1", Background: true},
			script.Await{Condition: script.Fired("first")},
			script.Publish{BusinessID: "order-3", By: "p2", MessageID: "m-3", Background: true},
			script.Publish{BusinessID: "order-4", By: "p3", MessageID: "m-4", Background: true},
			script.Await{Condition: published("p2", 1)},
			script.Await{Condition: published("p3", 1)},
			script.Heal{Label: "first"},
			script.Await{Condition: script.Fired("second")},
			script.Settle{},
		},
		resolved("p1", "order-3", "order-4"),
		[]script.Step{
			quiet,
			// The commit may be written, and reading it back is impossible.
			script.Fault{Label: "third", Verb: "block", Target: "store", When: script.Before, Event: "operation sync"},
			script.Fault{Label: "fourth", Verb: "fsync-error", Target: "store", When: script.Before, Event: "operation sync"},
			script.Publish{BusinessID: "order-5", By: "p2", MessageID: "m-5", Background: true},
			script.Await{Condition: script.Fired("third")},
			script.Fault{Label: "down", Verb: "unreachable", Target: "store", Repeat: script.Every, When: script.Before, Event: "operation write"},
			script.Heal{Label: "third"},
			script.Await{Condition: script.Fired("fourth")},
			script.Settle{},
		},
		resolved("p1", "order-5"),
		[]script.Step{
			script.Fault{Label: "death", Verb: "kill", Target: "broker"},
			script.Heal{Label: "down"},
			script.Start{Actor: "broker"},
		},
		resolved("p1", "order-3", "order-4", "order-5"),
		[]script.Step{
			script.Publish{BusinessID: "order-3", By: "p2", Until: "accepted"},
			script.Publish{BusinessID: "order-4", By: "p3", Until: "accepted"},
			script.Publish{BusinessID: "order-5", By: "p2", Until: "accepted"},
			script.Publish{BusinessID: "order-8", By: "p1", Until: "accepted"},
			script.Await{Condition: script.Effect("order-8")},
			quiet,

			// Every commit fails for a while, without repair.
			script.Fault{Label: "often", Verb: "fsync-error", Target: "store", Repeat: script.Every, When: script.Before, Event: "operation sync"},
			script.Publish{BusinessID: "order-6", By: "p1", MessageID: "m-6"},
			script.Publish{BusinessID: "order-7", By: "p2", MessageID: "m-7"},
		},
		resolved("p3", "order-6", "order-7"),
		[]script.Step{
			script.Heal{Label: "often"},
			quiet,
		},
		resolved("p3", "order-6", "order-7"),
		[]script.Step{
			script.Snapshot{Checkpoint: "repaired"},
			script.Restart{Actor: "broker"},
		},
		resolved("p3", "order-6", "order-7"),
		[]script.Step{
			script.Publish{BusinessID: "order-6", By: "p1", Until: "accepted"},
			script.Publish{BusinessID: "order-7", By: "p2", Until: "accepted"},
			script.Await{Condition: script.Effect("order-3")},
			script.Await{Condition: script.Effect("order-4")},
			script.Await{Condition: script.Effect("order-5")},
			script.Await{Condition: script.Effect("order-6")},
			script.Await{Condition: script.Effect("order-7")},

			// Definite refusals leave no trace, not even in a counter.
			script.Fault{Label: "refused", Verb: "unreachable", Target: "store", Repeat: script.Every, When: script.Before, Event: "operation insert"},
			script.Publish{BusinessID: "order-9", By: "p1", MessageID: "m-9"},
			script.Heal{Label: "refused"},
			script.Publish{BusinessID: "order-9", By: "p1", Until: "accepted"},
			script.Await{Condition: script.Effect("order-9")},
		},
		resolved("p1", "order-1", "order-2", "order-3", "order-4", "order-5", "order-6", "order-7", "order-9"),
		[]script.Step{
			quiet,
			script.Probe{Target: "broker", Kind: "idle"},
		},
	),
	Reached: []evidence.Condition{
		script.Fired("second"),
		script.Fired("fourth"),
		script.Answered("unknown", "order-5"),
		script.Fired("often"),
		script.Fired("refused"),
		script.Effect("order-5"),
		script.Effect("order-7"),
	},
	Expect: usual(evidence.DeclinedMeansAbsent, evidence.UnknownResolved, evidence.LookupsTrue, evidence.StrangersRefused),
}

var quiet = script.Wait{Quiet: 300 * time.Millisecond}

// resolved looks up each business ID.
func resolved(by string, ids ...string) []script.Step {
	var steps []script.Step
	for _, id := range ids {
		steps = append(steps, script.Resolve{BusinessID: id, By: by})
	}
	return steps
}

// published: this many publishes passed the producer's link.
func published(by string, times int) evidence.Condition {
	return script.Condition(evidence.CondCarried, by, "publish", times)
}
