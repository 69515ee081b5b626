package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// noOnlineConsumer: nothing is accepted while no consumer is online.
var noOnlineConsumer = script.Scenario{
	Name:  "no-online-consumer",
	Why:   "Nobody is there to receive: the publish is declined, and nothing is stored.",
	Needs: []string{string(systems.NeedDecline)},
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Publish{BusinessID: "order-1", By: "p1"},
	},
	Reached: []evidence.Condition{
		script.Answered("declined", "order-1"),
	},
	Expect: expect(evidence.DeclinedMeansAbsent, evidence.Survives),
}
