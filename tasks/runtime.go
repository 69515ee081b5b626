package tasks

import (
	"context"
	"sync"
	"time"
)

// Runtime is the world that a run happens in, as far as anybody waits in it:
// the machine's, or a simulated one in which time passes when nothing else is
// left to do. Code that runs in both waits through it alone; it never selects
// on a channel, nor holds a lock while it waits.
type Runtime interface {
	Now() time.Duration // since the run began; only moves forward
	Wall() time.Time    // the world's clock, which may be wrong
	// Go runs f beside its caller.
	Go(f func())
	// Wait returns when ready says so, or ctx's cause when that ends first.
	// ready is called again after each Wake, or whenever something has happened;
	// it changes nothing.
	Wait(ctx context.Context, ready func() bool) error
	// Wake tells that something which a ready function reads has changed.
	Wake()
	// Sleep lets time pass: nil after d, ctx's cause when that ends first.
	Sleep(ctx context.Context, d time.Duration) error
	// Timeout is context.WithTimeout in this world's time.
	Timeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc)
}

// Real is the machine's own world. Safe for concurrent use.
type Real struct {
	now func() time.Duration

	mu      sync.Mutex
	changed chan struct{} // closed and replaced at every Wake
}

// NewReal has its time from now.
func NewReal(now func() time.Duration) *Real {
	return &Real{now: now, changed: make(chan struct{})}
}

func (r *Real) Now() time.Duration { return r.now() }

func (r *Real) Wall() time.Time { return time.Now() }

func (r *Real) Go(f func()) { Go(f) }

func (r *Real) Wake() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *Real) Wait(ctx context.Context, ready func() bool) error {
	for {
		r.mu.Lock()
		changed := r.changed
		r.mu.Unlock()
		if ready() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (r *Real) Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (r *Real) Timeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d)
}
