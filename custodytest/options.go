package custodytest

import (
	"errors"

	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/scenarios"
	"github.com/custodymq/custody/script"
)

// Option configures Accept.
type Option func(*options)

type options struct {
	names    []string
	out      string
	seed     uint64
	parallel int
	scale    float64
	servers  *process.Pool
}

// Scenarios runs these, by name, instead of the whole catalogue.
func Scenarios(names ...string) Option { return func(o *options) { o.names = names } }

// Out is the directory for evidence, below which each test has its own. The
// default is the environment's CUSTODY_OUT, or else the test's artifact
// directory, which only go test -artifacts keeps.
func Out(dir string) Option { return func(o *options) { o.out = dir } }

// Seed sets the seed of all randomness. The default is 1.
func Seed(n uint64) Option { return func(o *options) { o.seed = n } }

// Parallel sets the number of concurrent scenarios. The default is two per
// core.
func Parallel(n int) Option { return func(o *options) { o.parallel = n } }

// Scale multiplies the harness's deadlines and bounds, for a slow machine;
// limits in the system's description are the adapter's to scale. The default is
// 1, and more under the race detector.
func Scale(factor float64) Option { return func(o *options) { o.scale = factor } }

// choose checks the options and finds the scenarios.
func (o options) choose() ([]script.Scenario, error) {
	if o.parallel < 1 || o.scale <= 0 {
		return nil, errors.New("Parallel and Scale must be positive")
	}
	if o.names == nil {
		return scenarios.All(), nil
	}
	var chosen []script.Scenario
	for _, name := range o.names {
		s, err := scenarios.Find(name)
		if err != nil {
			return nil, err
		}
		chosen = append(chosen, s)
	}
	return chosen, nil
}
