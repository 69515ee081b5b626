package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// modeMismatch: both sides opt in.
var modeMismatch = script.Scenario{
	Name:  "mode-mismatch",
	Why:   "A publish and a subscription of different modes do not match: Declined, no row, nothing delivered.",
	Needs: []string{string(systems.NeedModes)},
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders", Mode: "at-least-once"},
		script.Producer{Name: "p2", Destination: "mails", Mode: "at-most-once"},
		script.Consumer{Name: "c1", Destination: "orders", Mode: "at-most-once"},
		script.Consumer{Name: "c2", Destination: "mails", Mode: "at-least-once"},
		script.Publish{BusinessID: "order-1", By: "p1"},
		script.Publish{BusinessID: "mail-1", By: "p2"},
	},
	Reached: []evidence.Condition{
		script.Answered("declined", "order-1"),
		script.Answered("declined", "mail-1"),
	},
	Expect: expect(evidence.DeclinedMeansAbsent, evidence.Survives),
}
