package scenarios

import (
	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/script"
)

// OrderByCoverage sorts scenarios greedily by how many new pairs of guarantee
// and fault class each covers; ties keep their order. If there is time for
// only some, run the first ones.
func OrderByCoverage(list []script.Scenario) []script.Scenario {
	left := append([]script.Scenario(nil), list...)
	said := map[statement]bool{}
	ordered := make([]script.Scenario, 0, len(left))
	for len(left) > 0 {
		best, most := 0, -1
		for i, s := range left {
			news := 0
			for _, st := range statements(s) {
				if !said[st] {
					news++
				}
			}
			if news > most {
				best, most = i, news
			}
		}
		for _, st := range statements(left[best]) {
			said[st] = true
		}
		ordered = append(ordered, left[best])
		left = append(left[:best:best], left[best+1:]...)
	}
	return ordered
}

// statement is a pair of guarantee and fault class that a run covers.
type statement struct{ guarantee, class string }

func statements(s script.Scenario) []statement {
	classes := []string{""}
	labels, _ := runner.Faults(s) // an invalid script has none
	for _, f := range labels {
		classes = append(classes, string(f.Class))
	}
	var all []statement
	for _, g := range s.Expect {
		for _, c := range classes {
			all = append(all, statement{g, c})
		}
	}
	return all
}
