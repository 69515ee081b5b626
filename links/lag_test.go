package links_test

import (
	"testing"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
)

// stuckSink blocks on the first frame.
type stuckSink struct {
	*sink
	stuck, free chan struct{}
}

func (s stuckSink) Record(e evidence.Event) uint64 {
	if e.Kind == evidence.FrameCarried {
		select {
		case s.stuck <- struct{}{}:
			<-s.free
		default:
		}
	}
	return s.sink.Record(e)
}

func TestLagIsWhatTheLinkItselfCosts(t *testing.T) {
	s := stuckSink{newSink(), make(chan struct{}, 1), make(chan struct{})}
	r := newRig(t, func(o *links.Options) { o.Sink = s })
	client, broker := r.connect()
	client.send("publish a\n")
	select {
	case <-s.stuck:
	case <-time.After(patience):
		t.Fatal("no frame was recorded")
	}
	broker.getsNothing()
	s.stuck <- struct{}{} // the next is not blocked
	close(s.free)
	broker.gets("publish a\n")
	client.send("publish b\n")
	broker.gets("publish b\n") // so that what was written before is accounted for
	if lag := r.link.Lag(); lag < silence {
		t.Errorf("a frame was kept for at least %v, and the lag is %v", silence, lag)
	}
}

func TestAFaultIsNoLag(t *testing.T) {
	r := newRig(t)
	client, broker := r.connect()
	a := r.arm(links.Strike{Action: links.Hold, Kind: "publish", Of: "b"})
	client.send(three)
	fired(t, a)
	began := time.Now()
	broker.gets("publish a\n")
	for range 10 {
		broker.getsNothing()
	}
	held := time.Since(began)
	heal(t, a)
	broker.gets("publish b\npublish c\n")
	if lag := r.link.Lag(); lag >= held {
		t.Errorf("a frame was held by a fault for %v, and the lag is %v", held, lag)
	}
}
