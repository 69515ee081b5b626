package conformance

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/tasks"
)

// Finding is what one obligation showed.
type Finding struct {
	Obligation string
	Wrong      []string // empty: it is met
	Skipped    string   // why it does not apply; empty: it was checked
}

// Findings checks all obligations, each within a bound, and tells of each as it
// is known, until ctx ends. An error is one of this machine, not of the adapter.
func Findings(ctx context.Context, s systems.System, within time.Duration, tell func(Finding)) error {
	dir, err := os.MkdirTemp("", "custody-check-")
	if err != nil {
		return fmt.Errorf("conformance: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for i, o := range obligations {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		c := &collector{}
		private := filepath.Join(dir, strconv.Itoa(i))
		if err := os.Mkdir(private, 0o700); err != nil {
			return fmt.Errorf("conformance: %w", err)
		}
		var one tasks.Group
		one.Go(func() { o.Check(c, s, private, within, nil) }) // it may end its goroutine
		one.Wait()
		tell(Finding{o.Name, c.wrong, c.skipped})
	}
	return nil
}

// collector is a T that keeps what it is told. Safe for concurrent use.
type collector struct {
	mu      sync.Mutex
	wrong   []string
	skipped string
}

func (c *collector) Helper() {}

func (c *collector) Error(args ...any) { c.add(fmt.Sprint(args...)) }

func (c *collector) Errorf(format string, args ...any) { c.add(fmt.Sprintf(format, args...)) }

func (c *collector) add(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wrong = append(c.wrong, text)
}

func (c *collector) Fatal(args ...any) {
	c.Error(args...)
	runtime.Goexit()
}

func (c *collector) Fatalf(format string, args ...any) {
	c.Errorf(format, args...)
	runtime.Goexit()
}

func (c *collector) Skip(args ...any) { c.skip(fmt.Sprint(args...)) }

func (c *collector) Skipf(format string, args ...any) { c.skip(fmt.Sprintf(format, args...)) }

func (c *collector) skip(why string) {
	c.mu.Lock()
	c.skipped = why
	c.mu.Unlock()
	runtime.Goexit()
}
