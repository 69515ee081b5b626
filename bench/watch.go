package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// watch follows the recording and lets the bench wait for what must happen.
type watch struct {
	mu         sync.Mutex
	index      map[string]int // a condition's line → its place
	conditions *evidence.Conditions
	last       time.Duration // of the latest event that moves a message
	changed    chan struct{} // closed and replaced at every event
}

// newWatch follows every condition that the script awaits or must reach.
func newWatch(s script.Scenario) *watch {
	w := &watch{index: make(map[string]int), changed: make(chan struct{})}
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
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conditions.Observe(&e)
	if moves[e.Kind] {
		w.last = e.At
	}
	w.wake()
}

func (w *watch) snapshot(s evidence.Snapshot) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conditions.ObserveSnapshot(s)
	w.wake()
}

func (w *watch) wake() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// met says whether a condition holds, what is missing if not, and gives the
// channel that is closed when that may have changed.
func (w *watch) met(c evidence.Condition) (ok bool, missing string, changed <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := w.index[c.Line]
	if w.conditions.Met(i) {
		return true, "", w.changed
	}
	return false, w.conditions.Missing(i), w.changed
}

// lastMove is when a message last went on its way.
func (w *watch) lastMove() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

// await waits for a condition. The error says what is missing.
func (w *watch) await(ctx context.Context, c evidence.Condition) error {
	for {
		ok, missing, changed := w.met(c)
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%q did not come about: %s", c.Line, missing)
		}
	}
}

// bare is a step without its comments.
func bare(s script.Step) script.Step {
	if c, ok := s.(script.Comment); ok {
		return c.Step
	}
	return s
}
