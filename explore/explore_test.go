package explore

import (
	"fmt"
	"testing"

	"github.com/custodymq/custody/bench"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems/zeromq"
)

var atLeastOnce = zeromq.Profiles(1)[0].(zeromq.Profile)

func TestProbe(t *testing.T) {
	desc := atLeastOnce.Describe()
	var sim Simulator
	outcomes := map[string]int{}
	bad := 0
	for seed := range uint64(20000) {
		s := Generate(desc, seed)
		if err := bench.Check(s); err != nil {
			t.Fatalf("%v\n%s", err, script.Print(s))
		}
		j, err := sim.Judge(Simulation{Profile: atLeastOnce, Scenario: s, Seed: seed})
		if err != nil {
			outcomes["unmeasured"]++
			if outcomes["unmeasured"] < 0 {
				t.Logf("seed %d: %v", seed, err)
			}
			continue
		}
		outcomes[j.Outcome.String()]++
		if j.Outcome == guarantees.Violated {
			bad++
			if bad < 12 {
				fmt.Printf("seed %d: %q %s\n%s\n", seed, brokenOf(j), j.Why, script.Print(s))
			}
		}
	}
	t.Log(outcomes)
}
