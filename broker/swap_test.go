package broker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/custodymq/custody/broker"
	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/handover"
	"github.com/custodymq/custody/broker/store/memory"
	"github.com/custodymq/custody/broker/store/sqlite"
	"github.com/custodymq/custody/broker/wire"
)

// files opens stores in files of their own, by the names of their connections.
func files(dir string) handover.Opener {
	return func(ctx context.Context, connection string) (store.Store, error) {
		if strings.ContainsAny(connection, "?") {
			return nil, fmt.Errorf("no connection is named %q", connection)
		}
		return sqlite.Open(ctx, sqlite.Options{Path: filepath.Join(dir, connection+".db"), Partition: store.Partition{Connection: connection, Identity: "i"}})
	}
}

// TestSwapUnderLoad publishes and acknowledges while the store is swapped, or the
// swap ends at a step. Whatever was accepted and not acknowledged is in the store
// that is in charge then, once and in order.
func TestSwapUnderLoad(t *testing.T) {
	for _, ended := range []string{"", "before: mark the target", "after: empty the target", "after: copy a batch", "after: mark the copy complete",
		"before: hand over", "after: hand over", "before: put the target in charge"} {
		t.Run("ended "+ended, func(t *testing.T) {
			connect := files(t.TempDir())
			rows, err := connect(within(t), "old")
			if err != nil {
				t.Fatal(err)
			}
			defer rows.Close()
			cfg := broker.Config{Store: rows, Connect: connect}
			cfg.Seams.Swap = func(step string) error {
				if step == ended {
					return errors.New("it ends here")
				}
				return nil
			}
			s := start(t, cfg)
			load := newLoad(t, s)
			load.publish(80)
			reply, err := dial(t, s, "administrator").Admin(within(t), "swap", "new")
			in, want := "old", wire.Refused
			switch ended {
			case "", "before: put the target in charge": // too late to matter
				in, want = "new", wire.Accepted
			case "after: hand over": // and the broker does not know
				in, want = "new", wire.Unknown
			}
			if err != nil || reply.Answer != want {
				t.Fatalf("the swap: %+v, %v", reply, err)
			}
			if want == wire.Accepted {
				var view broker.SwapView
				if err := json.Unmarshal(reply.Payload, &view); err != nil || view.From != "old@i" || view.To != "new@i" || view.Pending == 0 {
					t.Errorf("the answer is %s, %v", reply.Payload, err)
				}
			}
			if want == wire.Unknown {
				if err := s.Wait(); !errors.Is(err, handover.ErrDoubt) {
					t.Errorf("the broker ended with %v", err)
				}
			} else {
				load.publish(40)
			}
			load.end()
			stop(t, s)
			rows.Close()
			left, err := handover.Open(within(t), connect, "old")
			if err != nil {
				t.Fatal(err)
			}
			defer left.Close()
			if got := left.Partition().Connection; got != in {
				t.Errorf("%s is in charge, want %s", got, in)
			}
			load.check(left)
			for _, name := range []string{"old", "new"} {
				if name == in {
					continue
				}
				other, err := connect(within(t), name)
				if err != nil {
					t.Fatal(err)
				}
				defer other.Close()
				served, err := broker.Open(within(t), broker.Config{Store: other})
				if err == nil {
					stop(t, served)
				}
				if some := rowsOf(t, other); len(some) > 0 && err == nil {
					t.Errorf("%s is served too, with %d rows", name, len(some))
				}
			}
		})
	}
}

// load is two producers, a consumer that acknowledges, and one that does not.
type load struct {
	t         *testing.T
	s         *broker.Server
	all       sync.WaitGroup
	producers sync.WaitGroup
	ctx       context.Context
	cancel    context.CancelFunc
	mu        sync.Mutex
	accepted  []string
	asked     map[string]bool
	acked     map[string]bool
	doubtful  map[string]bool // acknowledged, without an answer
	runs      int             // of a producer's publishes, each in order
}

func newLoad(t *testing.T, s *broker.Server) *load {
	l := &load{t: t, s: s, asked: map[string]bool{}, acked: map[string]bool{}, doubtful: map[string]bool{}}
	l.ctx, l.cancel = context.WithCancel(within(t))
	t.Cleanup(l.cancel)
	silent := subscribe(t, dial(t, s, "silent"), "orders", wire.AtLeastOnce, 300)
	l.all.Go(func() {
		for {
			if _, err := silent.Receive(l.ctx); err != nil {
				return
			}
		}
	})
	sub := subscribe(t, dial(t, s, "consumer"), "orders", wire.AtLeastOnce, 4)
	l.all.Go(func() {
		for {
			d, err := sub.Receive(l.ctx)
			if err != nil {
				return
			}
			reply, err := d.Ack(l.ctx)
			l.mu.Lock()
			l.doubtful[d.BusinessID] = err != nil
			l.acked[d.BusinessID] = err == nil && reply.Answer == wire.Accepted
			l.mu.Unlock()
		}
	})
	return l
}

