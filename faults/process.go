package faults

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/systems"
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
			frame:   gate, Ends: !goesOn, Lasts: goesOn,
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
	rt      tasks.Runtime
	stroke  func(Process, context.Context) (Stroke, error)
	undo    func(context.Context, Process, Stroke) (Stroke, error)
	goesOn  bool

	ungate func(context.Context) error

	mu     sync.Mutex
	begun  bool   // the stroke is under way, or none will be
	made   bool   // it has been made
	hit    Stroke // with err what it came to; read once it is made
	err    error
	undone Stroke // what healing did
}

func (p *processStroke) arm(ctx context.Context, t Targets) error {
	p.fired, p.rt = make(chan struct{}), t.Runtime()
	switch {
	case p.spec.Frame != "":
		var held links.Injection
		p.mu.Lock() // until held is known
		defer p.mu.Unlock()
		// The gate has no label: it is the kill that counts as fired, when the
		// exit is certain.
		held, err := strike(p.spec, t, "", gate.of(p.spec), links.Once, func() {
			p.soon(nil, func() { held.Release(p.goesOn || p.hit.Missed != "") })
		})
		if err != nil {
			return err
		}
		p.ungate = held.Heal
		return nil
	case p.spec.Operation != "":
		store, err := t.Store()
		if err != nil {
			return err
		}
		p.ungate, err = store.ArmStore(ctx, systems.StoreFault{Label: p.spec.Label + "/gate", Verb: "hold", Operation: p.spec.Operation, After: p.spec.After, N: p.spec.N},
			func(x systems.StoreFired) { p.soon(x.Items, func() {}) })
		return err
	}
	p.ungate = func(context.Context) error { return nil }
	p.begun, p.made = true, true
	p.strike(ctx, nil)
	return p.err
}

// soon strikes beside whatever has come to the hand-over, and then lets go what
// is held there. A hand-over may be reached more than once; one stroke only.
func (p *processStroke) soon(items []evidence.FrameItem, release func()) {
	p.rt.Go(func() {
		p.mu.Lock()
		begun := p.begun
		p.begun = true
		p.mu.Unlock()
		if begun {
			return
		}
		ctx, cancel := p.rt.Timeout(context.Background(), strokeDeadline)
		defer cancel()
		p.strike(ctx, items)
		release()
		p.mu.Lock()
		p.made = true
		p.mu.Unlock()
		p.rt.Wake()
	})
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
	p.mu.Lock()
	begun := p.begun
	p.begun = true
	p.mu.Unlock()
	if begun {
		if err := p.rt.Wait(ctx, p.isMade); err != nil {
			return fmt.Errorf("faults: %s is still being made: %w", p.spec.Label, err)
		}
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

func (p *processStroke) isMade() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.made
}
