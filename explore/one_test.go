package explore

import (
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/custodymq/custody/guarantees"
)

func TestOne(t *testing.T) {
	seed, _ := strconv.ParseUint(os.Getenv("SEED"), 10, 64)
	var sim Simulator
	h, err := sim.Run(Simulation{Profile: atLeastOnce, Scenario: Generate(atLeastOnce.Describe(), seed), Seed: seed, Defect: os.Getenv("DEFECT")})
	fmt.Printf("%s%v\n", sim.Bytes(h), err)
	for _, s := range h.Snapshots {
		fmt.Printf("%s %s %+v\n", s.Checkpoint, s.Source, s.Rows)
	}
	j, _ := guarantees.Judge(h)
	fmt.Println(j.Why)
}
