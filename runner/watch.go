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

// watch follows the recording and lets the bench wait for what must happen.
type watch struct {
	mu         sync.Mutex
	index      map[string]int // a condition's line → its place
	conditions *evidence.Conditions
	latest     evidence.Event // here, so that none is allocated for each
	last       time.Duration  // of the latest event that moves a message
	started    map[string]int // processes, by actor
	crashed    int            // times that the broker has ended by itself
	opened     map[string]int // sessions, by actor
	rt         tasks.Runtime
}

// newWatch follows every condition that the script awaits or must reach.
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

// moves are the events by which a message goes on its way; while none comes,
// it is quiet.
var moves = map[evidence.Kind]bool{
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
	case e.Kind == evidence.ProcessExited && e.Actor == faults.Broker && e.Exit != nil && !e.Exit.Ordered && e.Exit.Signal != "killed": // by somebody outside: nothing can be measured
		w.crashed++
	}
	if moves[e.Kind] {
		w.last = e.At
	}
}

func (w *watch) snapshot(s evidence.Snapshot) {
	defer w.rt.Wake()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conditions.ObserveSnapshot(s)
}

// met says whether a condition holds, and what is missing if not.
func (w *watch) met(c evidence.Condition) (ok bool, missing string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := w.index[c.Line]
	if w.conditions.Met(i) {
		return true, ""
	}
	return false, w.conditions.Missing(i)
}

// starts counts those of an actor's process.
func (w *watch) starts(actor string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.started[actor]
}

// sessions counts those that an actor has opened.
func (w *watch) sessions(actor string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.opened[actor]
}

// crashes counts how often the broker has ended by itself.
func (w *watch) crashes() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.crashed
}

// lastMove is when a message last went on its way.
func (w *watch) lastMove() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

// await waits for a condition. The error says what is missing.
func (w *watch) await(ctx context.Context, c evidence.Condition) error {
	i := w.index[c.Line]
	err := w.rt.Wait(ctx, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.conditions.Met(i)
	})
	if err != nil {
		_, missing := w.met(c)
		return fmt.Errorf("%q did not come about: %s", c.Line, missing)
	}
	return nil
}

// bare is a step without its comments.
func bare(s script.Step) script.Step {
	if c, ok := s.(script.Comment); ok {
		return c.Step
	}
	return s
}
