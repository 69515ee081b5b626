// Package custodytest runs Custody's checklist against a message system from an
// ordinary Go test. Write an adapter against package systems, or the few
// methods of Broker for a system in the test's own process (see InProcess), and
// pass it to Accept:
//
//	func TestBroker(t *testing.T) { custodytest.Accept(t, mySystem{}) }
//
// Each scenario is a subtest, so that go test's -run, -v and -json apply. A
// failed one names its evidence directory, which custody judge and custody
// report read.
package custodytest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/scenarios"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/tasks"
)

// Accept runs the catalogue against s, several scenarios at once, each as a
// subtest of SYSTEM:PROFILE. It returns when all have ended:
//
//   - held passes;
//   - violated fails, with what broke and at which hand-over;
//   - inconclusive fails, since nothing was proven;
//   - a failure to measure is fatal to its subtest;
//   - not applicable is skipped, with the reason;
//   - not claimed passes and is logged; but if no scenario tests any claim,
//     the test fails.
//
// A scenario applies if the running instance has the optional interfaces of
// package systems that it needs and Description.Lacks names none of them. An
// instance that is not Networked, for example, has no links to cut.
//
// It takes a *testing.T rather than a testing.TB, which has no subtests.
func Accept(t *testing.T, s systems.System, opts ...Option) {
	t.Helper()
	o := prepare(t, s, opts)
	chosen, err := scenarios.Choose(o.names...)
	if err != nil {
		t.Fatalf("custodytest: %v", err)
	}
	o.accept(t, s, chosen)
}

// Sweep strikes every hand-over of a message with every fault that applies
// there, each as a subtest as Accept's are. The hand-overs are those of a run
// without faults, of which the links must see frames. Scenarios does not apply.
func Sweep(t *testing.T, s systems.System, opts ...Option) {
	t.Helper()
	o := prepare(t, s, opts)
	if o.names != nil {
		t.Fatal("custodytest: a sweep has its own scenarios: Scenarios is an option of Accept")
	}
	dir, err := o.folder(t)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := o.bounded(t.Context())
	defer cancel()
	handOvers, err := scenarios.Plan{Dir: dir, Options: o.runner(s)}.HandOvers(ctx)
	if err != nil {
		t.Fatalf("custodytest: could not measure: %v", err)
	}
	var strikes []script.Scenario
	for _, h := range handOvers {
		for _, f := range scenarios.SweepFaults() {
			if strike, ok := h.Strike(f, nil); ok {
				strikes = append(strikes, strike)
			}
		}
	}
	o.accept(t, s, strikes)
}

// prepare checks the options, and that this binary can do what s asks for.
func prepare(t *testing.T, s systems.System, opts []Option) options {
	t.Helper()
	o := options{seed: 1, parallel: 2 * runtime.NumCPU(), scale: runner.DefaultScale, out: os.Getenv("CUSTODY_OUT")}
	for _, set := range opts {
		set(&o)
	}
	if o.parallel < 1 || o.scale <= 0 {
		t.Fatal("custodytest: Parallel and Scale must be positive")
	}
	if _, ok := s.(systems.Connector); ok && !hasRoles.Load() {
		// Such a process would run these same tests and start more of them.
		t.Fatal("custodytest: this system can be consumed from a process of its own, which this test binary cannot become; let TestMain call custodytest.Main(m, system)")
	}
	o.servers = process.NewPool()
	t.Cleanup(func() {
		if err := o.servers.Close(t.Context()); err != nil {
			t.Errorf("custodytest: end the servers that were kept between scenarios: %v", err)
		}
	})
	return o
}

