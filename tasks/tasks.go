// Package tasks starts every goroutine of the harness. A panic in one is a
// failure of the harness: the runs in progress are notified, close their
// evidence and end as not measured. It never ends the process with Go's exit
// code 2, which here means inconclusive.
package tasks

import (
	"fmt"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"sync"
)

// Go runs f concurrently.
func Go(f func()) { go Guarded(f)() }

// Guarded wraps f, for callers that start it themselves (such as timers), to
// report a panic.
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

// Panic converts a recovered panic to an error.
func Panic(p any) error { return fmt.Errorf("panic: %v\n%s", p, debug.Stack()) }

// Group is a sync.WaitGroup of tasks. The zero Group is ready for use.
type Group struct{ wg sync.WaitGroup }

// Go runs f concurrently.
func (g *Group) Go(f func()) { g.wg.Go(Guarded(f)) }

// Wait blocks until all tasks have ended.
func (g *Group) Wait() { g.wg.Wait() }

// ExitUnmeasured is the exit code of a process that could not measure.
const ExitUnmeasured = 3

var (
	mu        sync.Mutex
	listeners = map[int]func(error){}
	issued    int
)

// OnPanic registers do to be called with every panic in a task, until forget is
// called. All runs are notified, because it is unknown which of them the task
// belongs to.
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

// Report notifies of a panic recovered elsewhere, such as in a child process.
// With no listener it exits the process as not measured.
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
