package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// backupRestored: the application is rolled back, and the system is not.
var backupRestored = script.Scenario{
	Name: "backup-restored",
	Why:  "The application's database is restored from a backup that has the effect of order-1 and not that of order-2, and both come again because their ACKs were lost: the former is absorbed, the latter takes effect once more.",
	// Without redelivery timeouts, a session holds back everything after a
	// lost ACK.
	Needs: []string{string(systems.NeedTimeout)},
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Fault{Label: "lost-1", Verb: "drop", Event: "frame ack", Of: "order-1", On: "c1"},
		script.Publish{BusinessID: "order-1", By: "p1"},
		script.Await{Condition: script.Fired("lost-1")},
		script.Snapshot{Checkpoint: "backup"},
		// c1 waits for the answer to its ACK.
		script.Consumer{Name: "c2", Destination: "orders", Idempotent: true},
		script.Fault{Label: "lost-2", Verb: "drop", Event: "frame ack", Of: "order-2", On: "c2"},
		script.Publish{BusinessID: "order-2", By: "p1"},
		script.Await{Condition: script.Fired("lost-2")},
		script.Stop{Actor: "c1"},
		script.Stop{Actor: "c2"},
		script.Restore{Checkpoint: "backup"},
		script.Start{Actor: "c1"},
		script.Await{Condition: script.Absorbed("order-1")},
		script.Await{Condition: script.Acked("order-1")},
		script.Await{Condition: script.Acked("order-2")},
	},
	Reached: []evidence.Condition{
		script.Fired("lost-1"),
		script.Fired("lost-2"),
		script.Absorbed("order-1"),
		script.Acked("order-2"),
	},
	Expect: usual(),
}
