package scenarios

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/tasks"
)

// Plan is a set of runs: scenarios, each repeated, several in parallel.
type Plan struct {
	Options runner.Options // shared; Scenario and Dir are set per run
	// Virtual is the system in virtual time. It runs the scenarios whose probes
	// are made there only; without it they do not apply.
	Virtual   systems.System
	Scenarios []script.Scenario
	Dir       string
	Repeat    int // 0 means 1
	Parallel  int // 0 means 1
	// Resume keeps runs that are complete in Dir, judging them again, and
	// repeats the others.
	Resume bool
	// Budget bounds the time: no run starts that would exceed it if it took as
	// long as the longest so far. 0 means no limit.
	Budget time.Duration
	// Began and Done are called for each run, concurrently.
	Began func(name string)
	Done  func(Outcome)
}

// Outcome is the result of one run.
type Outcome struct {
	Name      string // of its directory
	Dir       string
	Judgement guarantees.Judgement
	Err       error // a failure to measure
	Resumed   bool  // from an earlier plan
}

// Exit returns this run's exit code.
func (o Outcome) Exit() int {
	if o.Err != nil && o.Judgement.Exit != guarantees.ExitViolated {
		return guarantees.ExitUnmeasured
	}
	return o.Judgement.Exit
}

// Taken returns a run's directory that exists and is not empty, or "". Without
// a Dir nothing is taken.
func (p Plan) Taken() (string, error) {
	if p.Dir == "" {
		return "", nil
	}
	for _, r := range p.runs() {
		dir := filepath.Join(p.Dir, r.name)
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("scenarios: a run's directory: %w", err)
		}
		if len(entries) > 0 {
			return dir, nil
		}
	}
	return "", nil
}

// planned is one run of a plan.
type planned struct {
	name     string // of its directory
	scenario script.Scenario
	seed     uint64
}

func (p Plan) runs() []planned {
	var runs []planned
	for _, s := range p.Scenarios {
		for i := range max(p.Repeat, 1) {
			name := s.Name
			if p.Repeat > 1 {
				name = fmt.Sprintf("%s-%d", s.Name, i+1)
			}
			runs = append(runs, planned{name, s, p.Options.Seed + uint64(i)})
		}
	}
	return runs
}

// Run performs the runs and returns their outcomes in order. After ctx has
// ended no run starts; those not started have no outcome.
func (p Plan) Run(ctx context.Context) (done []Outcome, err error) {
	for _, s := range p.Scenarios {
		if err := Check(s); err != nil {
			return nil, err
		}
	}
	runs := p.runs()
	if p.Options.Servers == nil {
		servers := process.NewPool()
		defer func() { err = errors.Join(err, servers.Close(ctx)) }()
		p.Options.Servers = servers
	}
	outcomes := make([]Outcome, len(runs))
	spending := budget{whole: p.Budget, began: time.Now()}
	if s, ok := p.Options.System.(systems.Exclusive); ok && s.Exclusive() {
		p.Parallel = 1
	}
	slots := make(chan struct{}, max(p.Parallel, 1))
	var group tasks.Group
	for i, r := range runs {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil || spending.spent() {
			break
		}
		group.Go(func() {
			defer func() { <-slots }()
			if p.Began != nil {
				p.Began(r.name)
			}
			o := p.Options
			o.Scenario, o.Seed, o.Dir = r.scenario, r.seed, filepath.Join(p.Dir, r.name)
			if p.Virtual != nil && virtual(r.scenario, o.System.Describe()) {
				o.System, o.Scale = p.Virtual, 1
			}
			outcomes[i] = Outcome{Name: r.name, Dir: o.Dir}
			out := &outcomes[i]
			defer func() {
				if p := recover(); p != nil {
					out.Err = tasks.Panic(p)
				}
			}()
			if p.Resume {
				out.Judgement, out.Resumed, out.Err = resume(o)
			}
			if !out.Resumed && out.Err == nil {
				began := time.Now()
				out.Judgement, out.Err = Run(ctx, o)
				spending.took(time.Since(began))
			}
			if p.Done != nil {
				p.Done(outcomes[i])
			}
		})
	}
	group.Wait()
	done = outcomes[:0]
	for _, o := range outcomes {
		var usage *runner.UsageError
		if errors.As(o.Err, &usage) {
			return nil, o.Err
		}
		if o.Name != "" {
			done = append(done, o)
		}
	}
	return done, context.Cause(ctx)
}

// virtual says whether a scenario needs probes that are made in virtual time only.
func virtual(s script.Scenario, d systems.Description) bool {
	return slices.ContainsFunc(s.Steps, func(step script.Step) bool {
		p, ok := step.(script.Probe)
		return ok && slices.Contains(d.VirtualProbes, p.Kind)
	})
}

// budget is safe for concurrent use.
type budget struct {
	whole   time.Duration // 0 means no limit
	began   time.Time
	longest atomic.Int64 // run, in nanoseconds
}

func (b *budget) took(run time.Duration) {
	for {
		longest := b.longest.Load()
		if int64(run) <= longest || b.longest.CompareAndSwap(longest, int64(run)) {
			return
		}
	}
}

// spent reports whether another run might exceed the budget.
func (b *budget) spent() bool {
	return b.whole > 0 && time.Since(b.began)+time.Duration(b.longest.Load()) > b.whole
}

// resume judges a complete run of the same script in o.Dir, if there is one; an
// incomplete one is discarded, to be repeated.
func resume(o runner.Options) (j guarantees.Judgement, whole bool, err error) {
	earlier, err := evidence.Open(o.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return j, false, nil
	}
	if err != nil {
		return j, false, err
	}
	written, err := earlier.Script()
	if err != nil {
		return j, false, err
	}
	if text := script.Print(o.Scenario); string(written) != text {
		return j, false, fmt.Errorf("scenarios: %s holds a run of another script: use another directory", o.Dir)
	}
	if end := earlier.Manifest().End; end == nil || end.How != evidence.EndCompleted {
		return j, false, earlier.Discard()
	}
	j, err = Judge(o.Dir)
	return j, err == nil, err
}

// Exit returns the exit code over several runs.
func Exit(outcomes []Outcome) int {
	codes := make([]int, len(outcomes))
	for i, o := range outcomes {
		codes[i] = o.Exit()
	}
	return guarantees.CombineExits(codes)
}
