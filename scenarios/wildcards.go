package scenarios

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// wildcards: a filter receives exactly what it matches.
var wildcards = script.Scenario{
	Name: "wildcards",
	Why:  "One consumer subscribes to a level of destinations, one to all of another branch: each is sent what its filter matches, and nobody else's, also where it lies a level below.",
	Steps: []script.Step{
		script.Producer{Name: "p1", Destination: "orders/eu"},
		script.Producer{Name: "p2", Destination: "orders/us"},
		script.Producer{Name: "p3", Destination: "stock/eu/paris"},
		script.Producer{Name: "p4", Destination: "orders/eu/paris"},
		script.Consumer{Name: "c1", Destination: "orders/+", Idempotent: true, Window: 50},
		script.Consumer{Name: "c2", Destination: "stock/#", Idempotent: true, Window: 30},
		script.Consumer{Name: "c3", Destination: "orders/eu/paris", Idempotent: true, Window: 10},
		script.Publish{BusinessID: "eu-", From: 1, To: 20, By: "p1", Size: 20, Window: 10, Background: true},
		script.Publish{BusinessID: "us-", From: 1, To: 20, By: "p2", Size: 20, Window: 10, Background: true},
		script.Publish{BusinessID: "item-", From: 1, To: 20, By: "p3", Size: 20, Window: 10, Background: true},
		script.Publish{BusinessID: "deep-", From: 1, To: 5, By: "p4"},
		script.Settle{},
		script.Await{Condition: script.Effect("eu-20")},
		script.Await{Condition: script.Effect("us-20")},
		script.Await{Condition: script.Effect("item-20")},
		script.Await{Condition: script.Effect("deep-5")},
	},
	Reached: []evidence.Condition{
		script.Effect("eu-20"),
		script.Effect("us-20"),
		script.Effect("item-20"),
		script.Effect("deep-5"),
	},
	Expect: usual(evidence.Order, evidence.Routing, evidence.Availability),
}
