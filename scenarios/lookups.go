package scenarios

import (
	"slices"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// lookups: several messages per business ID, and every way one ends.
var lookups = script.Scenario{
	Name:  "lookups",
	Why:   "Business IDs are published once and several times, and their messages wait, are settled, dead-lettered, sent back, discarded and expire: what a look-up says of them is true at each stage, also after a restart.",
	Needs: []string{string(systems.NeedLookup), string(systems.NeedNack), string(systems.NeedTTL), string(systems.NeedMessageID), string(systems.NeedSurvival)},
	Steps: slices.Concat(
		[]script.Step{
			script.Producer{Name: "p1", Destination: "orders"},
			script.Producer{Name: "p2", Destination: "orders"},
			script.Producer{Name: "p3", Destination: "mails"},
			script.Producer{Name: "p4", Destination: "mails"},
			script.Consumer{Name: "c0", Destination: "orders", As: "orders", Silent: true, Window: 10},
			script.Consumer{Name: "c9", Destination: "mails", As: "mails", Silent: true},
		},
		resolved("p1", "order-1"), // before any publish
		[]script.Step{
			// Two messages of one business ID, of which the older is settled.
			script.Publish{BusinessID: "order-1", By: "p1", MessageID: "m-1"},
			script.Retry{BusinessID: "order-1", By: "p1"},
			script.Publish{BusinessID: "order-2", By: "p1", MessageID: "m-2"},
			script.Publish{BusinessID: "mail-1", By: "p3", TTL: time.Second},
			script.Publish{BusinessID: "mail-2", By: "p3", TTL: time.Hour},
			// The newer of two expires while the older waits.
			script.Publish{BusinessID: "mail-3", By: "p3", TTL: time.Hour},
			script.Publish{BusinessID: "mail-3", By: "p4", TTL: time.Second},
			script.Stop{Actor: "c9"},
		},
		resolved("p2", "order-1", "order-2", "mail-1", "mail-2", "mail-3"),
		[]script.Step{
			script.Stop{Actor: "c0"},
			script.Consumer{Name: "c1", Destination: "orders", As: "orders", Fails: []script.Failing{{On: script.IDs{Name: "order-2"}, Times: 10}, {On: script.IDs{Name: "order-3"}, Times: 5}}},
			script.Publish{BusinessID: "order-3", By: "p1", MessageID: "m-3"},
			script.Await{Condition: script.Condition(evidence.CondAcked, "order-1", "", 2)},
			script.Await{Condition: script.Dead("order-2")},
			script.Await{Condition: script.Dead("order-3")},
			script.Snapshot{Checkpoint: "dead"},
		},
		resolved("p2", "order-1", "order-2", "order-3"),
		[]script.Step{
			// A dead letter and another message share a business ID.
			script.Redrive{BusinessID: "order-3"},
			script.Await{Condition: script.Effect("order-3")},
			script.Await{Condition: script.Acked("order-3")},
			script.Elapse{BusinessID: "mail-1", Margin: 600 * time.Millisecond},
		},
		resolved("p2", "order-2", "order-3", "mail-1", "mail-2", "mail-3"),
		[]script.Step{script.Restart{Actor: "broker"}},
		resolved("p2", "order-1", "order-2", "order-3", "mail-1", "mail-2", "mail-3"),
		[]script.Step{
			script.Discard{BusinessID: "order-2"},
		},
		resolved("p2", "order-2"),
		[]script.Step{
			// Settled twice, and published once more.
			script.Stop{Actor: "c1"},
			script.Start{Actor: "c0"},
			script.Publish{BusinessID: "order-4", By: "p1", Until: "accepted"},
			script.Retry{BusinessID: "order-1", By: "p1"},
		},
		resolved("p2", "order-1"),
		[]script.Step{
			script.Stop{Actor: "c0"},
			script.Restart{Actor: "broker"},
		},
		resolved("p2", "order-1", "order-2", "order-3", "mail-1", "mail-2", "mail-3", "order-99"),
		[]script.Step{
			script.Start{Actor: "c1"},
			script.Consumer{Name: "c8", Destination: "mails", As: "mails"},
			script.Await{Condition: script.Condition(evidence.CondAcked, "order-1", "", 3)},
			script.Await{Condition: script.Acked("mail-2")},
			script.Await{Condition: script.Acked("mail-3")},
		},
		resolved("p2", "order-1", "mail-1", "mail-2", "mail-3"),
	),
	Reached: []evidence.Condition{
		script.Dead("order-2"),
		script.Effect("order-3"),
		script.Condition(evidence.CondAcked, "order-1", "", 3),
	},
	Expect: expect(evidence.NoAcceptedLoss, evidence.NoPhantom, evidence.BoundedRetry, evidence.ExpiryHonoured,
		evidence.LookupsTrue, evidence.RedeliveryPaced, evidence.RowsMatchClients, evidence.Survives),
}
