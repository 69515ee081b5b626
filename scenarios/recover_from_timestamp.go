package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// recoverFromTimestamp: the application restores a backup, and the system
// replays what came after it.
var recoverFromTimestamp = script.Scenario{
	Name:    "recover-from-timestamp",
	Why:     "The application's database is restored from a backup, and its subscriber put back to a time before it: what was lost is rebuilt, and what was not has no second effect.",
	Steps:   recovery(script.ByTime),
	Reached: recovered,
	Expect:  usual(),
}

// recoverFromSequence: the same, by log position.
var recoverFromSequence = script.Scenario{
	Name:    "recover-from-sequence",
	Why:     "As recover-from-timestamp, but the subscriber is put back to where the log ended, by the system's own count.",
	Steps:   recovery(script.ByPosition),
	Reached: recovered,
	Expect:  usual(),
}

// recovery replays from before the backup, as one would in practice: order-2 is
// redelivered although its effect is restored.
func recovery(by string) []script.Step {
	return []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Publish{BusinessID: "order-1", By: "p1"},
		script.Await{Condition: script.Acked("order-1")},
		script.Snapshot{Checkpoint: "margin"},
		script.Publish{BusinessID: "order-2", By: "p1"},
		script.Await{Condition: script.Acked("order-2")},
		script.Snapshot{Checkpoint: "backup"},
		script.Publish{BusinessID: "order-", From: 3, To: 5, By: "p1"},
		script.Await{Condition: script.Acked("order-3")},
		script.Await{Condition: script.Acked("order-4")},
		script.Await{Condition: script.Acked("order-5")},
		script.Stop{Actor: "c1"},
		script.Restore{Checkpoint: "backup"},
		script.Rewind{Consumer: "c1", Checkpoint: "margin", By: by},
		script.Start{Actor: "c1"},
		script.Publish{BusinessID: "order-6", By: "p1"},
		script.Await{Condition: script.Effect("order-6")},
	}
}

var recovered = []evidence.Condition{
	script.Acked("order-5"),
	script.Connected("c1", 2),
}
