package faults

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/tasks"
)

// strokeDeadline bounds one stroke at a process (a kill, a pause) and so the
// time for which a frame is held while it is made.
const strokeDeadline = 30 * time.Second

// gate is what keeps the hand-over while its stroke is made.
var gate = actions{links.Hold, links.HoldAfter}

// processFaults strike a process: at once, or at a hand-over that is held while
// they do.
func processFaults() []Fault {
	fault := func(command evidence.Command, class evidence.Class, text string, stroke func(Process, context.Context) (Stroke, error), heal func(context.Context, Process, Stroke) (Stroke, error), goesOn bool) Fault {
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
	revive := func(ctx context.Context, p Process, _ Stroke) (Stroke, error) { return p.Revive(ctx) }
	return []Fault{
		fault(evidence.CommandKill, evidence.BrokerCrash, "SIGKILL: the process dies at once, and what was held is never sent. A broker is started again when the fault is healed, a consumer when the script starts it.",
			Process.Kill, revive, false),
		fault(evidence.CommandShutdown, evidence.BrokerRestart, "The process ends in order. A broker is started again when the fault is healed, a consumer when the script starts it.",
			Process.Shutdown, revive, false),
		fault(evidence.CommandPause, evidence.BrokerPause, "SIGSTOP: the process stands still until the fault is healed. A frame that was held until then goes on as soon as it does.",
			Process.Pause, func(ctx context.Context, p Process, struck Stroke) (Stroke, error) { return p.Continue(ctx, struck) }, true),
	}
}

// processStroke is one fault on a process.
//
// At a frame, the frame is held while the stroke is made, so that it falls
// between two observed hand-overs; what was held then never happened if the
// process died, and goes on if it was only paused, or was not there.
type processStroke struct {
	signal
	spec    Spec
	verb    string
	command evidence.Command
	process Process
	sink    evidence.Sink
	stroke  func(Process, context.Context) (Stroke, error)
	undo    func(context.Context, Process, Stroke) (Stroke, error)
	goesOn  bool

	ungate func(context.Context) error
	struck chan struct{} // closed when no stroke is under way and none will be
	stop   chan struct{}
	hit    Stroke // with err what the stroke came to; read after struck
	err    error
	undone Stroke // what healing did
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
		tasks.Go(func() {
			p.wait(held.Fired(), nil, func() { held.Release(p.goesOn || p.hit.Missed != "") })
		})
		return nil
	case p.spec.Operation != "":
		store, err := t.Store()
		if err != nil {
			return err
		}
		var (
			once    sync.Once // a store may fire more than once; one stroke only
			reached = make(chan struct{})
			items   []evidence.FrameItem
		)
		heal, err := store.Arm(ctx, StoreFault{Label: p.spec.Label + "/gate", Verb: "hold", Operation: p.spec.Operation, After: p.spec.After, N: p.spec.N},
			func(_ string, hit []evidence.FrameItem) {
				once.Do(func() {
					items = hit
					close(reached)
				})
			})
		if err != nil {
			return err
		}
		p.ungate = heal
		tasks.Go(func() { p.wait(reached, &items, func() {}) })
		return nil
	}
	p.ungate = func(context.Context) error { return nil }
	defer close(p.struck)
	p.strike(ctx, nil)
	return p.err
}

// wait for the hand-over, strike, and let go what is held there. items are read
// once it is reached.
func (p *processStroke) wait(reached <-chan struct{}, items *[]evidence.FrameItem, release func()) {
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
		hit = *items
	}
	p.strike(ctx, hit)
	release()
}

func (p *processStroke) strike(ctx context.Context, items []evidence.FrameItem) {
	// An orderly end takes its time: what was under way when it began may have
	// given up when it is certain.
	p.sink.Record(evidence.Event{Kind: evidence.Commanded, Actor: p.spec.Target, Fault: p.spec.Label, Command: p.command})
	if p.hit, p.err = p.stroke(p.process, ctx); p.err != nil {
		p.err = fmt.Errorf("%s %s: %w", p.verb, p.spec.Target, p.err)
		return
	}
	e := evidence.Event{Kind: evidence.FaultFired, Actor: p.spec.Target, Fault: p.spec.Label, Link: p.spec.On,
		Frame: p.spec.Frame + p.spec.Operation, Items: items, Struck: p.verb, Incarnation: p.hit.Incarnation}
	if p.hit.Missed != "" {
		e.Kind, e.Reason = evidence.FaultMissed, p.hit.Missed
		p.sink.Record(e)
		return
	}
	p.sink.Record(e)
	p.fire()
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
		var err error
		p.undone, err = p.undo(ctx, p.process, p.hit)
		errs = append(errs, err)
		if p.goesOn {
			errs = append(errs, p.ungate(ctx))
		}
	default: // it struck nothing, so there is nothing to undo
		errs = append(errs, p.ungate(ctx))
	}
	return errors.Join(errs...)
}
