package explore

import (
	"errors"
	"slices"
	"testing"

	"github.com/custodymq/custody/broker/defects"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/scenarios"
	"github.com/custodymq/custody/systems/zeromq"
)

// unsimulated are the scenarios that the simulation has no way to run, and no
// others: each is skipped by name, so that the test cannot shrink unseen.
var unsimulated = []string{"storage-down", "storage-full", "fsync-error", "old-protocol-payload", "link-slow",
	"recover-from-timestamp", "recover-from-sequence", "storage-repaired", "strangers", "limits", "publish-window"}

// skipped reports whether a scenario ended as one does that cannot be simulated,
// which it does if and only if it is listed.
func skipped(t *testing.T, scenario string, err error) bool {
	t.Helper()
	var unsupported *UnsupportedError
	no := errors.As(err, &unsupported)
	if no != slices.Contains(unsimulated, scenario) {
		t.Fatalf("%s: simulated, or not, against what is written in this file: %v", scenario, err)
	}
	return no
}

// The simulation is believed because it says of the whole catalogue what a real
// broker says.
func TestCatalogueHolds(t *testing.T) {
	for _, s := range scenarios.All() {
		t.Run(s.Name, func(t *testing.T) {
			var sim Simulator
			for seed := range uint64(20) {
				h, err := sim.Run(Simulation{Profile: zeromq.Profiles(1)[0].(zeromq.Profile), Scenario: s, Seed: seed})
				if skipped(t, s.Name, err) {
					t.Skip(err)
				}
				if err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				j, err := guarantees.Judge(h)
				if err != nil {
					t.Fatal(err)
				}
				if j.Outcome != guarantees.Held {
					t.Fatalf("seed %d: %s: %s\n%s", seed, j.Outcome, j.Why, sim.Bytes(h))
				}
			}
		})
	}
}

// The catalogue catches every defect in the simulation as it does on the broker.
func TestCatalogueCatchesDefects(t *testing.T) {
	for _, d := range defects.All() {
		if d.Connected {
			continue
		}
		t.Run(d.Name, func(t *testing.T) {
			var sim Simulator
			var seen []string
			for _, s := range scenarios.All() {
				if !slices.Contains(s.Expect, d.Breaks) {
					continue
				}
				for seed := range uint64(3) {
					j, err := sim.Judge(Simulation{Profile: zeromq.Profiles(1)[0].(zeromq.Profile), Scenario: s, Seed: seed, Defect: d.Name})
					if skipped(t, s.Name, err) {
						break
					}
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
