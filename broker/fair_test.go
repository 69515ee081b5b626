package broker

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/custodymq/custody/broker/core"
	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/memory"
	"github.com/custodymq/custody/broker/wire"
)

// sharing is an engine whose sessions publish, with the order in which they are
// answered.
type sharing struct {
	t        rapid.TB
	e        *Engine
	now      time.Duration
	asked    map[core.Session]uint64 // publishes
	answered map[core.Session]uint64
}

func newSharing(t rapid.TB, sessions int) *sharing {
	held := memory.New(store.Partition{Connection: "c", Identity: "i"}, memory.Options{})
	e, err := NewEngine(Config{Store: held, Memory: 4 << 30}, "m-")
	if err != nil {
		t.Fatal(err)
	}
	s := &sharing{t: t, e: e, asked: map[core.Session]uint64{}, answered: map[core.Session]uint64{}}
	s.enter(sessions)
	e.Limit(sharedBatch, true)
	return s
}

func (s *sharing) enter(sessions int) {
	for id := core.Session(1); int(id) <= sessions; id++ {
		s.step(core.Input{Kind: core.Opened, Session: id, Message: wire.Message{Kind: wire.Hello, Request: 1, Client: "c"}})
		s.step(core.Input{Kind: core.Received, Session: id, Message: wire.Message{Kind: wire.Subscribe, Request: 1 << 40, Topic: "t", Mode: wire.AtLeastOnce}})
	}
}

func (s *sharing) step(in core.Input) {
	s.e.Step(&in, core.Instant{Wall: time.Unix(1, 0), Elapsed: s.now})
	s.e.Execute(s)
}

func (s *sharing) publish(id core.Session, size int) {
	s.asked[id]++
	s.step(core.Input{Kind: core.Received, Session: id, Message: wire.Message{
		Kind: wire.Publish, Request: s.asked[id], Topic: "t", Mode: wire.AtLeastOnce, Payload: make([]byte, size),
	}})
}

func (s *sharing) Send(to core.Session, m *wire.Message) {
	if m.Kind != wire.PublishReply {
		return
	}
	if s.answered[to]++; m.Answer != wire.Accepted || m.Request != s.answered[to] {
		s.t.Fatalf("session %d: publish %d was answered %v as number %d", to, m.Request, m.Answer, s.answered[to])
	}
}
func (s *sharing) CloseSession(id core.Session, reason string) {
	s.t.Fatalf("session %d closed: %s", id, reason)
}
func (s *sharing) Arm(time.Duration) {}

func (s *sharing) end(t *Turn) {
	s.e.Work(context.Background(), t)
	if err := s.e.End(t, core.Instant{Wall: time.Unix(1, 0), Elapsed: s.now}); err != nil {
		s.t.Fatal(err)
	}
	s.e.Execute(s)
}

