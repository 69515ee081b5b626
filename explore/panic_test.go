package explore

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/custodymq/custody/broker"
	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/script"
)

// panicking is a store whose n-th write panics.
type panicking struct {
	store.Store
	writes *int
	at     int
}

func (s panicking) Apply(ctx context.Context, batch []store.Operation) error {
	if *s.writes++; *s.writes == s.at {
		panic("out of memory")
	}
	return s.Store.Apply(ctx, batch)
}

// A panic of the simulated broker is a crash, and a finding: the run continues
// with a restarted broker.
func TestPanicOfTheBrokerIsAFinding(t *testing.T) {
	s, err := script.Parse("", `scenario panic
producer p1 to orders
consumer c1 on orders, idempotent
publish order-1..order-5 by p1, until accepted
await effect of order-5
expect no-accepted-loss, single-effect, survives`)
	if err != nil {
		t.Fatal(err)
	}
	for at := 1; at < 8; at++ {
		var sim Simulator
		writes := 0
		tampered := atLeastOnce
		tampered.Tamper = func(c *broker.Config) { c.Store = panicking{c.Store, &writes, at} }
		h, err := sim.Run(t.Context(), Simulation{System: tampered, Scenario: s, Seed: 1})
		if err != nil {
			t.Fatalf("write %d: %v", at, err)
		}
		j, err := guarantees.Judge(h)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(brokenOf(j), []string{evidence.Survives}) || !strings.Contains(j.Why, "out of memory") {
			t.Errorf("write %d: %s: %s\n%s", at, j.Outcome, j.Why, sim.Bytes(h))
		}
	}
}
