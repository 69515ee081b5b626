package explore

import (
	"slices"
	"testing"

	"github.com/custodymq/custody/broker/defects"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/scenarios"
	"github.com/custodymq/custody/script"
)

// The simulation agrees with the real broker on the whole catalogue.
func TestCatalogueHolds(t *testing.T) {
	for _, s := range scenarios.All() {
		t.Run(s.Name, func(t *testing.T) {
			var sim Simulator
			for seed := range uint64(20) {
				h, err := sim.Run(t.Context(), Simulation{System: atLeastOnce, Scenario: s, Seed: seed})
				if err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				j, err := guarantees.Judge(h)
				if err != nil {
					t.Fatal(err)
				}
				if j.Outcome == guarantees.NotApplicable {
					if unsimulated[s.Name] == "" {
						t.Fatalf("not applicable: %s", j.Why)
					}
					return
				}
				if j.Outcome != guarantees.Held || unsimulated[s.Name] != "" {
					t.Fatalf("seed %d: %s: %s\n%s", seed, j.Outcome, j.Why, sim.Bytes(h))
				}
			}
		})
	}
}

// unsimulated lists the scenarios that cannot be simulated, with the reason.
// All others must be.
var unsimulated = map[string]string{
	"link-slow":                   "latency of bytes",
	"fsync-error":                 "the log's file",
	"store-server-killed":         "a store that is a server",
	"store-server-paused":         "a store that is a server",
	"store-link-slow":             "a store that is a server",
	"store-volume-full":           "a file system",
	"store-connections-exhausted": "a store that is a server",
	"store-read-only":             "a store that is a server",
	"node-lost":                   "a store that is a server",
	"storage-down":                "a file below the database",
	"storage-full":                "a file below the database",
	"old-protocol-payload":        "a row of an older version",
	"damaged-rows":                "rows of an older version, and damaged ones",
	"recover-from-timestamp":      "nor does the broker itself",
	"recover-from-sequence":       "nor does the broker itself",
	"two-subscribers":             "nor does the broker itself",
	"strangers":                   "bytes that no client sends",
	"limits":                      "bytes that no client sends",
	"permissions":                 "users and permissions are the server's",
	"stopped-in-order":            "a process of its own",
	"publish-window":              "bytes that no client sends",
	"storage-files":               "files of its own",
	"storage-repaired":            "the log's file",
	"identity-migrated":           "one store, which nobody exchanges",
	"store-restored":              "one store, of which nobody makes a copy",
	"swap-store":                  "one store, which nobody exchanges",
	"swap-killed-before":          "one store, which nobody exchanges",
	"swap-killed-after":           "one store, which nobody exchanges",
}

// A paused consumer keeps what it holds while the broker redelivers it, and
// resumes where it was.
func TestPausedConsumer(t *testing.T) {
	s, err := script.Parse("", `scenario still
producer p1 to orders
consumer c1 on orders, idempotent, child
consumer c2 on orders, idempotent, offline
fault stall: pause c1 after frame deliver of order-1 on c1
publish order-1 by p1
await fired stall
start c2
await effect of order-1
heal stall
publish order-2..order-5 by p1
await effect of order-5
reached fired stall
reached absorbed order-1
expect no-accepted-loss, recovery-bounded, single-effect
`)
	if err != nil {
		t.Fatal(err)
	}
	var sim Simulator
	for seed := range uint64(50) {
		h, err := sim.Run(t.Context(), Simulation{System: atLeastOnce, Scenario: s, Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		if j, err := guarantees.Judge(h); err != nil || j.Outcome != guarantees.Held {
			t.Fatalf("seed %d: %s: %s, %v\n%s", seed, j.Outcome, j.Why, err, sim.Bytes(h))
		}
	}
}

// The catalogue detects every defect in the simulation too.
func TestCatalogueCatchesDefects(t *testing.T) {
	for _, d := range defects.All() {
		if d.Connected {
			continue
		}
		t.Run(d.Name, func(t *testing.T) {
			var sim Simulator
			var seen []string
			for _, s := range scenarios.All() {
				if !slices.Contains(s.Expect, d.Breaks) && s.Name != d.Shown {
					continue
				}
				for seed := range uint64(3) {
					j, err := sim.Judge(t.Context(), Simulation{System: atLeastOnce, Scenario: s, Seed: seed, Defect: d.Name})
					if err != nil {
						t.Fatalf("%s, seed %d: %v", s.Name, seed, err)
					}
					broken := brokenOf(j)
					for _, b := range broken {
						if b != d.Breaks && !slices.Contains(d.Follows, b) {
							t.Errorf("%s breaks %s too", s.Name, b)
						}
					}
					if slices.Contains(broken, d.Breaks) {
						return
					}
					seen = append(seen, broken...)
				}
			}
			t.Errorf("missed; seen: %q", seen)
		})
	}
}
