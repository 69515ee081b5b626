package explore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/custodymq/custody/broker/defects"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/scenarios"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/tasks"
)

// Options configure an exploration.
type Options struct {
	System   systems.System // a systems.Simulated is simulated; any other is run
	Spec     string         // as given to --system
	Defect   string         // a seeded defect
	Seed     uint64         // of the first schedule; later ones count up
	Runs     int            // schedules; fewer if one is violated
	For      time.Duration  // no schedule starts after it; 0 for no limit
	Parallel int            // schedules at once; 0 for the number of cores
	Scale    float64        // for real systems
	Dir      string         // for runs of real systems; those without a violation are removed
	// A shrinking step on a real system is kept if Again of Of runs still fail.
	// 0 means 2 of 3.
	Again, Of int
	// Progress is called concurrently with the number of finished schedules.
	Progress func(schedules int)
}

// Result is the result of an exploration. For a simulated system everything
// but Took is determined by the seed and the number of schedules.
type Result struct {
	System       string        `json:"system"`
	Defect       string        `json:"defect,omitempty"`
	Simulated    bool          `json:"simulated"`
	Seed         uint64        `json:"seed"`
	Schedules    int           `json:"schedules"`
	Unmeasured   int           `json:"unmeasured"`   // of these: a step could not be performed at that moment
	Inapplicable int           `json:"inapplicable"` // of these: the system turned out to lack something
	Took         time.Duration `json:"took"`
	Hash         string        `json:"hash,omitempty"` // of all histories, in order
	Found        *Violation    `json:"found,omitempty"`
	Error        string        `json:"error,omitempty"` // of the latest unmeasured run
}

// Violation is the first schedule that violates a claim, shrunk.
type Violation struct {
	Seed     uint64          `json:"seed"`
	Broken   []string        `json:"broken"` // guarantees, in the schedule as drawn
	Shrunk   string          `json:"shrunk"` // the guarantee the shrunk script violates
	Why      string          `json:"why"`
	Steps    int             `json:"steps"`
	Drawn    int             `json:"drawn"` // steps of the schedule as drawn
	Tries    int             `json:"tries"` // of shrinking
	Scenario script.Scenario `json:"-"`
	Script   string          `json:"script"`
}

// run runs and judges a scenario. digest is the digest of the history if that
// is deterministic.
type run func(ctx context.Context, s script.Scenario, seed uint64) (j guarantees.Judgement, digest []byte, err error)

// Explore draws schedules until one violates a covering claim, and shrinks it.
// The result does not depend on the number of workers. An error is invalid
// options, or ctx's.
func Explore(ctx context.Context, o Options) (Result, error) {
	if o.Runs < 1 {
		return Result{}, errors.New("explore: there must be at least one run")
	}
	e := &explorer{o: o, began: time.Now(), desc: o.System.Describe()}
	e.found.Store(-1)
	_, simulated := o.System.(systems.Simulated)
	if o.Defect != "" {
		d, err := defects.Find(o.Defect)
		if err != nil {
			return Result{}, err
		}
		e.prefer = d.Breaks
	}
	e.newRun = func() run { return simulator(o.System, o.Defect) }
	if !simulated {
		e.newRun = func() run { return e.runSystem }
	}
	e.search(ctx)
	r := e.result(simulated)
	if err := context.Cause(ctx); err != nil {
		return r, err
	}
	if r.Found == nil {
		return r, nil
	}
	e.shrink(ctx, r.Found, simulated)
	r.Took = time.Since(e.began)
	return r, context.Cause(ctx)
}

// simulator returns the run function of one worker.
func simulator(system systems.System, defect string) run {
	var sim Simulator
	return func(ctx context.Context, s script.Scenario, seed uint64) (guarantees.Judgement, []byte, error) {
		h, err := sim.Run(ctx, Simulation{System: system, Scenario: s, Seed: seed, Defect: defect})
		if h == nil {
			return guarantees.Judgement{}, nil, err
		}
		digest := sha256.Sum256(sim.Bytes(h))
		if err != nil {
			return guarantees.Judgement{}, digest[:], err
		}
		j, err := guarantees.Judge(h)
		return j, digest[:], err
	}
}

type explorer struct {
	o      Options
	began  time.Time
	desc   systems.Description
	prefer string // the guarantee that the defect violates
	newRun func() run

	next  atomic.Int64 // schedule to draw
	ended atomic.Int64
	made  atomic.Int64 // runs of a real system, to name their directories
	found atomic.Int64 // first violating schedule; -1 for none

	mu        sync.Mutex
	outcomes  []outcome
	judgement guarantees.Judgement // of found
}

type outcome struct {
	schedule     int64
	digest       []byte
	inapplicable bool
	err          error
}

// search runs schedules until one violates a claim. Workers draw in order and
// finish every earlier one.
func (e *explorer) search(ctx context.Context) {
	workers := e.o.Parallel
	if workers == 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	var group tasks.Group
	for range workers {
		group.Go(func() {
			run := e.newRun()
			for ctx.Err() == nil && (e.o.For == 0 || time.Since(e.began) < e.o.For) {
				n := e.next.Add(1) - 1
				if first := e.found.Load(); n >= int64(e.o.Runs) || first >= 0 && n > first {
					return
				}
				e.schedule(ctx, run, n)
			}
		})
	}
	group.Wait()
}

