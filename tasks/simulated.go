package tasks

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"time"
)

// Simulated is virtual time: what is due next happens next, one thing at a time,
// in an order that depends on the seed alone. Its tasks are coroutines, of which
// one runs until it waits. Not safe for concurrent use: it has one world to
// itself.
type Simulated struct {
	now      time.Duration
	due      agenda
	issued   uint64
	tasks    []*Task // that have not ended, in order of their start
	current  *Task
	happened int
	failed   error
	chance   *rand.Rand
}

// NewSimulated begins a world; its delays come from the seed.
func NewSimulated(seed uint64) *Simulated {
	return &Simulated{now: time.Millisecond, chance: rand.New(rand.NewPCG(seed, 0x6375737461))}
}

// maxHappenings bounds a simulation that never comes to its end.
const maxHappenings = 1 << 20

var (
	errStuck   = errors.New("tasks: the simulation stands still: nothing is due and somebody waits")
	errEndless = fmt.Errorf("tasks: the simulation has no end: more than %d things have happened", maxHappenings)
	errKilled  = errors.New("tasks: killed") // unwinds the code of a task that is killed
)

// epoch is the wall clock at the beginning of every simulation.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func (s *Simulated) Now() time.Duration { return s.now }

func (s *Simulated) Wall() time.Time { return epoch.Add(s.now) }

// Wake does nothing: after all that happens every task is asked.
func (s *Simulated) Wake() {}

// Jitter draws a delay below about 2 ms, short ones more often.
func (s *Simulated) Jitter() time.Duration {
	f := s.chance.Float64()
	return 20*time.Microsecond + time.Duration(f*f*f*float64(2*time.Millisecond))
}

// After schedules do to run d from now. What is due at the same instant runs in
// the order in which it was scheduled. do must not wait.
func (s *Simulated) After(d time.Duration, do func()) { s.At(s.now+d, do) }

// At schedules do to run at an instant.
func (s *Simulated) At(when time.Duration, do func()) { s.schedule(when, do) }

func (s *Simulated) schedule(when time.Duration, do func()) *appointment {
	s.issued++
	a := &appointment{when, s.issued, do}
	heap.Push(&s.due, a)
	return a
}

// Run main and all that it starts, until main has ended. The error is a panic in
// a task, or that nothing could happen any more.
func (s *Simulated) Run(main func()) error {
	t := s.Spawn(main)
	defer func() {
		for _, t := range s.tasks {
			t.Kill()
		}
		s.tasks = nil
	}()
	for s.runReady(); !t.over && s.failed == nil; s.runReady() {
		if len(s.due) == 0 {
			return errStuck
		}
		if s.happened++; s.happened > maxHappenings {
			return errEndless
		}
		next := heap.Pop(&s.due).(*appointment)
		if next.do == nil {
			continue // called off
		}
		s.now = next.at
		next.do()
	}
	return s.failed
}

// runReady resumes every task whose wait is over, until none is.
func (s *Simulated) runReady() {
	for went := true; went; {
		went = false
		for i := 0; i < len(s.tasks); i++ { // a task may start others
			if t := s.tasks[i]; !t.over && t.ready() {
				t.resume()
				went = true
			}
		}
		if went {
			s.tasks = slices.DeleteFunc(s.tasks, func(t *Task) bool { return t.over })
		}
	}
}

// Task is straight code in virtual time.
type Task struct {
	s      *Simulated
	next   func() (struct{}, bool)
	stop   func()
	yield  func(struct{}) bool
	until  func() bool // what it waits for; nil is nothing
	ctx    context.Context
	frozen bool
	over   bool
	killed []func()
	stills []func(still func() bool)
}

// Go runs f beside its caller. It begins when whoever runs now waits.
func (s *Simulated) Go(f func()) { s.Spawn(f) }

// Spawn is Go with a handle.
func (s *Simulated) Spawn(f func()) *Task {
	t := &Task{s: s}
	t.next, t.stop = iter.Pull(func(yield func(struct{}) bool) {
		defer func() {
			if p := recover(); p != nil && p != any(errKilled) && s.failed == nil {
				s.failed = Panic(p)
			}
		}()
		t.yield = yield
		f()
	})
	s.tasks = append(s.tasks, t)
	return t
}

// Killed says whether a recovered panic is the end of a task that was killed:
// whoever has recovered it panics with it again.
func Killed(p any) bool { return p == any(errKilled) }

// OnKill has do called when the task that runs now is killed, as what a process
// has open ends with it.
func (s *Simulated) OnKill(do func()) {
	if s.current != nil {
		s.current.killed = append(s.current.killed, do)
	}
}

// OnFreeze has do called whenever the task that runs now is frozen; still says
// whether it is so yet.
func (s *Simulated) OnFreeze(do func(still func() bool)) {
	if s.current != nil {
		s.current.stills = append(s.current.stills, do)
	}
}

func (t *Task) ready() bool {
	return !t.frozen && (t.until == nil || t.until() || t.ctx.Err() != nil)
}

func (t *Task) resume() {
	before := t.s.current
	t.s.current = t
	_, more := t.next()
	t.s.current = before
	if !more {
		t.over = true
	}
}

// Over says whether the task has ended.
func (t *Task) Over() bool { return t.over }

// Freeze keeps the task from going on; Thaw lets it.
func (t *Task) Freeze() {
	t.frozen = true
	for _, do := range t.stills {
		do(func() bool { return t.frozen && !t.over })
	}
}
func (t *Task) Thaw() { t.frozen = false }

// Kill ends the task where it waits; deferred calls are made. A task does not
// kill itself.
func (t *Task) Kill() {
	if t.over {
		return
	}
	t.over = true
	before := t.s.current
	t.s.current = t
	t.stop()
	t.s.current = before
	for _, do := range t.killed {
		do()
	}
}

func (s *Simulated) Wait(ctx context.Context, ready func() bool) error {
	if ready() {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	t := s.current
	t.until, t.ctx = ready, ctx
	if !t.yield(struct{}{}) {
		panic(errKilled)
	}
	t.until = nil
	if ready() {
		return nil
	}
	return context.Cause(ctx)
}

func (s *Simulated) Sleep(ctx context.Context, d time.Duration) error {
	over := s.now + d
	wake := s.schedule(over, func() {}) // so that somebody looks then
	err := s.Wait(ctx, func() bool { return s.now >= over })
	wake.do = nil
	return err
}

func (s *Simulated) Timeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	timed, cancel := context.WithCancelCause(ctx)
	a := s.schedule(s.now+d, func() { cancel(context.DeadlineExceeded) })
	return timed, func() {
		a.do = nil
		cancel(context.Canceled)
	}
}

type appointment struct {
	at    time.Duration
	order uint64
	do    func() // nil: called off
}

// agenda is a heap: the earliest first.
type agenda []*appointment

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].order < a[j].order
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(x any)   { *a = append(*a, x.(*appointment)) }
func (a *agenda) Pop() any {
	old := *a
	n := len(old) - 1
	x := old[n]
	old[n] = nil
	*a = old[:n]
	return x
}
