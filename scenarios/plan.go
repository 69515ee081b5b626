package scenarios

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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

// Plan is several runs: scenarios, each repeated, a few at a time.
type Plan struct {
	Options   runner.Options // what they share; Scenario and Dir are set for each
	Scenarios []script.Scenario
	Dir       string
	Repeat    int // 0 is 1
	Parallel  int // 0 is 1
	// Resume takes the runs that Dir already holds whole as they are, judged
	// again, and makes the others anew.
	Resume bool
	// Budget is the time that there is: no run is begun that would not end
	// within it if it took as long as the longest so far. 0 is no limit.
	Budget time.Duration
	// Began and Done hear of each run, from several goroutines at once.
	Began func(name string)
	Done  func(Outcome)
}

// Outcome of one run of a plan.
type Outcome struct {
	Name      string // of its folder
	Dir       string
	Judgement guarantees.Judgement
	Err       error // could not measure
	Resumed   bool  // made by an earlier plan
}

// Exit code of this run.
func (o Outcome) Exit() int {
	if o.Err != nil && o.Judgement.Exit != guarantees.ExitViolated {
		return guarantees.ExitUnmeasured
	}
	return o.Judgement.Exit
}

// Taken is a folder that a run of the plan would have, and that holds something
// already; empty if there is none. Without a Dir nothing is taken.
func (p Plan) Taken() (string, error) {
	if p.Dir == "" {
		return "", nil
	}
	for _, r := range p.runs() {
		dir := filepath.Join(p.Dir, r.name)
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("scenarios: the folder of a run: %w", err)
		}
		if len(entries) > 0 {
			return dir, nil
		}
	}
	return "", nil
}

// planned is one run of a plan.
type planned struct {
	name     string // of its folder
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

// Run makes the runs and gives their outcomes in order. After ctx has ended
// none is begun; those that were not have no outcome.
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

// budget of time. Its methods are safe for concurrent use.
type budget struct {
	whole   time.Duration // 0 is no limit
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

// spent reports whether one more run might not end within it.
func (b *budget) spent() bool {
	return b.whole > 0 && time.Since(b.began)+time.Duration(b.longest.Load()) > b.whole
}

// resume judges a whole run of the same script, if o.Dir holds one; one that
// was broken off is discarded, to be made anew.
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
		return j, false, fmt.Errorf("scenarios: %s holds a run of another script: give the plan another folder", o.Dir)
	}
	if end := earlier.Manifest().End; end == nil || end.How != evidence.EndCompleted {
		return j, false, earlier.Discard()
	}
	j, err = Judge(o.Dir)
	return j, err == nil, err
}

// Exit code over several runs.
func Exit(outcomes []Outcome) int {
	codes := make([]int, len(outcomes))
	for i, o := range outcomes {
		codes[i] = o.Exit()
	}
	return guarantees.CombineExits(codes)
}
