package bench

import (
	"context"
	"fmt"

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
			return &brokerProcess{p, t.b}, nil
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
		return store{s}, nil
	}
	return nil, fmt.Errorf("bench: the store of %s cannot be struck", t.b.desc.System)
}

func (t targets) Clock(string) (faults.Clock, error) {
	if c, ok := t.b.instance.(systems.Clocked); ok {
		return c, nil
	}
	return nil, fmt.Errorf("bench: the clock of %s cannot be set", t.b.desc.System)
}

func (t targets) Sink() evidence.Sink { return t.b.rec }

// brokerProcess starts again what a fault has ended.
type brokerProcess struct {
	systems.Process
	b *Bench
}

func (p *brokerProcess) Pause(ctx context.Context) error {
	err := p.Process.Pause(ctx)
	p.b.rec.Record(evidence.Event{Kind: evidence.ProcessPaused, Actor: faults.Broker, OK: err == nil})
	return err
}

func (p *brokerProcess) Continue(ctx context.Context) error {
	p.b.rec.Record(evidence.Event{Kind: evidence.ProcessContinued, Actor: faults.Broker})
	return p.Process.Continue(ctx)
}

// Revive restarts the broker unless it runs. A broker that ended by itself is
// restarted too: that it ended is in the evidence, and what it kept is to be
// seen.
func (p *brokerProcess) Revive(ctx context.Context) error {
	if p.Running() {
		return nil
	}
	return p.Restart(ctx)
}

type store struct{ s systems.StoreFaulter }

func (s store) Arm(ctx context.Context, f faults.StoreFault, fired func(string, []evidence.FrameItem)) (func(context.Context) error, error) {
	return s.s.ArmStore(ctx, systems.StoreFault(f), func(x systems.StoreFired) { fired(x.Operation, x.Items) })
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
