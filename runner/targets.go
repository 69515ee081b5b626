package runner

import (
	"context"
	"errors"
	"fmt"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/faults"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/tasks"
)

// targets resolves what faults strike.
type targets struct{ run *run }

func (t targets) Link(actor string) (links.Interruptible, error) {
	if l, ok := t.run.links[actor]; ok {
		return l, nil
	}
	return nil, fmt.Errorf("runner: %s has no link", actor)
}

func (t targets) Process(target string) (faults.Process, error) {
	switch target {
	case faults.Broker:
		if p, ok := systems.As[systems.Process](t.run.instance); ok {
			return server{faults.Broker, p, t.run}, nil
		}
		return nil, fmt.Errorf("runner: %s is no process that can be struck", t.run.desc.System)
	case faults.Store:
		if p := t.run.storeProcess(); p != nil {
			return server{faults.Store, p, t.run}, nil
		}
		return nil, fmt.Errorf("runner: the store of %s is no process that can be struck", t.run.desc.System)
	}
	c, ok := t.run.named[target]
	if !ok || !c.child() {
		return nil, fmt.Errorf("runner: %s has no process of its own; declare it with \"child\"", target)
	}
	return c, nil
}

func (t targets) Store(target string) (systems.StoreFaulter, error) {
	if target == faults.Business {
		return t.run.businessFaults, nil
	}
	if s, ok := systems.As[systems.StoreFaulter](t.run.instance); ok {
		return present{s, nil, t.run}, t.run.present()
	}
	return nil, fmt.Errorf("runner: the store of %s cannot be struck", t.run.desc.System)
}

func (t targets) Clock(string) (systems.Clocked, error) {
	if c, ok := systems.As[systems.Clocked](t.run.instance); ok {
		return present{nil, c, t.run}, t.run.present()
	}
	return nil, fmt.Errorf("runner: the clock of %s cannot be set", t.run.desc.System)
}

func (t targets) Runtime() tasks.Runtime { return t.run.rt }

func (t targets) Sink() evidence.Sink { return t.run.rec }

// server is a process of the system's as a target: its own, or its store's.
type server struct {
	actor   string
	process systems.Process
	run     *run
}

// storeProcess is nil if the store is no server.
func (r *run) storeProcess() systems.Process {
	if s, ok := systems.As[systems.StoreLinked](r.instance); ok {
		return s.StoreProcess()
	}
	return nil
}

// order applies do to the current incarnation.
func (p server) order(ctx context.Context, do func(systems.Process, context.Context) error) (faults.Outcome, error) {
	s := faults.Outcome{Incarnation: p.run.watch.starts(p.actor)}
	if !p.process.Running() {
		return notRunning(s, p.actor), nil
	}
	err := do(p.process, ctx)
	if errors.Is(err, process.ErrNotRunning) {
		return notRunning(s, p.actor), nil
	}
	if errors.Is(err, process.ErrNoOrderlyEnd) && !p.process.Running() {
		err = nil // the evidence shows it, and judging decides whose fault it is
	}
	return s, err
}

func notRunning(s faults.Outcome, who string) faults.Outcome {
	s.Missed = who + " was not running"
	return s
}

func (p server) Kill(ctx context.Context) (faults.Outcome, error) {
	return p.order(ctx, systems.Process.Kill)
}

func (p server) Shutdown(ctx context.Context) (faults.Outcome, error) {
	return p.order(ctx, systems.Process.Shutdown)
}

// FailOver gives the incarnation that was lost.
func (p server) FailOver(ctx context.Context) (faults.Outcome, error) {
	return p.order(ctx, func(s systems.Process, ctx context.Context) error {
		r, ok := s.(systems.Replicated)
		if !ok {
			return fmt.Errorf("runner: %s has no standby", p.actor)
		}
		return r.FailOver(ctx)
	})
}

func (p server) Pause(ctx context.Context) (faults.Outcome, error) {
	s, err := p.order(ctx, systems.Process.Pause)
	if s.Missed == "" {
		p.run.rec.Record(evidence.Event{Kind: evidence.ProcessPaused, Actor: p.actor, OK: err == nil})
	}
	return s, err
}

func (p server) Continue(ctx context.Context, paused faults.Outcome) (faults.Outcome, error) {
	if now := p.run.watch.starts(p.actor); now != paused.Incarnation || !p.process.Running() {
		return exitedMeanwhile(paused), nil
	}
	p.run.rec.Record(evidence.Event{Kind: evidence.ProcessContinued, Actor: p.actor})
	s, err := p.order(ctx, systems.Process.Continue)
	if s.Missed != "" {
		s = exitedMeanwhile(paused)
	}
	return s, err
}

func exitedMeanwhile(paused faults.Outcome) faults.Outcome {
	paused.Missed = "the process that was paused has ended"
	return paused
}

// Revive restarts the server unless it runs, even if it exited by itself: the
// exit is in the evidence, and what it kept must be seen.
func (p server) Revive(ctx context.Context) (faults.Outcome, error) {
	for !p.run.reviving.CompareAndSwap(false, true) {
		if err := p.run.rt.Wait(ctx, func() bool { return !p.run.reviving.Load() }); err != nil {
			return faults.Outcome{}, err
		}
	}
	defer p.run.rt.Wake()
	defer p.run.reviving.Store(false)
	s := faults.Outcome{Incarnation: p.run.watch.starts(p.actor)}
	if p.process.Running() {
		s.Missed = "it runs already"
		return s, nil
	}
	err := p.process.Restart(ctx)
	s.Incarnation = p.run.watch.starts(p.actor)
	return s, err
}

// present returns an *faults.AbsentError if the broker does not run.
func (r *run) present() error {
	if p, ok := systems.As[systems.Process](r.instance); ok && !p.Running() {
		return &faults.AbsentError{Why: notRunning(faults.Outcome{}, faults.Broker).Missed}
	}
	return nil
}

// present wraps store and clock faults to detect a broker that exited
// meanwhile.
type present struct {
	systems.StoreFaulter
	systems.Clocked
	run *run
}

func (p present) ArmStore(ctx context.Context, f systems.StoreFault, fired func(systems.StoreFired)) (func(context.Context) error, error) {
	heal, err := p.StoreFaulter.ArmStore(ctx, f, fired)
	if errors.Is(err, process.ErrExited) {
		return nil, errors.Join(p.run.present(), err)
	}
	return heal, err
}

func (r *run) arm(ctx context.Context, s script.Fault) error {
	f, _ := faults.Find(s.Verb) // resolved before the start
	spec := specOf(s)
	if f.Strikes != faults.StrikesClock {
		spec.By = scaled(spec.By, r.o.Scale)
	}
	in, err := f.Arm(ctx, spec, targets{r})
	if err != nil {
		return err
	}
	r.injections = append(r.injections, labelled{s.Label, in})
	return nil
}

func (r *run) healOne(ctx context.Context, label string) error {
	ctx, cancel := r.rt.Timeout(ctx, scaled(startBound, r.o.Scale))
	defer cancel()
	for i, in := range r.injections {
		if in.label == label {
			r.injections = append(r.injections[:i:i], r.injections[i+1:]...)
			return in.Heal(ctx)
		}
	}
	return nil // already healed
}
