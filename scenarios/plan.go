package scenarios

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/custodymq/custody/bench"
	"github.com/custodymq/custody/containers"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/script"
)

// Plan is several runs: scenarios, each repeated, a few at a time.
type Plan struct {
	Options   bench.Options // what they share; Scenario and Dir are set for each
	Scenarios []script.Scenario
	Dir       string
	Repeat    int // 0 is 1
	Parallel  int // 0 is 1
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
}

// Exit code of this run.
func (o Outcome) Exit() int {
	if o.Err != nil && o.Judgement.Exit != guarantees.ExitViolated {
		return guarantees.ExitUnmeasured
	}
	return o.Judgement.Exit
}

// Run makes the runs and gives their outcomes in order. After ctx has ended
// none is begun; those that were not have no outcome.
func (p Plan) Run(ctx context.Context) (done []Outcome, err error) {
	type run struct {
		name     string
		scenario script.Scenario
		seed     uint64
	}
	var runs []run
	for _, s := range p.Scenarios {
		if err := bench.Check(s); err != nil {
			return nil, err
		}
		for i := range max(p.Repeat, 1) {
			name := s.Name
			if p.Repeat > 1 {
				name = fmt.Sprintf("%s-%d", s.Name, i+1)
			}
			runs = append(runs, run{name, s, p.Options.Seed + uint64(i)})
		}
	}
	if p.Options.Servers == nil {
		servers := containers.NewPool()
		defer func() { err = errors.Join(err, closePool(ctx, servers)) }()
		p.Options.Servers = servers
	}
	outcomes := make([]Outcome, len(runs))
	slots := make(chan struct{}, max(p.Parallel, 1))
	var group sync.WaitGroup
	for i, r := range runs {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		group.Go(func() {
			defer func() { <-slots }()
			if p.Began != nil {
				p.Began(r.name)
			}
			o := p.Options
			o.Scenario, o.Seed, o.Dir = r.scenario, r.seed, filepath.Join(p.Dir, r.name)
			j, err := Run(ctx, o)
			outcomes[i] = Outcome{Name: r.name, Dir: o.Dir, Judgement: j, Err: err}
			if p.Done != nil {
				p.Done(outcomes[i])
			}
		})
	}
	group.Wait()
	done = outcomes[:0]
	for _, o := range outcomes {
		var usage *bench.UsageError
		if errors.As(o.Err, &usage) {
			return nil, o.Err
		}
		if o.Name != "" {
			done = append(done, o)
		}
	}
	return done, context.Cause(ctx)
}

// stopBound bounds the end of the servers that were kept between runs.
const stopBound = 30 * time.Second

// closePool ends the servers, also after ctx has ended.
func closePool(ctx context.Context, servers *containers.Pool) error {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopBound)
	defer cancel()
	return servers.Close(bounded)
}

// Exit code over several runs.
func Exit(outcomes []Outcome) int {
	codes := make([]int, len(outcomes))
	for i, o := range outcomes {
		codes[i] = o.Exit()
	}
	return guarantees.CombineExits(codes)
}
