package scenarios

import (
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// swapStore: the rows move to another store while the broker runs.
var swapStore = swapped("swap-store",
	"The broker's store is swapped for another while publishes are on their way and messages wait, and the broker is killed afterwards: what was accepted is served, once and in order, and what was settled is not served again.")

// swapKilledBefore and swapKilledAfter strike around the commit that decides which
// of the two stores is in charge. Its mark is the third dead letter: two of the new
// store's go before it.
var (
	swapKilledBefore = swapped("swap-killed-before",
		"The broker is killed just before the commit that puts the new store in charge: the next start serves from the old one.",
		script.Fault{Label: "cut-short", Verb: "kill", Target: "broker", When: script.Before, Event: "operation dead-letter", N: 3})
	swapKilledAfter = swapped("swap-killed-after",
		"The broker is killed just after the commit that puts the new store in charge: the next start serves from the new one.",
		script.Fault{Label: "cut-short", Verb: "kill", Target: "broker", When: script.After, Event: "operation dead-letter", N: 3})
)

// swapped is the story of a swap, which faults may end.
func swapped(name, why string, faults ...script.Step) script.Scenario {
	reached := []evidence.Condition{
		script.Accepted("order-150"),
		script.Effect("order-220"),
		script.Acked("order-1"),
	}
	steps := []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c0", Destination: "orders", Idempotent: true},
		script.Publish{BusinessID: "order-1", By: "p1", MessageID: "m-1"},
		script.Await{Condition: script.Acked("order-1")},
		script.Stop{Actor: "c0"},
		script.Consumer{Name: "c1", Destination: "orders", Silent: true, Window: 8},
		script.Consumer{Name: "c2", Destination: "orders", Idempotent: true, Window: 20, Offline: true},
		script.Publish{BusinessID: "order-", From: 2, To: 100, By: "p1", SizeTo: 2048, Headers: 2, Keys: 4, Window: 20},
		script.Publish{BusinessID: "order-", From: 101, To: 200, By: "p1", Window: 5, Background: true, Until: "accepted"},
		script.Await{Condition: script.Accepted("order-120")},
	}
	steps = append(steps, faults...)
	steps = append(steps, script.Swap{})
	if len(faults) > 0 {
		steps = append(steps, script.Await{Condition: script.Fired("cut-short")})
		reached = append(reached, script.Fired("cut-short"))
	} else {
		steps = append(steps,
			script.Settle{},
			script.Snapshot{Checkpoint: "swapped"},
			script.Fault{Label: "died", Verb: "kill", Target: "broker"})
		reached = append(reached, script.Fired("died"))
	}
	steps = append(steps,
		script.Start{Actor: "broker"},
		script.Start{Actor: "c2"},
		script.Settle{},
		script.Stop{Actor: "c1"},
		script.Retry{BusinessID: "order-1", By: "p1", SameID: true},
		script.Publish{BusinessID: "order-", From: 201, To: 220, By: "p1", Window: 5, Until: "accepted"},
		script.Await{Condition: script.Effect("order-220"), Within: 30 * time.Second},
	)
	s := script.Scenario{
		Name: name, Why: why, Steps: steps, Reached: reached,
		Needs:  []string{string(systems.NeedMoves), string(systems.NeedDedup), string(systems.NeedMessageID)},
		Expect: usual(evidence.MessageIdentity, evidence.PartitionIsolation),
	}
	if len(faults) == 0 { // what a kill left without an answer is sent again, out of order
		s.Expect = append(s.Expect, evidence.Order)
	}
	return s
}