func (o options) accept(t *testing.T, s systems.System, chosen []script.Scenario) {
	t.Helper()
	slots := make(chan struct{}, o.parallel)
	ran, judged := 0, 0
	t.Run(specOf(s), func(t *testing.T) {
		var mu sync.Mutex
		for _, scenario := range chosen {
			t.Run(scenario.Name, func(t *testing.T) {
				dir, err := o.folder(t)
				if err != nil {
					t.Fatal(err)
				}
				// A run mostly waits: it starts here rather than in its turn
				// among -parallel tests, where only its end is awaited.
				ctx, ended := t.Context(), make(chan scenarios.Outcome, 1)
				tasks.Go(func() {
					slots <- struct{}{}
					defer func() { <-slots }()
					ended <- o.run(ctx, s, scenario, dir)
				})
				t.Parallel()
				outcome := <-ended
				mu.Lock()
				ran++
				if outcome.Exit() != guarantees.ExitNone {
					judged++
				}
				mu.Unlock()
				report(t, outcome, o.seed)
			})
		}
	})
	if ran == len(chosen) && judged == 0 { // not with a part selected by -run
		t.Error("custodytest: no claim was put to the test: every scenario is not applicable or not claimed")
	}
}

// limit is the deadline of one run before scaling, far above what a healthy
// system needs.
const limit = time.Minute

func (o options) run(ctx context.Context, s systems.System, scenario script.Scenario, dir string) scenarios.Outcome {
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	one := o.runner(s)
	one.Scenario, one.Dir = scenario, dir
	j, err := scenarios.Run(ctx, one)
	return scenarios.Outcome{Name: scenario.Name, Dir: dir, Judgement: j, Err: err}
}

// runner returns the options that all runs of s share.
func (o options) runner(s systems.System) runner.Options {
	return runner.Options{System: s, Spec: specOf(s), Seed: o.seed, Scale: o.scale, Servers: o.servers}
}

func (o options) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	within := time.Duration(float64(limit) * o.scale)
	return context.WithTimeoutCause(ctx, within, fmt.Errorf("custodytest: it did not end within %v; on a slow machine use custodytest.Scale", within))
}

// maxRuns bounds the runs of one scenario kept side by side.
const maxRuns = 10_000

// folder creates a run's evidence directory. Earlier evidence is never
// overwritten.
func (o options) folder(t *testing.T) (string, error) {
	if o.out == "" {
		return filepath.Join(t.ArtifactDir(), path.Base(t.Name())), nil
	}
	out, err := filepath.Abs(o.out) // go test runs in the package's directory, the reader elsewhere
	if err != nil {
		return "", fmt.Errorf("custodytest: a folder for the evidence: %w", err)
	}
	dir := filepath.Join(out, filepath.FromSlash(t.Name()))
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return "", fmt.Errorf("custodytest: a folder for the evidence: %w", err)
	}
	for n := 1; n <= maxRuns; n++ {
		fresh := dir
		if n > 1 {
			fresh = fmt.Sprintf("%s-%d", dir, n)
		}
		err := os.Mkdir(fresh, 0o700)
		if err == nil {
			return fresh, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return "", fmt.Errorf("custodytest: a folder for the evidence: %w", err)
		}
	}
	return "", fmt.Errorf("custodytest: %s to %[1]s-%d exist: remove old evidence", dir, maxRuns)
}

// specOf names a system and its profile.
func specOf(s systems.System) string {
	d := s.Describe()
	return d.System + ":" + d.Profile.Name
}

// hasRoles is set when this binary can run a consumer process.
var hasRoles atomic.Bool

// Main is the TestMain of a package whose systems are Connectors. Scenarios
// that kill a consumer execute the test binary again, and Main turns that
// process into the consumer. Otherwise it runs the tests; it never returns.
// Systems without Connector, such as one in memory, need no Main: those
// scenarios do not apply to them.
func Main(m *testing.M, known ...systems.System) {
	process.RunRole(map[string]func() process.Role{
		runner.ActorRole: func() process.Role {
			return runner.NewActorRole(func(spec string, _ float64) (systems.System, error) {
				for _, s := range known {
					if specOf(s) == spec {
						return s, nil
					}
				}
				return nil, fmt.Errorf("custodytest: %s was not given to Main", spec)
			})
		},
	})
	hasRoles.Store(true)
	os.Exit(m.Run())
}
