package systems

import (
	"context"
	"sync"
	"time"
)

// Window tracks the deliveries a session holds unsettled. A delivery leaves
// when it is settled, or when the system takes it back. Safe for concurrent
// use.
type Window struct {
	size int
	left chan struct{}

	mu   sync.Mutex
	open map[Delivery]time.Time // when the system takes it back
}

// NewWindow returns a window of the given size, at least one.
func NewWindow(size int) *Window {
	return &Window{size: max(size, 1), left: make(chan struct{}, 1), open: make(map[Delivery]time.Time)}
}

// Enter adds a delivery, which leaves at the given time at the latest.
func (w *Window) Enter(d Delivery, until time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open[d] = until
}

// Leave removes a delivery.
func (w *Window) Leave(d Delivery) {
	w.mu.Lock()
	delete(w.open, d)
	w.mu.Unlock()
	select {
	case w.left <- struct{}{}:
	default:
	}
}

// Wait returns nil when there is a free place, ErrDisconnected once gone is
// closed, or ctx's error. One caller at a time.
func (w *Window) Wait(ctx context.Context, gone <-chan struct{}) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for full, until := w.Full(time.Now()); full; full, until = w.Full(time.Now()) {
		timer.Reset(time.Until(until))
		select {
		case <-timer.C:
		case <-w.left:
		case <-gone:
			return ErrDisconnected
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Full reports whether the window is full, and until when at the latest.
func (w *Window) Full(now time.Time) (bool, time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var first time.Time
	for d, until := range w.open {
		switch {
		case !now.Before(until):
			delete(w.open, d)
		case first.IsZero() || until.Before(first):
			first = until
		}
	}
	return len(w.open) >= w.size, first
}
