package custodytest

import "github.com/custodymq/custody/process"

// Option configures Accept and Sweep.
type Option func(*options)

type options struct {
	names    []string
	out      string
	seed     uint64
	parallel int
	scale    float64
	servers  *process.Pool
}

// Scenarios runs these instead of the whole catalogue: scenarios by name, and
// scripts by the path of a file or folder, as on the command line.
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
