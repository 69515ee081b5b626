package explore

import (
	"container/heap"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"
)

// kernel is virtual time: what is due next happens next, one thing at a time,
// in an order that depends on nothing outside. Tasks are coroutines: straight
// code that may wait, of which one runs until it waits.
type kernel struct {
	now    time.Duration
	due    agenda
	issued uint64
	tasks  []*task // that have not ended, in order of their start
	happen int
}

// maxHappenings bounds a simulation that never comes to its end.
const maxHappenings = 1 << 20

var (
	errStuck   = errors.New("explore: the simulation stands still: nothing is due and somebody waits")
	errEndless = fmt.Errorf("explore: the simulation has no end: more than %d things have happened", maxHappenings)
)

// after has do happen when d has passed. Things due at one instant happen in
// the order in which they were asked for.
func (k *kernel) after(d time.Duration, do func()) { k.at(k.now+d, do) }

func (k *kernel) at(when time.Duration, do func()) {
	k.issued++
	heap.Push(&k.due, appointment{when, k.issued, do})
}

// run until done.
func (k *kernel) run(done func() bool) error {
	k.settle()
	for !done() {
		if len(k.due) == 0 {
			return errStuck
		}
		if k.happen++; k.happen > maxHappenings {
			return errEndless
		}
		next := heap.Pop(&k.due).(appointment)
		k.now = next.at
		next.do()
		k.settle()
	}
	return nil
}

// settle lets every task go on whose wait is over.
func (k *kernel) settle() {
	for went := true; went; {
		went = false
		for i := 0; i < len(k.tasks); i++ { // a task may start others
			if t := k.tasks[i]; !t.over && t.ready() {
				t.resume()
				went = true
			}
		}
		k.tasks = slices.DeleteFunc(k.tasks, func(t *task) bool { return t.over })
	}
}

// end stops every task where it waits.
func (k *kernel) end() {
	for _, t := range k.tasks {
		t.kill()
	}
	k.tasks = nil
}

// task is straight code in virtual time.
type task struct {
	k      *kernel
	next   func() (struct{}, bool)
	stop   func()
	yield  func(struct{}) bool
	until  func() bool // what it waits for; nil is nothing
	limit  time.Duration
	over   bool
	killed bool
}

// errKilled unwinds the code of a task that is killed.
var errKilled = errors.New("explore: killed")

// start a task. It begins when whoever runs now waits.
func (k *kernel) start(body func(*task)) *task {
	t := &task{k: k}
	t.next, t.stop = iter.Pull(func(yield func(struct{}) bool) {
		defer func() {
			if p := recover(); p != nil && p != any(errKilled) {
				panic(p)
			}
		}()
		t.yield = yield
		body(t)
	})
	k.tasks = append(k.tasks, t)
	return t
}

func (t *task) ready() bool { return t.until == nil || t.until() || t.k.now >= t.limit }

func (t *task) resume() {
	if _, more := t.next(); !more {
		t.over = true
	}
}

// kill ends a task where it waits; deferred calls are made. A task does not kill
// itself.
func (t *task) kill() {
	if t.over || t.killed {
		return
	}
	t.over, t.killed = true, true
	t.stop()
}

// wait until done says so, or the time is over; the answer is done's.
func (t *task) wait(limit time.Duration, done func() bool) bool {
	if done() {
		return true
	}
	if limit <= t.k.now {
		return false
	}
	t.until, t.limit = done, limit
	if limit < forever {
		t.k.at(limit, func() {}) // so that somebody looks then
	}
	if !t.yield(struct{}{}) {
		panic(errKilled)
	}
	t.until = nil
	return done()
}

func never() bool { return false }

// forever is a limit that no simulation comes to.
const forever = time.Duration(1<<63 - 1)

// pause lets time pass.
func (t *task) pause(d time.Duration) { t.wait(t.k.now+d, never) }

type appointment struct {
	at    time.Duration
	order uint64
	do    func()
}

// agenda is a heap: the earliest first.
type agenda []appointment

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].order < a[j].order
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(x any)   { *a = append(*a, x.(appointment)) }
func (a *agenda) Pop() any {
	old := *a
	n := len(old) - 1
	x := old[n]
	old[n] = appointment{}
	*a = old[:n]
	return x
}
