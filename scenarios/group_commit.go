package scenarios

import (
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// groupCommit: a commit of many messages is atomic for each.
var groupCommit = script.Scenario{
	Name:  "group-commit",
	Why:   "The store is slow, so that many messages gather in one commit, and the broker is killed while they do: what was accepted is there, whole.",
	Needs: []string{string(systems.NeedSurvival)},
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Producer{Name: "p2", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true, Window: 20},
		script.Fault{Label: "slow", Verb: "slow", Target: "store", Repeat: script.Every, When: script.Before, Event: "operation insert", By: 30 * time.Millisecond},
		script.Fault{Label: "died", Verb: "kill", Target: "broker", When: script.Before, Event: "frame accept", Of: "order-60", On: "p1"},
		script.Publish{BusinessID: "order-", From: 1, To: 100, By: "p1", Size: 10, SizeTo: 2000, Headers: 1, Window: 50, Until: "accepted", Background: true},
		script.Publish{BusinessID: "mail-", From: 1, To: 50, By: "p2", Size: 10, Window: 25, Until: "accepted", Background: true},
		script.Await{Condition: script.Fired("died")},
		script.Start{Actor: "broker"},
		script.Heal{Label: "slow"},
		script.Settle{Within: 30 * time.Second},
		script.Await{Condition: script.Effect("order-100"), Within: 30 * time.Second},
		script.Await{Condition: script.Effect("mail-50"), Within: 30 * time.Second},
	},
	Reached: []evidence.Condition{
		script.Fired("slow"),
		script.InFlight("died", 20),
		script.Accepted("order-100"),
	},
	Expect: usual(evidence.MessageIdentity),
}
