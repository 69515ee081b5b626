package tasks

import (
	"context"
	"sync"
	"time"
)

// Runtime is the time and concurrency of a run: real, or simulated with virtual
// time that advances when every task waits. Code that runs in both waits only
// through it: no select on channels, no lock held across a wait.
type Runtime interface {
	Now() time.Duration // since the run began; monotonic
	Wall() time.Time    // the wall clock, which may be wrong
	// Go runs f concurrently.
	Go(f func())
	// Wait blocks until ready returns true, or returns ctx's cause. ready is
	// called after each Wake, and must have no side effects.
	Wait(ctx context.Context, ready func() bool) error
	// Wake must be called after changing what a ready function reads.
	Wake()
	// Sleep returns nil after d, or ctx's cause.
	Sleep(ctx context.Context, d time.Duration) error
	// Timeout is context.WithTimeout in the runtime's time.
	Timeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc)
}

// Real is real time. Safe for concurrent use.
type Real struct {
	now func() time.Duration

	mu      sync.Mutex
	changed chan struct{} // closed and replaced by each Wake
}

// NewReal returns a Runtime whose Now is now.
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