// TestNoSessionWaitsForMoreThanItsShare checks that whatever the others write, who
// has a single small write waits for two turns at most, long ones aside; that a long
// write has a turn of its own; that one which may begin does; and that each session
// is answered everything, in its order.
func TestNoSessionWaitsForMoreThanItsShare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const sessions = 12
		s := newSharing(t, sessions)
		sizes := rapid.SampledFrom([]int{1, 1, 1, 1000, 100 << 10, 400 << 10, longTurn + 1, 1 << 20})
		waited := map[core.Session]int{} // short turns that a session with one small write has seen
		turns := func(long bool) bool {
			s.e.Limit(sharedBatch, long)
			turn := s.e.Begin()
			if turn == nil {
				return false
			}
			if long := turn.long; long != (len(turn.batch) == 1 && len(turn.batch[0].Row.Payload) > longTurn) {
				t.Fatalf("a turn of %d writes is long: %v", len(turn.batch), long)
			}
			if !turn.long && slices.ContainsFunc(turn.batch, func(op store.Operation) bool { return len(op.Row.Payload) > longTurn }) {
				t.Fatal("a long write shares its turn")
			}
			short := !turn.long
			s.end(turn)
			for id := range waited {
				switch {
				case s.answered[id] == s.asked[id]:
					delete(waited, id)
				case short:
					if waited[id]++; waited[id] == 2 {
						t.Fatalf("session %d with one small write waits for more than two short turns", id)
					}
				}
			}
			return true
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			id := core.Session(rapid.IntRange(1, sessions).Draw(t, "session"))
			n, size := rapid.IntRange(1, 100).Draw(t, "publishes"), sizes.Draw(t, "size")
			if size > 1000 {
				n = min(n, 4)
			}
			if n == 1 && size == 1 && s.asked[id] == s.answered[id] {
				waited[id] = 0
			} else {
				delete(waited, id)
			}
			for range n {
				s.publish(id, size)
			}
			if rapid.Bool().Draw(t, "turn") {
				turns(rapid.Bool().Draw(t, "long"))
			}
		}
		for turns(false) { // all short writes that have no long one before them
		}
		for long := true; s.e.waiting > 0; long = !long {
			before := s.e.waiting
			if !turns(long) && long || s.e.waiting > before {
				t.Fatalf("%d writes wait, and none is made", s.e.waiting)
			}
		}
		if fmt.Sprint(s.asked) != fmt.Sprint(s.answered) {
			t.Errorf("asked %v, answered %v", s.asked, s.answered)
		}
	})
}

// TestBacklogsShareTheTurns checks that sessions with more to write than a turn
// holds get on alike.
func TestBacklogsShareTheTurns(t *testing.T) {
	s := newSharing(t, 3)
	for id, size := range []int{1, 1, 8 << 10} {
		for range 1000 {
			s.publish(core.Session(id+1), size)
		}
	}
	for range 20 {
		s.end(s.e.Begin())
		if least, most := min(s.answered[1], s.answered[2], s.answered[3]), max(s.answered[1], s.answered[2], s.answered[3]); most-least > 2 {
			t.Fatalf("answered: %v", s.answered)
		}
	}
	if s.answered[1] < 20*sharedBatch/3-sharedBatch {
		t.Errorf("after 20 turns: %v", s.answered)
	}
}

// TestFewWritesMeetALongOne plays a client that publishes one small message after
// another beside one that keeps 16 payloads of 4 MiB under way, on a store that
// takes 0.3 ms for a turn and 4 ms for a MiB. Of a hundred small writes at most one
// may meet a long one; the large ones must get on; and alone they must not wait.
func TestFewWritesMeetALongOne(t *testing.T) {
	const (
		perTurn, perMiB = 300 * time.Microsecond, 4 * time.Millisecond
		between         = 200 * time.Microsecond // the client's own time
		lasting         = 3 * time.Second
		size            = 4 << 20
	)
	for name, small := range map[string]bool{"beside a small client": true, "two large ones": false} {
		t.Run(name, func(t *testing.T) {
			s := newSharing(t, 3)
			var long longWrites
			var took []time.Duration
			var asked, next time.Duration
			large := func() uint64 { return s.answered[2] + s.answered[3] }
			for s.now < lasting {
				for _, id := range []core.Session{2, 3} {
					for s.asked[id]-s.answered[id] < 8 {
						s.publish(id, size)
					}
				}
				if small && s.asked[1] == s.answered[1] && s.now >= next {
					asked = next
					s.publish(1, 1)
				}
				s.e.Limit(sharedBatch, long.wait(s.e, s.now) <= 0)
				turn := s.e.Begin()
				if turn == nil {
					s.now += 50 * time.Microsecond
					continue
				}
				turn.took = perTurn
				for _, op := range turn.batch {
					turn.took += perMiB * time.Duration(len(op.Row.Payload)) / (1 << 20)
				}
				s.now += turn.took
				long.end(turn, s.now)
				before := s.answered[1]
				s.end(turn)
				if s.answered[1] > before {
					took = append(took, s.now-asked)
					next = s.now + between
				}
			}
			mib := float64(large()*size>>20) / lasting.Seconds()
			if !small {
				if mib < 230 { // of 250 without any pause
					t.Errorf("%.0f MiB/s beside nobody who writes little", mib)
				}
				return
			}
			slices.Sort(took)
			if p99 := took[len(took)*99/100]; p99 > 10*perTurn {
				t.Errorf("the p99 of %d small writes is %v", len(took), p99)
			}
			if mib < 10 {
				t.Errorf("the large ones get %.1f MiB/s", mib)
			}
			t.Logf("%d small writes, p99 %v, max %v; %.1f MiB/s", len(took), took[len(took)*99/100], took[len(took)-1], mib)
		})
	}
}

