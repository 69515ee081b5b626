package scenarios

import (
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// storeLinkSlow: late is not never.
var storeLinkSlow = script.Scenario{
	Name: "store-link-slow",
	Why:  "Bytes between broker and store are late, then come through a narrow link: everything takes longer, and nothing else.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true, Window: 4},
		script.Fault{Label: "late", Verb: "latency", On: "store", By: 50 * time.Millisecond},
		script.Publish{BusinessID: "order-", From: 1, To: 3, By: "p1"},
		script.Await{Condition: script.Effect("order-3")},
		script.Heal{Label: "late"},
		script.Fault{Label: "narrow", Verb: "bandwidth", On: "store", Rate: 64},
		script.Publish{BusinessID: "order-", From: 4, To: 6, By: "p1", Size: 16 << 10},
		script.Await{Condition: script.Effect("order-6")},
		script.Heal{Label: "narrow"},
	},
	Reached: []evidence.Condition{
		script.Fired("late"),
		script.Fired("narrow"),
		script.Effect("order-3"),
		script.Effect("order-6"),
	},
	Expect: usual(),
}
