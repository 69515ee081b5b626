package faults

import (
	"cmp"
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

// processTimeout bounds a kill, shutdown or pause, and so how long its frame is
// held.
const processTimeout = 30 * time.Second

// gate holds the triggering frame while the process is struck.
var gate = actions{links.Hold, links.HoldAfter}

// processFaults strike a process, at once or at a frame or store operation that
// is held meanwhile.
func processFaults() []Fault {
	fault := func(command evidence.Command, class evidence.Class, text string, do func(Process, context.Context) (Outcome, error), undo func(context.Context, Process, Outcome) (Outcome, error), resumes bool) Fault {
		verb := command.String()
		return Fault{Verb: verb, Class: class, Strikes: StrikesProcess, Text: text,
			Example: "fault it: " + verb + " broker before frame accept of order-3 on p1",
			frame:   gate, Ends: !resumes, Lasts: resumes,
			arm: func(ctx context.Context, s Spec, t Targets) (Injection, error) {
				process, err := t.Process(s.Target)
				if err != nil {
					return nil, err
				}
				p := &processInjection{spec: s, verb: verb, command: command, process: process, sink: t.Sink(), do: do, undo: undo, resumes: resumes}
				return p, p.arm(ctx, t)
			}}
	}
	failOver := fault(evidence.CommandFailOver, evidence.NodeLoss, "The store's server is lost for good: it is killed, and its standby is promoted and takes its address.",
		Process.FailOver, func(_ context.Context, _ Process, struck Outcome) (Outcome, error) { return struck, nil }, false)
	failOver.Ends, failOver.Example = false, "fault lost: fail-over store after frame commit of order-3 on store"
	revive := func(ctx context.Context, p Process, _ Outcome) (Outcome, error) { return p.Revive(ctx) }
	return []Fault{
		fault(evidence.CommandKill, evidence.BrokerCrash, "SIGKILL: the process dies at once, and what was held is never sent. A broker is restarted when the fault is healed, a consumer when the script starts it.",
			Process.Kill, revive, false),
		fault(evidence.CommandShutdown, evidence.BrokerRestart, "The process shuts down in order. A broker is restarted when the fault is healed, a consumer when the script starts it.",
			Process.Shutdown, revive, false),
		fault(evidence.CommandPause, evidence.BrokerPause, "SIGSTOP: the process is stopped until the fault is healed. A frame held for it is released once it is stopped.",
			Process.Pause, func(ctx context.Context, p Process, struck Outcome) (Outcome, error) { return p.Continue(ctx, struck) }, true),
		failOver,
	}
}

// processInjection is one fault on a process.
//
// The triggering frame is held while the process is struck, so that the fault
// falls between two observed hand-overs. The frame is discarded if the process
// died, and released if it was paused or not running.
type processInjection struct {
	signal
	spec    Spec
	verb    string
	command evidence.Command
	process Process
	sink    evidence.Sink
	rt      tasks.Runtime
	do      func(Process, context.Context) (Outcome, error)
	undo    func(context.Context, Process, Outcome) (Outcome, error)
	resumes bool

	releaseGate func(context.Context) error

	mu          sync.Mutex
	started     bool // striking, or never will
	done        bool // has struck; outcome and err are valid
	outcome     Outcome
	err         error
	healOutcome Outcome // of healing
}

func (p *processInjection) arm(ctx context.Context, t Targets) error {
	p.fired, p.rt = make(chan struct{}), t.Runtime()
	switch {
	case p.spec.Frame != "":
		var held links.Injection
		p.mu.Lock() // until held is set
		defer p.mu.Unlock()
		// The gate has no label: the fault fires when the exit is certain, not
		// when the frame is held.
		held, err := strike(p.spec, t, "", gate.of(p.spec), links.Once, func() {
			p.strikeAsync(nil, func() { held.Release(p.resumes || p.outcome.Missed != "") })
		})
		if err != nil {
			return err
		}
		p.releaseGate = held.Heal
		return nil
	case p.spec.Operation != "":
		store, err := t.Store(cmp.Or(p.spec.On, Store))
		if err != nil {
			return err
		}
		p.releaseGate, err = store.ArmStore(ctx, systems.StoreFault{Label: p.spec.Label + "/gate", Verb: "hold", Operation: p.spec.Operation, After: p.spec.After, Of: p.spec.Of, By: p.spec.Target, N: p.spec.N},
			func(x systems.StoreFired) { p.strikeAsync(x.Items, func() {}) })
		return err
	}
	p.releaseGate = func(context.Context) error { return nil }
	p.started, p.done = true, true
	p.strike(ctx, nil)
	return p.err
}

// strikeAsync strikes while the triggering event is held, then calls release.
// The event may recur; only the first strikes.
func (p *processInjection) strikeAsync(items []evidence.FrameItem, release func()) {
	p.rt.Go(func() {
		p.mu.Lock()
		begun := p.started
		p.started = true
		p.mu.Unlock()
		if begun {
			return
		}
		ctx, cancel := p.rt.Timeout(context.Background(), processTimeout)
		defer cancel()
		p.strike(ctx, items)
		release()
		p.mu.Lock()
		p.done = true
		p.mu.Unlock()
		p.rt.Wake()
	})
}

func (p *processInjection) strike(ctx context.Context, items []evidence.FrameItem) {
	// Recorded before the signal: an orderly shutdown takes a while, and calls
	// in progress may fail before it is certain.
	p.sink.Record(evidence.Event{Kind: evidence.Commanded, Actor: p.spec.Target, Fault: p.spec.Label, Command: p.command})
	if p.outcome, p.err = p.do(p.process, ctx); p.err != nil {
		p.err = fmt.Errorf("%s %s: %w", p.verb, p.spec.Target, p.err)
		return
	}
	e := evidence.Event{Kind: evidence.FaultFired, Actor: p.spec.Target, Fault: p.spec.Label, Link: p.spec.On,
		Frame: p.spec.Frame + p.spec.Operation, Items: items, Struck: p.verb, Incarnation: p.outcome.Incarnation}
	if p.outcome.Missed != "" {
		e.Kind, e.Reason = evidence.FaultMissed, p.outcome.Missed
		p.sink.Record(e)
		return
	}
	p.sink.Record(e)
	p.fire()
}

func (p *processInjection) Heal(ctx context.Context) error {
	p.mu.Lock()
	begun := p.started
	p.started = true
	p.mu.Unlock()
	if begun {
		if err := p.rt.Wait(ctx, p.isDone); err != nil {
			return fmt.Errorf("faults: %s is still striking: %w", p.spec.Label, err)
		}
	}
	errs := []error{p.err}
	select {
	case <-p.fired:
		var err error
		p.healOutcome, err = p.undo(ctx, p.process, p.outcome)
		errs = append(errs, err)
		if p.resumes {
			errs = append(errs, p.releaseGate(ctx))
		}
	default: // nothing was struck, so there is nothing to undo
		errs = append(errs, p.releaseGate(ctx))
	}
	return errors.Join(errs...)
}

func (p *processInjection) isDone() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done
}
