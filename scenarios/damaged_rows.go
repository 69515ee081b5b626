package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/faults"
	"github.com/custodymq/custody/script"
)

// damagedRows: what cannot be trusted is refused by name, never guessed.
var damagedRows = script.Scenario{
	Name: "damaged-rows",
	Why:  "A row of an older protocol version, a damaged row and one whose content is damaged lie among the others when the broker starts: each is refused by name and left untouched, the others are served.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Plant{What: script.Old, BusinessID: "order-7", Destination: "orders"},
		script.Plant{What: script.Damaged, BusinessID: "order-8", Destination: "orders"},
		script.Plant{What: script.DamagedContent, BusinessID: "order-9", Destination: "orders"},
		script.Snapshot{Checkpoint: "planted"},
		script.Restart{Actor: faults.Broker},
		script.Await{Condition: script.Connected("c1", 2)},
		script.Publish{BusinessID: "order-1", By: "p1", Until: "accepted"},
		script.Publish{BusinessID: "order-2", By: "p1", Until: "accepted"},
		script.Await{Condition: script.Effect("order-1")},
		script.Await{Condition: script.Effect("order-2")},
		talk("refused-rows"),
	},
	Reached: []evidence.Condition{
		script.Effect("order-1"),
		script.Effect("order-2"),
	},
	Expect: usual(evidence.StrangersRefused),
}
