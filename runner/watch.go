package runner

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/faults"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/tasks"
)

// watch follows the recording, so that the runner can wait for events.
type watch struct {
	mu         sync.Mutex
	index      map[string]int // condition's line → index
	conditions *evidence.Conditions
	latest     evidence.Event // kept here to avoid an allocation per event
	last       time.Duration  // time of the latest progress
	started    map[string]int // process starts, by actor
	crashed    int            // unexpected exits of the broker
	opened     map[string]int // sessions, by actor
	rt         tasks.Runtime
}

// newWatch observes every condition the script awaits or must reach.
func newWatch(s script.Scenario, rt tasks.Runtime) *watch {
	w := &watch{index: make(map[string]int), started: make(map[string]int), opened: make(map[string]int), rt: rt}
	all := append([]evidence.Condition(nil), s.Reached...)
	for _, step := range s.Steps {
		if a, ok := bare(step).(script.Await); ok {
			all = append(all, a.Condition)
		}
	}
	for i, c := range all {
		w.index[c.Line] = i
	}
	w.conditions = evidence.NewConditions(all)
	return w
}

// progressKinds are the events that count as a message's progress; the run is
// quiet while none occurs.
var progressKinds = map[evidence.Kind]bool{
	evidence.PublishCalled: true, evidence.PublishReturned: true, evidence.Delivered: true, evidence.EffectCommitted: true,
	evidence.EffectAbsorbed: true, evidence.AckReturned: true, evidence.NackReturned: true, evidence.HandlerFailed: true,
}

func (w *watch) observe(e evidence.Event) {
	defer w.rt.Wake()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.latest = e
	w.conditions.Observe(&w.latest)
	switch {
	case e.Kind == evidence.SessionOpened:
		w.opened[e.Actor]++
	case e.Kind == evidence.ProcessStarted:
		w.started[e.Actor]++
	case e.Kind == evidence.ProcessExited && e.Actor == faults.Broker && e.Exit != nil && !e.Exit.Ordered && e.Exit.Signal != "killed": // a SIGKILL comes from outside: nothing can be measured
		w.crashed++
	}
	if progressKinds[e.Kind] {
		w.last = e.At
	}
}

func (w *watch) snapshot(s evidence.Snapshot) {
	defer w.rt.Wake()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conditions.ObserveSnapshot(s)
}

// met reports whether a condition holds, and what is missing if not.
func (w *watch) met(c evidence.Condition) (ok bool, missing string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := w.index[c.Line]
	if w.conditions.Met(i) {
		return true, ""
	}
	return false, w.conditions.Missing(i)
}

// starts counts an actor's process starts.
func (w *watch) starts(actor string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.started[actor]
}

// sessions counts the sessions an actor has opened.
func (w *watch) sessions(actor string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.opened[actor]
}

// crashes counts the broker's unexpected exits.
func (w *watch) crashes() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.crashed
}

// lastProgress is the time of the latest progress.
func (w *watch) lastProgress() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

// await waits for a condition. Its error says what is missing.
func (w *watch) await(ctx context.Context, c evidence.Condition) error {
	i := w.index[c.Line]
	err := w.rt.Wait(ctx, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.conditions.Met(i)
	})
	if err != nil {
		_, missing := w.met(c)
		return fmt.Errorf("%q was not met: %s", c.Line, missing)
	}
	return nil
}

// bare strips comments from a step.
func bare(s script.Step) script.Step {
	if c, ok := s.(script.Comment); ok {
		return c.Step
	}
	return s
}
