package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// acceptReplyLost: stored, but the producer gets no answer.
var acceptReplyLost = script.Scenario{
	Name: "accept-reply-lost",
	Why:  "The answer to a publish is lost: Unknown; the retry with the same message ID adds no second effect.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders"},
		script.Consumer{Name: "c1", Destination: "orders", Idempotent: true},
		script.Fault{Label: "lost", Verb: "drop", Event: "frame accept", Of: "order-1", On: "p1"},
		script.Publish{BusinessID: "order-1", By: "p1", MessageID: "m-1"},
		script.Resolve{BusinessID: "order-1", By: "p1"},
		script.Retry{BusinessID: "order-1", By: "p1", SameID: true},
		script.Await{Condition: script.Effect("order-1")},
	},
	Reached: []evidence.Condition{
		script.Answered("unknown", "order-1"),
		script.Accepted("order-1"),
	},
	Expect: usual(evidence.UnknownResolved, evidence.AnswerDelivered),
}
