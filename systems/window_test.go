package systems_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/tasks"
)

type delivery struct {
	systems.Delivery
	n int
}

func TestWindow(t *testing.T) {
	w, now := systems.NewWindow(2), time.Now()
	full := func(at, want time.Duration) {
		t.Helper()
		if full, until := w.Full(now.Add(at)); full != (want > 0) || full && !until.Equal(now.Add(want)) {
			t.Errorf("after %v: full is %v until %v; want %v", at, full, until.Sub(now), want)
		}
	}
	full(0, 0)
	w.Enter(delivery{n: 1}, now.Add(2*time.Second))
	full(0, 0)
	w.Enter(delivery{n: 2}, now.Add(time.Second))
	full(0, time.Second)
	w.Leave(delivery{n: 2})
	w.Leave(delivery{n: 2})
	full(0, 0)
	w.Enter(delivery{n: 3}, now.Add(3*time.Second))
	full(time.Second, 2*time.Second)
	full(2*time.Second, 0)
}

func TestWindowWait(t *testing.T) {
	w, gone := systems.NewWindow(1), make(chan struct{})
	if err := w.Wait(t.Context(), gone); err != nil {
		t.Errorf("an empty window: %v", err)
	}
	w.Enter(delivery{n: 1}, time.Now().Add(time.Hour))
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Wait(cancelled, gone); !errors.Is(err, context.Canceled) {
		t.Errorf("a full window, cancelled: %v", err)
	}
	tasks.Go(func() { w.Leave(delivery{n: 1}) })
	if err := w.Wait(t.Context(), gone); err != nil {
		t.Errorf("a place was left: %v", err)
	}
	w.Enter(delivery{n: 2}, time.Now().Add(10*time.Millisecond))
	if err := w.Wait(t.Context(), gone); err != nil {
		t.Errorf("a delivery timed out: %v", err)
	}
	w.Enter(delivery{n: 3}, time.Now().Add(time.Hour))
	close(gone)
	if err := w.Wait(t.Context(), gone); !errors.Is(err, systems.ErrDisconnected) {
		t.Errorf("the session ended: %v", err)
	}
}
