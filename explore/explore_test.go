package explore

import (
	"fmt"
	"testing"

	"github.com/custodymq/custody/broker/defects"
	"github.com/custodymq/custody/systems/zeromq"
)

var atLeastOnce = zeromq.Profiles(1)[0].(zeromq.Profile)

func TestDefects(t *testing.T) {
	for _, d := range defects.All() {
		for seed := range uint64(3) {
			r, err := Explore(t.Context(), Options{System: atLeastOnce, Spec: "zeromq", Defect: d.Name, Seed: seed * 1000003, Runs: 100000})
			if err != nil {
				t.Fatal(err)
			}
			if r.Found == nil {
				fmt.Printf("%-32s MISSED in %d\n", d.Name, r.Schedules)
				continue
			}
			fmt.Printf("%-32s %6d schedules %6.2fs %2d→%2d steps %4d tries breaks %s (%q)\n", d.Name, r.Schedules, r.Took.Seconds(), r.Found.Drawn, r.Found.Steps, r.Found.Tries, r.Found.Shrunk, r.Found.Broken)
			if seed == 0 {
				fmt.Println(r.Found.Script)
			}
		}
	}
}
