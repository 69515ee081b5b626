package scenarios

import (
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// storageIdentityChanged: rows belong to the identity that stored them.
var storageIdentityChanged = script.Scenario{
	Name: "storage-identity-changed",
	Why:  "Under another storage identity the old rows are invisible and untouched; under the old one they are there again.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Producer{Name: "p2", Destination: "mails"},
		script.Consumer{Name: "c0", Destination: "orders", Silent: true},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true, Offline: true},
		script.Consumer{Name: "c2", Destination: "mails", Silent: true},
		script.Publish{BusinessID: "order-1", By: "p1"},
		script.Publish{BusinessID: "mail-1", By: "p2", TTL: 2 * time.Second},
		script.Await{Condition: script.Delivered("order-1", 0)},
		script.Await{Condition: script.Delivered("mail-1", 0)},
		script.Stop{Actor: "c0"},
		script.Stop{Actor: "c2"},
		script.Set{Setting: "identity-now", Value: "identity-9"},
		script.Snapshot{Checkpoint: "first"},
		script.Set{Setting: "identity", Value: "identity-2"},
		script.Restart{Actor: "broker"},
		script.Snapshot{Checkpoint: "changed"},
		script.Start{Actor: "c1"},
		script.Publish{BusinessID: "order-2", By: "p1", Until: "accepted"},
		script.Await{Condition: script.Effect("order-2")},
		script.Elapse{BusinessID: "mail-1", Margin: 600 * time.Millisecond},
		script.Stop{Actor: "c1"},
		script.Snapshot{Checkpoint: "second"},
		script.Set{Setting: "identity", Value: "identity-1"},
		script.Restart{Actor: "broker"},
		script.Start{Actor: "c1"},
		script.Await{Condition: script.Effect("order-1")},
	},
	Reached: []evidence.Condition{
		script.Stored("order-1", "second"),
		script.Effect("order-2"),
		script.Effect("order-1"),
	},
	Expect: expect(evidence.NoAcceptedLoss, evidence.NoPhantom, evidence.SingleEffect, evidence.PartitionIsolation, evidence.RowsMatchClients, evidence.Survives),
}
