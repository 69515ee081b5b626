package scenarios_test

import (
	"slices"
	"testing"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/scenarios"
	"github.com/custodymq/custody/script"
)

func TestOrderByCoverageComesFirst(t *testing.T) {
	about := func(name string, guarantees ...string) script.Scenario {
		return script.Scenario{Name: name, Expect: guarantees}
	}
	ordered := scenarios.OrderByCoverage([]script.Scenario{
		about("little", evidence.Order), about("the same", evidence.Survives, evidence.NoPhantom),
		about("much", evidence.Survives, evidence.NoPhantom, evidence.NoAcceptedLoss),
	})
	var names []string
	for _, s := range ordered {
		names = append(names, s.Name)
	}
	if want := []string{"much", "little", "the same"}; !slices.Equal(names, want) {
		t.Errorf("the order is %v, want %v", names, want)
	}
	if all := scenarios.OrderByCoverage(scenarios.All()); len(all) != len(scenarios.All()) {
		t.Errorf("%d of %d scenarios are left", len(all), len(scenarios.All()))
	}
}