func (e *explorer) schedule(ctx context.Context, run run, n int64) {
	seed := e.o.Seed + uint64(n)
	j, digest, err := recovering(run)(ctx, Generate(e.desc, seed), seed)
	if ctx.Err() != nil {
		return
	}
	e.mu.Lock()
	e.outcomes = append(e.outcomes, outcome{n, digest, j.Outcome == guarantees.NotApplicable, err})
	if first := e.found.Load(); len(j.Broken) > 0 && (first < 0 || n < first) {
		e.judgement = j
		e.found.Store(n)
	}
	e.mu.Unlock()
	if ended := e.ended.Add(1); e.o.Progress != nil {
		e.o.Progress(int(ended))
	}
}

// recovering turns a panic of the harness into an unmeasured run.
func recovering(do run) run {
	return func(ctx context.Context, s script.Scenario, seed uint64) (j guarantees.Judgement, digest []byte, err error) {
		defer func() {
			if p := recover(); p != nil {
				j, err = guarantees.Judgement{}, tasks.Panic(p)
			}
		}()
		return do(ctx, s, seed)
	}
}

// result ignores schedules after the first violation.
func (e *explorer) result(simulated bool) Result {
	r := Result{System: e.desc.System + ":" + e.desc.Profile.Name, Defect: e.o.Defect, Simulated: simulated, Seed: e.o.Seed, Took: time.Since(e.began)}
	slices.SortFunc(e.outcomes, func(a, b outcome) int { return cmp.Compare(a.schedule, b.schedule) })
	first := e.found.Load()
	all := sha256.New()
	for _, o := range e.outcomes {
		if first >= 0 && o.schedule > first {
			break
		}
		r.Schedules++
		if o.err != nil {
			r.Unmeasured++
			r.Error, _, _ = strings.Cut(o.err.Error(), "\n")
		}
		if o.inapplicable {
			r.Inapplicable++
		}
		all.Write(o.digest)
	}
	if simulated {
		r.Hash = hex.EncodeToString(all.Sum(nil)[:8])
	}
	if first >= 0 {
		s := Generate(e.desc, e.o.Seed+uint64(first))
		r.Found = &Violation{Seed: e.o.Seed + uint64(first), Broken: brokenOf(e.judgement), Why: e.judgement.Why, Drawn: len(s.Steps), Scenario: s}
	}
	return r
}

// Bounds of shrinking: scripts tried, and runs of each.
const (
	simulatedTries, simulatedRuns = 4000, 5
	systemTries                   = 60
)

// shrink shrinks the violation while it violates the same guarantee. In a
// simulation a step is kept if it fails for as many seeds as before; on a real
// system, if it fails often enough.
func (e *explorer) shrink(ctx context.Context, v *Violation, simulated bool) {
	v.Shrunk = v.Broken[0]
	if slices.Contains(v.Broken, e.prefer) {
		v.Shrunk = e.prefer
	}
	run := recovering(e.newRun())
	need, of, tries := 1, simulatedRuns, simulatedTries
	if !simulated {
		need, of, tries = cmp.Or(e.o.Again, 2), cmp.Or(e.o.Of, 3), systemTries
	}
	fails := func(s script.Scenario) bool {
		v.Tries++
		broke, why := 0, ""
		for i := range of {
			if ctx.Err() != nil || broke+of-i < need {
				return false
			}
			j, _, err := run(ctx, s, v.Seed+uint64(i))
			if err == nil && slices.Contains(brokenOf(j), v.Shrunk) {
				broke, why = broke+1, j.Why
			}
		}
		if broke < need {
			return false
		}
		if simulated {
			need = broke
		}
		v.Why = why
		return true
	}
	if simulated {
		fails(v.Scenario) // shrinking must not make it rarer
	}
	v.Scenario = Shrink(v.Scenario, tries, fails)
	v.Scenario.Name = fmt.Sprintf("%s-%d", v.Shrunk, v.Seed)
	v.Scenario.Why = fmt.Sprintf("Found by exploring, with the seed %d: breaks %s.", v.Seed, v.Shrunk)
	if e.o.Defect != "" {
		v.Scenario.Name = e.o.Defect + "-" + v.Scenario.Name
		v.Scenario.Why = fmt.Sprintf("Found by exploring, with the seed %d and the defect %s: breaks %s.", v.Seed, e.o.Defect, v.Shrunk)
	}
	v.Scenario.Expect = []string{v.Shrunk}
	v.Steps, v.Script = len(v.Scenario.Steps), script.Print(v.Scenario)
}

// Keep writes the script to a file in dir and returns its path.
func (v *Violation) Keep(dir string) (string, error) {
	path := filepath.Join(dir, v.Scenario.Name+".scenario")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("explore: create the script's directory: %w", err)
	}
	if err := os.WriteFile(path, []byte(v.Script), 0o644); err != nil {
		return "", fmt.Errorf("explore: write the script: %w", err)
	}
	return path, nil
}

// runSystem runs a real system. The evidence is kept if a claim is violated.
func (e *explorer) runSystem(ctx context.Context, s script.Scenario, seed uint64) (guarantees.Judgement, []byte, error) {
	dir := filepath.Join(e.o.Dir, fmt.Sprintf("%s-run-%d", s.Name, e.made.Add(1)))
	j, err := scenarios.Run(ctx, runner.Options{System: e.o.System, Spec: e.o.Spec, Scenario: s, Dir: dir, Seed: seed, Scale: e.o.Scale, Defect: e.o.Defect})
	if len(j.Broken) == 0 {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return j, nil, err
}
