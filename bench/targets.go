package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/custodymq/custody/containers"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/faults"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// targets is what faults strike.
type targets struct{ b *Bench }

func (t targets) Link(actor string) (*links.Link, error) {
	if l, ok := t.b.links[actor]; ok {
		return l, nil
	}
	return nil, fmt.Errorf("bench: %s has no link", actor)
}

func (t targets) Process(target string) (faults.Process, error) {
	if target == faults.Broker {
		if p, ok := t.b.instance.(systems.Process); ok {
			return broker{p, t.b}, nil
		}
		return nil, fmt.Errorf("bench: %s is no process that can be struck", t.b.desc.System)
	}
	c, ok := t.b.consumers[target]
	if !ok || !c.spec.Child {
		return nil, fmt.Errorf("bench: %s has no process of its own; declare it with \"child\"", target)
	}
	return c, nil
}

func (t targets) Store() (faults.Store, error) {
	if s, ok := t.b.instance.(systems.StoreFaulter); ok {
		return store{s, t.b}, nil
	}
	return nil, fmt.Errorf("bench: the store of %s cannot be struck", t.b.desc.System)
}

func (t targets) Clock(string) (faults.Clock, error) {
	if c, ok := t.b.instance.(systems.Clocked); ok {
		return clock{c, t.b}, nil
	}
	return nil, fmt.Errorf("bench: the clock of %s cannot be set", t.b.desc.System)
}

func (t targets) Sink() evidence.Sink { return t.b.rec }

// broker is the system's own process as faults and steps strike it.
type broker struct {
	process systems.Process
	b       *Bench
}

// order strikes the incarnation that there is now.
func (p broker) order(ctx context.Context, do func(systems.Process, context.Context) error) (faults.Stroke, error) {
	s := faults.Stroke{Incarnation: p.b.watch.starts(faults.Broker)}
	if !p.process.Running() {
		return missed(s, faults.Broker), nil
	}
	err := do(p.process, ctx)
	if errors.Is(err, containers.ErrNotRunning) {
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
	p.b.reviving.Lock()
	defer p.b.reviving.Unlock()
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
func (b *Bench) present() error {
	if p, ok := b.instance.(systems.Process); ok && !p.Running() {
		return &faults.AbsentError{Why: missed(faults.Stroke{}, faults.Broker).Missed}
	}
	return nil
}

type store struct {
	s systems.StoreFaulter
	b *Bench
}

func (s store) Arm(ctx context.Context, f faults.StoreFault, fired func(string, []evidence.FrameItem)) (func(context.Context) error, error) {
	if err := s.b.present(); err != nil {
		return nil, err
	}
	heal, err := s.s.ArmStore(ctx, systems.StoreFault(f), func(x systems.StoreFired) { fired(x.Operation, x.Items) })
	if errors.Is(err, containers.ErrExited) {
		return nil, errors.Join(s.b.present(), err)
	}
	return heal, err
}

type clock struct {
	systems.Clocked
	b *Bench
}

func (c clock) SetClock(ctx context.Context, offset time.Duration) error {
	if err := c.b.present(); err != nil && offset != 0 {
		return err
	}
	return c.Clocked.SetClock(ctx, offset)
}

func (b *Bench) arm(ctx context.Context, s script.Fault) error {
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

func (b *Bench) healOne(ctx context.Context, label string) error {
	ctx, cancel := context.WithTimeout(ctx, scaled(startBound, b.o.Scale))
	defer cancel()
	for i, in := range b.injections {
		if in.label == label {
			b.injections = append(b.injections[:i:i], b.injections[i+1:]...)
			return in.Heal(ctx)
		}
	}
	return nil // healed before
}