// twoSessions is a server's loop that does not run, and two sessions that write.
func twoSessions(t *testing.T, held store.Store) (*Server, *loop, *sharing) {
	t.Helper()
	cfg, err := Config{Store: held}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{cfg: cfg, begin: time.Now(), inbox: testInbox(t, 2, 1<<20)}
	l := newLoop(t.Context(), s, newEngine(&cfg, "m-"))
	t.Cleanup(func() {
		l.timer.Stop()
		l.long.due.Stop()
	})
	writes := &sharing{t: t, e: l.engine, asked: map[core.Session]uint64{}, answered: map[core.Session]uint64{}}
	writes.enter(2)
	return s, l, writes
}

// TestDrainingMakesLongWritesToo checks that a server that ends does not leave a
// long write that was waiting for its time.
func TestDrainingMakesLongWritesToo(t *testing.T) {
	held := memory.New(store.Partition{Connection: "c", Identity: "i"}, memory.Options{})
	s, l, writes := twoSessions(t, held)
	writes.publish(1, 1<<20)
	writes.publish(2, 1<<20)
	l.engine.Limit(sharedBatch, false)
	if l.engine.Begin() != nil || !l.engine.Held() {
		t.Fatal("the long writes should wait")
	}
	s.all.Go(l.work)
	l.drain()
	close(l.turns)
	s.all.Wait()
	rows := 0
	if err := held.Load(t.Context(), 0, func(store.Row) error { rows++; return nil }); err != nil || rows != 2 {
		t.Errorf("%d rows of 2 are stored, %v", rows, err)
	}
}

// TestWhoHasMuchToWriteIsNotReadFurther checks that a session's input waits while
// many of its writes do, that another is served meanwhile, and that everything is
// written in the end.
func TestWhoHasMuchToWriteIsNotReadFurther(t *testing.T) {
	s, l, writes := twoSessions(t, memory.New(store.Partition{Connection: "c", Identity: "i"}, memory.Options{}))
	const all = 2 * waitingWrites
	flood, other := s.inbox.testPeer(1), s.inbox.testPeer(2)
	handed := make(chan error, 1)
	go func() {
		for n := uint64(1); n <= all; n++ {
			flood.add(core.Input{Kind: core.Received, Session: 1, Message: wire.Message{Kind: wire.Publish, Request: n, Topic: "t", Mode: wire.AtLeastOnce}})
			if err := flood.hand(); err != nil {
				handed <- err
				return
			}
		}
		handed <- nil
	}()
	take := func() {
		if !l.take() {
			<-s.inbox.wake
		}
		l.engine.Execute(writes)
	}
	for len(l.parked) == 0 {
		take()
	}
	if n := l.engine.Writes(1); n < waitingWrites || n > waitingWrites+roundCost {
		t.Errorf("it waits with %d writes", n)
	}
	other.add(core.Input{Kind: core.Received, Session: 2, Message: wire.Message{Kind: wire.Publish, Request: 1, Topic: "t", Mode: wire.AtLeastOnce}})
	if err := other.hand(); err != nil {
		t.Fatal(err)
	}
	for l.engine.Writes(2) == 0 {
		take()
	}
	for writes.answered[1] < all {
		turn := l.engine.Begin()
		if turn == nil {
			take()
			continue
		}
		writes.end(turn)
		l.unpark()
		l.take()
		l.engine.Execute(writes)
	}
	if err := <-handed; err != nil || writes.answered[2] != 1 {
		t.Errorf("handed over: %v; the other was answered %d times", err, writes.answered[2])
	}
}
