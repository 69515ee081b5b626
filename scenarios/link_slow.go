package scenarios

import (
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// linkSlow: late is not lost.
var linkSlow = script.Scenario{
	Name: "link-slow",
	Why:  "The consumer's link is slow and the producer's is narrow: everything arrives, later.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true, Window: 20},
		script.Fault{Label: "late", Verb: "latency", On: "c1", By: 20 * time.Millisecond},
		script.Fault{Label: "narrow", Verb: "bandwidth", On: "p1", Rate: 256},
		script.Publish{BusinessID: "order-", From: 1, To: 10, By: "p1", Size: 4096, Window: 4},
		script.Await{Condition: script.Effect("order-10")},
	},
	Reached: []evidence.Condition{
		script.Fired("late"),
		script.Fired("narrow"),
	},
	Expect: usual(),
}
