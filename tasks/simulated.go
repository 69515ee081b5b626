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

// Simulated is a Runtime in virtual time: a discrete-event simulation whose
// tasks are coroutines, deterministic for a seed. Not safe for concurrent use.
type Simulated struct {
	now     time.Duration
	due     eventQueue
	seq     uint64
	tasks   []*Task // live, in start order
	current *Task
	steps   int
	failed  error
	random  *rand.Rand
}

// NewSimulated returns a simulation at its beginning; the seed determines its
// delays.
func NewSimulated(seed uint64) *Simulated {
	return &Simulated{now: time.Millisecond, random: rand.New(rand.NewPCG(seed, 0x6375737461))}
}

// maxSteps bounds a simulation that never ends.
const maxSteps = 1 << 20

var (
	errDeadlock     = errors.New("tasks: simulation deadlock: tasks wait and no event is scheduled")
	errTooManySteps = fmt.Errorf("tasks: the simulation does not end: more than %d events", maxSteps)
	errKilled       = errors.New("tasks: killed") // unwinds a killed task
)

// epoch is the wall clock at the start of every simulation.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func (s *Simulated) Now() time.Duration { return s.now }

func (s *Simulated) Wall() time.Time { return epoch.Add(s.now) }

// Wake does nothing: every task's condition is evaluated after every event.
func (s *Simulated) Wake() {}

// Jitter returns a random delay below about 2 ms, biased to short ones.
func (s *Simulated) Jitter() time.Duration {
	f := s.random.Float64()
	return 20*time.Microsecond + time.Duration(f*f*f*float64(2*time.Millisecond))
}

// After schedules do to run d from now. Events at the same instant run in the
// order they were scheduled. do must not wait.
func (s *Simulated) After(d time.Duration, do func()) { s.At(s.now+d, do) }

// At schedules do to run at an instant.
func (s *Simulated) At(when time.Duration, do func()) { s.schedule(when, do) }

func (s *Simulated) schedule(when time.Duration, do func()) *event {
	s.seq++
	a := &event{when, s.seq, do}
	heap.Push(&s.due, a)
	return a
}

// Run runs main and what it starts until main returns. The error is a panic in
// a task, or a deadlock.
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
			return errDeadlock
		}
		if s.steps++; s.steps > maxSteps {
			return errTooManySteps
		}
		next := heap.Pop(&s.due).(*event)
		if next.do == nil {
			continue // cancelled
		}
		s.now = next.at
		next.do()
	}
	return s.failed
}

// runReady resumes tasks until none is ready.
func (s *Simulated) runReady() {
	for progressed := true; progressed; {
		progressed = false
		for i := 0; i < len(s.tasks); i++ { // a task may start others
			if t := s.tasks[i]; !t.over && t.ready() {
				t.resume()
				progressed = true
			}
		}
		if progressed {
			s.tasks = slices.DeleteFunc(s.tasks, func(t *Task) bool { return t.over })
		}
	}
}

// Task is a coroutine in virtual time.
type Task struct {
	s        *Simulated
	next     func() (struct{}, bool)
	stop     func()
	yield    func(struct{}) bool
	until    func() bool // wait condition; nil if runnable
	ctx      context.Context
	frozen   bool
	over     bool
	onKill   []func()
	onFreeze []func(still func() bool)
}

// Go runs f concurrently. It starts when the caller waits.
func (s *Simulated) Go(f func()) { s.Spawn(f) }

// Spawn is like Go, but returns a handle to the task.
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

// Killed reports whether a recovered panic is that of a killed task, which must
// be re-panicked.
func Killed(p any) bool { return p == any(errKilled) }

// OnKill registers do to be called when the current task is killed, as a
// process's connections close with it.
func (s *Simulated) OnKill(do func()) {
	if s.current != nil {
		s.current.onKill = append(s.current.onKill, do)
	}
}

// OnFreeze registers do to be called whenever the current task is frozen.
// still reports whether the task is still frozen.
func (s *Simulated) OnFreeze(do func(still func() bool)) {
	if s.current != nil {
		s.current.onFreeze = append(s.current.onFreeze, do)
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

// Over reports whether the task has ended.
func (t *Task) Over() bool { return t.over }

// Freeze stops the task from being resumed until Thaw.
func (t *Task) Freeze() {
	t.frozen = true
	for _, do := range t.onFreeze {
		do(func() bool { return t.frozen && !t.over })
	}
}
func (t *Task) Thaw() { t.frozen = false }

// Kill ends the task where it waits, running its deferred calls. A task must
// not kill itself.
func (t *Task) Kill() {
	if t.over {
		return
	}
	t.over = true
	before := t.s.current
	t.s.current = t
	t.stop()
	t.s.current = before
	for _, do := range t.onKill {
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
	wake := s.schedule(over, func() {}) // makes Wait look at the clock then
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

type event struct {
	at    time.Duration
	order uint64
	do    func() // nil if cancelled
}

// eventQueue is a min-heap by time.
type eventQueue []*event

func (a eventQueue) Len() int { return len(a) }
func (a eventQueue) Less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].order < a[j].order
}
func (a eventQueue) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *eventQueue) Push(x any)   { *a = append(*a, x.(*event)) }
func (a *eventQueue) Pop() any {
	old := *a
	n := len(old) - 1
	x := old[n]
	old[n] = nil
	*a = old[:n]
	return x
}