// publish begins n publishes of each producer, which end on their own; some are
// answered when it returns.
func (l *load) publish(n int) {
	for range 2 {
		run := 'a' + rune(l.runs)
		l.runs++
		conn := dial(l.t, l.s, fmt.Sprintf("producer-%c", run))
		some := make(chan struct{})
		l.producers.Go(func() {
			for i := range n {
				id := fmt.Sprintf("%c-%05d", run, i)
				l.mu.Lock()
				l.asked[id] = true
				l.mu.Unlock()
				call, err := conn.Publish(l.ctx, order(id))
				if err != nil {
					break
				}
				reply, err := call.Wait(l.ctx)
				if err != nil {
					break
				}
				if reply.Answer != wire.Accepted {
					l.t.Errorf("publish %s: %+v", id, reply)
				}
				l.mu.Lock()
				l.accepted = append(l.accepted, id)
				l.mu.Unlock()
				if i == n/2 {
					close(some)
				}
			}
			select {
			case <-some:
			default:
				close(some)
			}
		})
		<-some
	}
}

// end waits for the publishes, and then ends the sessions.
func (l *load) end() {
	l.producers.Wait()
	l.cancel()
	l.all.Wait()
}

func rowsOf(t *testing.T, s store.Store) (rows []store.Row) {
	t.Helper()
	err := s.Rows(within(t), store.Selection{State: store.Pending, Content: true}, func(r store.Row) error {
		rows = append(rows, r)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

func (l *load) check(s store.Store) {
	l.t.Helper()
	there := map[string]bool{}
	last := map[string]string{}
	for _, r := range rowsOf(l.t, s) {
		id := r.BusinessID
		switch {
		case there[id]:
			l.t.Errorf("%s is stored twice", id)
		case !l.asked[id]:
			l.t.Errorf("%s was never published", id)
		case string(r.Payload) != "payload of "+id:
			l.t.Errorf("%s has the payload %q", id, r.Payload)
		case id < last[id[:1]]:
			l.t.Errorf("%s stands behind %s", id, last[id[:1]])
		}
		there[id], last[id[:1]] = true, id
	}
	for _, id := range l.accepted {
		if !there[id] && !l.acked[id] && !l.doubtful[id] {
			l.t.Errorf("%s was accepted, and is lost", id)
		}
	}
	if len(l.accepted) == 0 || len(there) == 0 {
		l.t.Errorf("%d accepted, %d rows: it shows nothing", len(l.accepted), len(there))
	}
}

func TestSwapsThatAreRefused(t *testing.T) {
	connect := files(t.TempDir())
	rows, err := connect(within(t), "old")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	open := func(ctx context.Context, name string) (store.Store, error) {
		if name == "memory" {
			return memory.New(store.Partition{Connection: name, Identity: "i"}, memory.Options{}), nil
		}
		return connect(ctx, name)
	}
	s := start(t, broker.Config{Store: rows, Connect: open})
	admin := dial(t, s, "administrator")
	for to, why := range map[string]string{"none?": "no connection is named", "memory": "ends with its process", "old": "owned by"} {
		reply, err := admin.Admin(within(t), "swap", to)
		if err != nil || reply.Answer != wire.Refused || !strings.Contains(reply.Reason, why) {
			t.Errorf("to %s: %+v, %v", to, reply, err)
		}
	}
	for name, cfg := range map[string]broker.Config{"no connections": {Store: newStore()}, "no store": {}} {
		reply, err := dial(t, start(t, cfg), "administrator").Admin(within(t), "swap", "new")
		if err != nil || reply.Answer != wire.Refused {
			t.Errorf("%s: %+v, %v", name, reply, err)
		}
	}
	// There and back: the place from which they came may have them again.
	for _, to := range []string{"new", "old", "new"} {
		for { // the store before is closed in its own time
			reply, err := admin.Admin(within(t), "swap", to)
			if err == nil && reply.Answer == wire.Refused && strings.Contains(reply.Reason, "still being closed") {
				continue
			}
			if err != nil || reply.Answer != wire.Accepted {
				t.Fatalf("to %s: %+v, %v", to, reply, err)
			}
			break
		}
	}
	// The last one serves.
	sub := subscribe(t, dial(t, s, "c"), "orders", wire.AtLeastOnce, 1)
	publish(t, admin, order("order-1"))
	ack(t, receive(t, sub), wire.Accepted)
	if reply, err := admin.Lookup(within(t), "order-1", 1); err != nil || reply.Answer != wire.Settled {
		t.Errorf("lookup: %+v, %v", reply, err)
	}
}
