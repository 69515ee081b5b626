package faults

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
)

// strokeDeadline bounds one stroke at a process (a kill, a pause) and so the
// time for which a frame is held while it is made.
const strokeDeadline = 30 * time.Second

// gate is what keeps the hand-over while its stroke is made.
var gate = actions{links.Hold, links.HoldAfter}

// processFaults strike a process: at once, or at a hand-over that is held while
// they do.
func processFaults() []Fault {
	fault := func(command evidence.Command, class evidence.Class, text string, stroke func(context.Context, Process) error, heal func(context.Context, Process) error, goesOn bool) Fault {
		verb := command.String()
		return Fault{Verb: verb, Class: class, Strikes: StrikesProcess, Text: text,
			Example: "fault it: " + verb + " broker before frame accept of order-3 on p1",
			frame:   gate,
			arm: func(ctx context.Context, s Spec, t Targets) (Injection, error) {
				process, err := t.Process(s.Target)
				if err != nil {
					return nil, err
				}
				p := &processStroke{spec: s, verb: verb, command: command, process: process, sink: t.Sink(), stroke: stroke, undo: heal, goesOn: goesOn}
				return p, p.arm(ctx, t)
			}}
	}
	return []Fault{
		fault(evidence.CommandKill, evidence.BrokerCrash, "SIGKILL: the process dies at once; it is started again when the fault is healed.",
			func(ctx context.Context, p Process) error { return p.Kill(ctx) },
			func(ctx context.Context, p Process) error { return p.Revive(ctx) }, false),
		fault(evidence.CommandShutdown, evidence.BrokerRestart, "The process ends in order; it is started again when the fault is healed.",
			func(ctx context.Context, p Process) error { return p.Shutdown(ctx) },
			func(ctx context.Context, p Process) error { return p.Revive(ctx) }, false),
		fault(evidence.CommandPause, evidence.BrokerPause, "SIGSTOP: the process stands still until the fault is healed.",
			func(ctx context.Context, p Process) error { return p.Pause(ctx) },
			func(ctx context.Context, p Process) error { return p.Continue(ctx) }, true),
	}
}

// processStroke is one fault on a process.
//
// At a frame, the frame is held while the stroke is made, so that it falls
// between two observed hand-overs; what was held then never happened if the
// process died, and goes on if it was only paused.
type processStroke struct {
	signal
	spec    Spec
	verb    string
	command evidence.Command
	process Process
	sink    evidence.Sink
	stroke  func(context.Context, Process) error
	undo    func(context.Context, Process) error
	goesOn  bool

	ungate func(context.Context) error
	struck chan struct{} // closed when no stroke is under way and none will be
	stop   chan struct{}
	err    error // of the stroke; read after struck
}

func (p *processStroke) arm(ctx context.Context, t Targets) error {
	p.fired, p.struck, p.stop = make(chan struct{}), make(chan struct{}), make(chan struct{})
	switch {
	case p.spec.Frame != "":
		// The gate has no label: it is the kill that counts as fired, when the
		// exit is certain.
		held, err := strike(p.spec, t, "", gate.of(p.spec), links.Once)
		if err != nil {
			return err
		}
		p.ungate = held.Heal
		go p.wait(held.Fired(), func() { held.Release(p.goesOn) }, nil)
		return nil
	case p.spec.Operation != "":
		store, err := t.Store()
		if err != nil {
			return err
		}
		reached := make(chan struct{})
		items := make(chan []evidence.FrameItem, 1)
		heal, err := store.Arm(ctx, StoreFault{Label: p.spec.Label + "/gate", Verb: "hold", Operation: p.spec.Operation, After: p.spec.After, N: p.spec.N},
			func(_ string, hit []evidence.FrameItem) {
				select {
				case items <- hit:
					close(reached)
				default: // one stroke only
				}
			})
		if err != nil {
			return err
		}
		p.ungate = heal
		go p.wait(reached, func() {}, items)
		return nil
	}
	p.ungate = func(context.Context) error { return nil }
	defer close(p.struck)
	return p.strike(ctx, nil)
}

func (p *processStroke) wait(reached <-chan struct{}, release func(), items <-chan []evidence.FrameItem) {
	defer close(p.struck)
	select {
	case <-p.stop:
		return
	case <-reached:
	}
	ctx, cancel := context.WithTimeout(context.Background(), strokeDeadline)
	defer cancel()
	var hit []evidence.FrameItem
	if items != nil {
		hit = <-items
	}
	p.err = p.strike(ctx, hit)
	release()
}

func (p *processStroke) strike(ctx context.Context, items []evidence.FrameItem) error {
	// An orderly end takes its time: what was under way when it began may have
	// given up when it is certain.
	p.sink.Record(evidence.Event{Kind: evidence.Commanded, Actor: p.spec.Target, Fault: p.spec.Label, Command: p.command})
	if err := p.stroke(ctx, p.process); err != nil {
		return fmt.Errorf("%s %s: %w", p.verb, p.spec.Target, err)
	}
	p.sink.Record(evidence.Event{Kind: evidence.FaultFired, Actor: p.spec.Target, Fault: p.spec.Label, Link: p.spec.On,
		Frame: p.spec.Frame + p.spec.Operation, Items: items, Struck: p.verb})
	p.fire()
	return nil
}

func (p *processStroke) Heal(ctx context.Context) error {
	close(p.stop)
	select {
	case <-p.struck:
	case <-ctx.Done():
		return fmt.Errorf("faults: %s is still being made: %w", p.spec.Label, context.Cause(ctx))
	}
	errs := []error{p.err}
	select {
	case <-p.fired:
		errs = append(errs, p.undo(ctx, p.process))
		if p.goesOn {
			errs = append(errs, p.ungate(ctx))
		}
	default: // it never struck, so there is nothing to undo
		errs = append(errs, p.ungate(ctx))
	}
	return errors.Join(errs...)
}
