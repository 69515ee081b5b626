// Package tasks starts everything of the harness that runs beside something
// else. A panic in a task is a failure of the harness and ends as one: the runs
// in progress are told, close their evidence and could not measure. It never
// ends the process with Go's exit code 2, which here means inconclusive.
package tasks

import (
	"fmt"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"sync"
)

// Go runs f beside its caller.
func Go(f func()) { go Guarded(f)() }

// Guarded is f for those who start it themselves, such as a timer. A panic ends
// f and is reported.
func Guarded(f func()) func() {
	return func() {
		defer func() {
			if p := recover(); p != nil {
				Report(Panic(p))
			}
		}()
		f()
	}
}

// Panic is the error that a recovered panic is reported as.
func Panic(p any) error { return fmt.Errorf("panic: %v\n%s", p, debug.Stack()) }

// Group is a sync.WaitGroup of tasks. The zero Group is ready.
type Group struct{ wg sync.WaitGroup }

// Go runs f beside its caller.
func (g *Group) Go(f func()) { g.wg.Go(Guarded(f)) }

// Wait until all have ended.
func (g *Group) Wait() { g.wg.Wait() }

// ExitUnmeasured is the exit code of a process that could not measure.
const ExitUnmeasured = 3

var (
	mu        sync.Mutex
	listeners = map[int]func(error){}
	issued    int
)

// OnPanic has do told of every panic in a task until the function that it gives
// is called. Which run a task belongs to is not known here: all are told, since
// what one task has left undone may be missing in any of them.
func OnPanic(do func(error)) (forget func()) {
	mu.Lock()
	defer mu.Unlock()
	issued++
	id := issued
	listeners[id] = do
	return func() {
		mu.Lock()
		defer mu.Unlock()
		delete(listeners, id)
	}
}

// Report tells of a panic that was recovered elsewhere, such as in a child
// process. With nobody to tell, this process ends: it could not measure.
func Report(err error) {
	mu.Lock()
	told := slices.Collect(maps.Values(listeners))
	mu.Unlock()
	if len(told) == 0 {
		fmt.Fprintln(os.Stderr, "custody: could not measure:", err)
		os.Exit(ExitUnmeasured)
	}
	for _, do := range told {
		do(err)
	}
}
