package systems_test

import (
	"testing"
	"time"

	"github.com/custodymq/custody/systems"
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
	<-w.Left()
	full(0, 0)
	w.Enter(delivery{n: 3}, now.Add(3*time.Second))
	full(time.Second, 2*time.Second)
	full(2*time.Second, 0)
	select {
	case <-w.Left():
		t.Error("nothing has left since")
	default:
	}
}
