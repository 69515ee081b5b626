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

// targets is what faults strike.
type targets struct{ b *run }

func (t targets) Link(actor string) (links.Interruptible, error) {
	if l, ok := t.b.links[actor]; ok {
		return l, nil
	}
	return nil, fmt.Errorf("runner: %s has no link", actor)
}

func (t targets) Process(target string) (faults.Process, error) {
	if target == faults.Broker {
		if p, ok := t.b.instance.(systems.Process); ok {
			return broker{p, t.b}, nil
		}
		return nil, fmt.Errorf("runner: %s is no process that can be struck", t.b.desc.System)
	}
	c, ok := t.b.consumers[target]
	if !ok || !c.spec.Child {
		return nil, fmt.Errorf("runner: %s has no process of its own; declare it with \"child\"", target)
	}
	return c, nil
}

func (t targets) Store() (systems.StoreFaulter, error) {
	if s, ok := t.b.instance.(systems.StoreFaulter); ok {
		return present{s, nil, t.b}, t.b.present()
	}
	return nil, fmt.Errorf("runner: the store of %s cannot be struck", t.b.desc.System)
}

func (t targets) Clock(string) (systems.Clocked, error) {
	if c, ok := t.b.instance.(systems.Clocked); ok {
		return present{nil, c, t.b}, t.b.present()
	}
	return nil, fmt.Errorf("runner: the clock of %s cannot be set", t.b.desc.System)
}

func (t targets) Runtime() tasks.Runtime { return t.b.rt }

func (t targets) Sink() evidence.Sink { return t.b.rec }

// broker is the system's own process as faults and steps strike it.
type broker struct {
	process systems.Process
	b       *run
}

// order strikes the incarnation that there is now.
func (p broker) order(ctx context.Context, do func(systems.Process, context.Context) error) (faults.Stroke, error) {
	s := faults.Stroke{Incarnation: p.b.watch.starts(faults.Broker)}
	if !p.process.Running() {
		return missed(s, faults.Broker), nil
	}
	err := do(p.process, ctx)
	if errors.Is(err, process.ErrNotRunning) {
		return missed(s, faults.Broker), nil
	}
	return s, err
}

func missed(s faults.Stroke, who string) faults.Stroke {
	s.Missed = who + " was not running"
	return s
}

func (p broker) Kill(ctx context.Context) (faults.Stroke, error) {
	return p.order(ctx, systems.Process.Kill)
}

func (p broker) Shutdown(ctx context.Context) (faults.Stroke, error) {
	return p.order(ctx, systems.Process.Shutdown)
}

func (p broker) Pause(ctx context.Context) (faults.Stroke, error) {
	s, err := p.order(ctx, systems.Process.Pause)
	if s.Missed == "" {
		p.b.rec.Record(evidence.Event{Kind: evidence.ProcessPaused, Actor: faults.Broker, OK: err == nil})
	}
	return s, err
}

func (p broker) Continue(ctx context.Context, paused faults.Stroke) (faults.Stroke, error) {
	if now := p.b.watch.starts(faults.Broker); now != paused.Incarnation || !p.process.Running() {
		return ended(paused), nil
	}
	p.b.rec.Record(evidence.Event{Kind: evidence.ProcessContinued, Actor: faults.Broker})
	s, err := p.order(ctx, systems.Process.Continue)
	if s.Missed != "" {
		s = ended(paused)
	}
	return s, err
}

func ended(paused faults.Stroke) faults.Stroke {
	paused.Missed = "the process that was paused has ended"
	return paused
}

// Revive restarts the broker unless it runs. A broker that ended by itself is
// restarted too: that it ended is in the evidence, and what it kept is to be
// seen.
func (p broker) Revive(ctx context.Context) (faults.Stroke, error) {
	for !p.b.reviving.CompareAndSwap(false, true) {
		if err := p.b.rt.Wait(ctx, func() bool { return !p.b.reviving.Load() }); err != nil {
			return faults.Stroke{}, err
		}
	}
	defer p.b.rt.Wake()
	defer p.b.reviving.Store(false)
	s := faults.Stroke{Incarnation: p.b.watch.starts(faults.Broker)}
	if p.process.Running() {
		s.Missed = "it runs already"
		return s, nil
	}
	err := p.process.Restart(ctx)
	s.Incarnation = p.b.watch.starts(faults.Broker)
	return s, err
}

// present is an *faults.AbsentError when the broker does not run.
func (b *run) present() error {
	if p, ok := b.instance.(systems.Process); ok && !p.Running() {
		return &faults.AbsentError{Why: missed(faults.Stroke{}, faults.Broker).Missed}
	}
	return nil
}

// present strikes the store or the clock of a broker that ran a moment ago.
type present struct {
	systems.StoreFaulter
	systems.Clocked
	b *run
}

func (p present) ArmStore(ctx context.Context, f systems.StoreFault, fired func(systems.StoreFired)) (func(context.Context) error, error) {
	heal, err := p.StoreFaulter.ArmStore(ctx, f, fired)
	if errors.Is(err, process.ErrExited) {
		return nil, errors.Join(p.b.present(), err)
	}
	return heal, err
}

func (b *run) arm(ctx context.Context, s script.Fault) error {
	f, _ := faults.Find(s.Verb) // resolved before the start
	spec := specOf(s)
	if f.Strikes != faults.StrikesClock {
		spec.By = scaled(spec.By, b.o.Scale)
	}
	in, err := f.Arm(ctx, spec, targets{b})
	if err != nil {
		return err
	}
	b.injections = append(b.injections, labelled{s.Label, in})
	return nil
}

func (b *run) healOne(ctx context.Context, label string) error {
	ctx, cancel := b.rt.Timeout(ctx, scaled(startBound, b.o.Scale))
	defer cancel()
	for i, in := range b.injections {
		if in.label == label {
			b.injections = append(b.injections[:i:i], b.injections[i+1:]...)
			return in.Heal(ctx)
		}
	}
	return nil // healed before
}
