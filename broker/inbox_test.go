package broker

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/custodymq/custody/broker/core"
	"github.com/custodymq/custody/broker/wire"
)

func testInbox(t *testing.T, sessions int, bytes int64) *inbox {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return newInbox(ctx, sessions, bytes)
}

func (b *inbox) testPeer(id core.Session) *peer {
	return &peer{id: id, inbox: b, room: make(chan struct{}, 1), freed: make(chan struct{}, 1)}
}

func ping(s core.Session) core.Input {
	return core.Input{Kind: core.Received, Session: s, Message: wire.Message{Kind: wire.Ping, Request: 1}}
}

// order records whose inputs are processed when. Each input has as many effects
// as its request number.
type order struct{ sessions []core.Session }

func (o *order) Step(in *core.Input, _ core.Instant, out []core.Effect) []core.Effect {
	o.sessions = append(o.sessions, in.Session)
	return append(out, make([]core.Effect, in.Message.Request)...)
}

// TestSessionsAreServedInTurn checks that a flood, or an input with many effects,
// delays the others only by a bounded amount.
func TestSessionsAreServedInTurn(t *testing.T) {
	for name, c := range map[string]struct {
		inputs int
		cost   uint64
		before int // maximum number of the flood's inputs before the other session's
	}{
		"many inputs":  {200, 0, quantum},
		"many effects": {20, 1000, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var o order
			cfg, err := Config{Seams: Seams{Machine: func(core.Machine) core.Machine { return &o }}}.withDefaults()
			if err != nil {
				t.Fatal(err)
			}
			s := &Server{cfg: cfg, begin: time.Now(), inbox: testInbox(t, 2, 1<<20)}
			l := newLoop(context.Background(), s, newEngine(&cfg, "m-"))
			flood, other := s.inbox.testPeer(1), s.inbox.testPeer(2)
			for range c.inputs {
				in := ping(1)
				in.Message.Request = c.cost
				flood.add(in)
			}
			other.add(ping(2))
			for _, p := range []*peer{flood, other} {
				if err := p.hand(); err != nil {
					t.Fatal(err)
				}
			}
			for l.take() {
			}
			if at := slices.Index(o.sessions, 2); at < 1 || at > c.before {
				t.Errorf("the other was served after %d inputs of the flood, want at most %d", at, c.before)
			}
			if len(o.sessions) != c.inputs+1 {
				t.Errorf("%d of %d inputs were served", len(o.sessions), c.inputs+1)
			}
		})
	}
}

func TestAReaderWaitsForRoomInItsInbox(t *testing.T) {
	b := testInbox(t, 1, 1<<20)
	p := b.testPeer(1)
	fill := func() {
		for range queuedInputs {
			p.add(ping(1))
		}
	}
	fill()
	if err := p.hand(); err != nil {
		t.Fatal(err)
	}
	fill()
	handed := make(chan error, 1)
	go func() { handed <- p.hand() }()
	got := b.next()
	if got != p {
		t.Fatalf("the turn is of %v", got)
	}
	for range 2 * queuedInputs {
		in := b.take(p)
		if in == nil { // the reader has not handed over yet
			if err := <-handed; err != nil {
				t.Fatal(err)
			}
			in = b.take(p)
		}
		if in == nil {
			t.Fatal("inputs are missing")
		}
	}
	if b.take(p) != nil {
		t.Error("more came than was said")
	}
}

// TestBytesOfAHandledInputAreFree checks that what a session's last message held is
// free for other sessions and for its own next message, although it says nothing more.
func TestBytesOfAHandledInputAreFree(t *testing.T) {
	cfg, err := Config{Seams: Seams{Machine: func(core.Machine) core.Machine { return &order{} }}}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{cfg: cfg, begin: time.Now(), inbox: testInbox(t, 100, 0)}
	l := newLoop(context.Background(), s, newEngine(&cfg, "m-"))
	defer l.timer.Stop()
	p := s.inbox.testPeer(1)
	for range 2 {
		if err := p.reserve(poolLeast - inputCost); err != nil {
			t.Fatal(err)
		}
		large := ping(1)
		large.Message.Request = quantum // it costs the session its whole turn
		p.add(large)
		if err := p.hand(); err != nil {
			t.Fatal(err)
		}
		for l.take() {
		}
		if !s.inbox.pool.TryAcquire(poolLeast) {
			t.Fatal("the input is handled, and its bytes are not free")
		}
		s.inbox.pool.Release(poolLeast)
	}
}

// TestBytesReadAheadAreBounded checks that large messages share a pool, that
// sessions which need none of it do not wait, and that what was read is handed to
// the loop before anyone waits.
func TestBytesReadAheadAreBounded(t *testing.T) {
	b := testInbox(t, 100, 0) // an allowance of leastReserve each, a pool of poolLeast
	hog, big, small := b.testPeer(1), b.testPeer(2), b.testPeer(3)
	if err := hog.reserve(poolLeast - 2*inputCost); err != nil {
		t.Fatal(err)
	}
	hog.add(ping(1))
	if err := hog.hand(); err != nil {
		t.Fatal(err)
	}
	if err := small.reserve(1000); err != nil {
		t.Fatal(err)
	}
	if err := big.reserve(1000); err != nil {
		t.Fatal(err)
	}
	big.add(ping(2))
	<-b.wake
	waited := make(chan error, 1)
	go func() { waited <- big.reserve(1 << 20) }()
	<-b.wake // it has handed over what it had read
	if p := b.next(); p != hog || b.take(p) == nil {
		t.Fatal("the first turn is the hog's")
	}
	select {
	case <-waited:
		t.Fatal("a MiB was reserved in a pool that is used up")
	default:
	}
	b.take(hog) // marks the previous input as handled
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
	if p := b.next(); p != big || b.take(p) == nil {
		t.Fatal("what it had read before it waited was not handed over")
	}
	b.take(big)
	big.leave()
	small.leave()
	if hog.bytes+big.bytes+small.bytes != 0 || !b.pool.TryAcquire(poolLeast) {
		t.Errorf("%d, %d and %d bytes were not given back", hog.bytes, big.bytes, small.bytes)
	}
}

// TestSmallMessagesDoNotWaitForThePool checks that small messages beyond the
// allowance wait for the session's own inputs to be handled, and never for the
// pool, which others may hold indefinitely.
func TestSmallMessagesDoNotWaitForThePool(t *testing.T) {
	b := testInbox(t, 100, 0) // an allowance of leastReserve each, a pool of poolLeast
	if !b.pool.TryAcquire(poolLeast) {
		t.Fatal("the pool has another size than this test thinks")
	}
	p := b.testPeer(1)
	const size = 1 << 10
	say := func() {
		if err := p.reserve(size); err != nil {
			t.Fatal(err)
		}
		p.add(ping(1))
		if err := p.hand(); err != nil {
			t.Fatal(err)
		}
	}
	full := leastReserve / (size + inputCost)
	for range full {
		say()
	}
	took := make(chan struct{})
	go func() {
		defer close(took)
		for got := 0; got < 3*full; {
			if b.next() == nil {
				<-b.wake
				continue
			}
			for b.take(p) != nil {
				got++
			}
			b.back(p)
		}
	}()
	for range 2 * full {
		say()
	}
	<-took
	if p.bytes != 0 || p.pooled != 0 {
		t.Errorf("%d bytes are left, %d of the pool", p.bytes, p.pooled)
	}
}
