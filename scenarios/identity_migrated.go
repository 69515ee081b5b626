package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// identityMigrated: rows belong to the identity that stored them until an
// administrator moves them.
var identityMigrated = script.Scenario{
	Name: "identity-migrated",
	Why:  "A host's storage identity has changed: its broker does not find the rows that it stored under the old one, until they were migrated; then it serves them, and the old identity has none left.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c0", Destination: "orders", Silent: true, Window: 4},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true, Window: 4, Offline: true},
		script.Publish{BusinessID: "order-", From: 1, To: 20, By: "p1", Window: 5, Headers: 2},
		script.Stop{Actor: "c0"},
		script.Set{Setting: "identity", Value: "identity-2"},
		script.Restart{Actor: "broker"},
		// Without the migration nothing is there.
		script.Start{Actor: "c1"},
		quiet,
		script.Stop{Actor: "c1"},
		script.Snapshot{Checkpoint: "changed"},
		script.Fault{Label: "down", Verb: "shutdown", Target: "broker"},
		script.Migrate{From: "identity-1", To: "identity-2"},
		script.Start{Actor: "broker"},
		script.Start{Actor: "c1"},
		script.Await{Condition: script.Effect("order-20")},
	},
	Reached: []evidence.Condition{
		script.Stored("order-1", "changed"),
		script.Fired("down"),
		script.Effect("order-1"),
		script.Effect("order-20"),
	},
	Expect: usual(evidence.PartitionIsolation, evidence.Order),
}
