package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// storeRestored: the system is rolled back, and the application is not.
var storeRestored = script.Scenario{
	Name:  "store-restored",
	Why:   "The broker's store is lost, and restored from a backup: what was accepted before the backup is served, what was settled after it comes again and is absorbed, and what was accepted after it is missing, which is measured.",
	Needs: []string{string(systems.NeedAcks), string(systems.NeedRows)},
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Producer{Name: "p2", Destination: "mails"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true, Window: 10},
		script.Consumer{Name: "c0", Destination: "orders", Silent: true, Window: 4, Offline: true},
		script.Consumer{Name: "c8", Destination: "mails", Silent: true, Window: 4},
		script.Consumer{Name: "c9", Destination: "mails", Idempotent: true, Window: 10, Offline: true},
		// Settled before the backup.
		script.Publish{BusinessID: "order-", From: 1, To: 20, By: "p1", Window: 5, Headers: 2},
		script.Settle{},
		script.Await{Condition: script.Acked("order-20")},
		script.Start{Actor: "c0"},
		script.Stop{Actor: "c1"},
		// Waiting in the backup, and settled after it.
		script.Publish{BusinessID: "order-", From: 21, To: 60, By: "p1", Window: 5, Headers: 2, Keys: 4},
		// Waiting in the backup, and still when the store is lost.
		script.Publish{BusinessID: "mail-", From: 1, To: 40, By: "p2", Window: 5, Headers: 2},
		script.Settle{},
		script.Snapshot{Checkpoint: "backup"},
		script.Start{Actor: "c1"},
		script.Stop{Actor: "c0"},
		script.Await{Condition: script.Acked("order-60")},
		script.Publish{BusinessID: "order-", From: 61, To: 80, By: "p1", Window: 5},
		script.Settle{},
		script.Await{Condition: script.Acked("order-80")},
		// Accepted after the backup, and waiting.
		script.Start{Actor: "c0"},
		script.Stop{Actor: "c1"},
		script.Publish{BusinessID: "order-", From: 81, To: 100, By: "p1", Window: 5},
		script.Settle{},
		script.Snapshot{Checkpoint: "waiting"},
		script.Stop{Actor: "c0"},
		script.Stop{Actor: "c8"},
		script.Fault{Label: "died", Verb: "kill", Target: "broker"},
		script.Restore{Checkpoint: "backup", Broker: true},
		script.Start{Actor: "broker"},
		script.Snapshot{Checkpoint: "restored"},
		script.Start{Actor: "c1"},
		script.Start{Actor: "c9"},
		script.Publish{BusinessID: "order-", From: 101, To: 110, By: "p1", Window: 5, Until: "accepted"},
		script.Await{Condition: script.Effect("order-110")},
		script.Await{Condition: script.Absorbed("order-60")},
		script.Await{Condition: script.Effect("mail-40")},
	},
	Reached: []evidence.Condition{
		script.Stored("order-21", "backup"),
		script.Stored("order-100", "waiting"),
		script.Fired("died"),
		script.Stored("order-21", "restored"),
		script.Absorbed("order-60"),
		script.Effect("mail-40"),
		script.Effect("order-110"),
	},
	Expect: usual(evidence.RestoreComplete, evidence.AckIsFinal, evidence.StableRedeliveryID, evidence.PartitionIsolation, evidence.Answered),
}
