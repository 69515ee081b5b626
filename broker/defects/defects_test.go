package defects_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/custodymq/custody/broker"
	"github.com/custodymq/custody/broker/client"
	"github.com/custodymq/custody/broker/core"
	"github.com/custodymq/custody/broker/defects"
	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/handover"
	"github.com/custodymq/custody/broker/store/memory"
	"github.com/custodymq/custody/broker/transport"
	"github.com/custodymq/custody/broker/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a broker with a producer, on a store that can be held and made to fail.
type rig struct {
	t         *testing.T
	ctx       context.Context
	cfg       broker.Config
	rows      *strikable
	neighbour store.Store
	server    *broker.Server
	producer  *client.Conn
}

type strikable struct {
	store.Store
	fail atomic.Bool
	lose atomic.Bool // the answer
	old  atomic.Bool // every row is of an older payload version
	hold atomic.Pointer[chan struct{}]
}

func (s *strikable) Apply(ctx context.Context, batch []store.Operation) error {
	if hold := s.hold.Load(); hold != nil {
		<-*hold
	}
	if s.fail.Load() {
		return &store.Failure{NotWritten: true, Err: errors.New("disk full")}
	}
	err := s.Store.Apply(ctx, batch)
	if s.lose.Load() {
		return &store.Failure{Err: errors.New("no answer")}
	}
	return err
}

func (s *strikable) Reestablish(ctx context.Context) (bool, error) {
	return s.Store.(store.Certifier).Reestablish(ctx)
}

func (s *strikable) Load(ctx context.Context, settled int, fn func(store.Row) error) error {
	return s.Store.Load(ctx, settled, s.aged(fn))
}

func (s *strikable) Rows(ctx context.Context, selection store.Selection, fn func(store.Row) error) error {
	state := selection.State
	if state == store.RefusedVersion {
		selection.State = store.Pending
	}
	return s.Store.Rows(ctx, selection, func(row store.Row) error {
		return s.aged(func(row store.Row) error {
			if state != 0 && row.State != state {
				return nil
			}
			return fn(row)
		})(row)
	})
}

func (s *strikable) Content(ctx context.Context, ids []string, fn func(store.Row) error) error {
	if s.old.Load() {
		return nil
	}
	return s.Store.Content(ctx, ids, fn)
}

// aged shows the rows as those of an older payload version.
func (s *strikable) aged(fn func(store.Row) error) func(store.Row) error {
	return func(row store.Row) error {
		if s.old.Load() {
			row.Version = wire.OldestVersion - 1
			row = store.Refuse(row)
		}
		return fn(row)
	}
}

func newRig(t *testing.T, defect string) *rig {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	r := &rig{
		t: t, ctx: ctx, rows: &strikable{Store: memory.New(store.Partition{Connection: "b", Identity: "one"}, memory.Options{})},
		neighbour: memory.New(store.Partition{Connection: "b", Identity: "two"}, memory.Options{}),
	}
	r.cfg = broker.Config{
		Store: r.rows, MaxAttempts: 3, VisibilityTimeout: time.Minute, Backoff: core.Backoff{Base: time.Millisecond, Max: time.Millisecond},
		ExpiryInterval: 10 * time.Millisecond, StoreRetry: time.Millisecond,
	}
	if defect != "" {
		if err := defects.Apply(defect, &r.cfg, defects.Options{Neighbour: r.neighbour}); err != nil {
			t.Fatal(err)
		}
	}
	r.start()
	t.Cleanup(r.stop)
	return r
}

func (r *rig) start() {
	var err error
	if r.server, err = broker.Open(r.ctx, r.cfg); err != nil {
		r.t.Fatal(err)
	}
	r.producer = r.dial()
}

func (r *rig) stop() {
	if err := r.server.Close(r.ctx); err != nil {
		r.t.Error(err)
	}
}

func (r *rig) restart() {
	r.stop()
	r.start()
}

func (r *rig) dial() *client.Conn {
	c, err := client.Dial(r.ctx, r.server.Addr(), client.Options{})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	return c
}

func (r *rig) subscribe(mode wire.Mode, window int) *client.Subscription {
	return r.subscribeTo("#", mode, window)
}

func (r *rig) subscribeTo(topic string, mode wire.Mode, window int) *client.Subscription {
	sub, err := r.dial().Subscribe(r.ctx, client.Filter{Topic: topic, Mode: mode, Window: window})
	if err != nil {
		r.t.Fatal(err)
	}
	return sub
}

func order(n int) wire.Message {
	return wire.Message{Topic: "orders", Mode: wire.AtLeastOnce, BusinessID: fmt.Sprint("order-", n), Payload: []byte("x")}
}

func (r *rig) publish(m wire.Message) wire.Message {
	call, err := r.producer.Publish(r.ctx, m)
	if err != nil {
		r.t.Fatal(err)
	}
	reply, err := call.Wait(r.ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	return reply
}

func (r *rig) receive(sub *client.Subscription) *client.Delivery {
	d, err := sub.Receive(r.ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	return d
}

func (r *rig) ack(d *client.Delivery) wire.Message {
	reply, err := d.Ack(r.ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	return reply
}

func (r *rig) nack(d *client.Delivery) {
	if _, err := d.Nack(r.ctx, client.Rejection{Reason: "no"}); err != nil {
		r.t.Fatal(err)
	}
}

// arrives reports whether a delivery arrives. It does not wait for silence: a
// later message, delivered to the same subscription after anything before it,
// serves as a fence.
func (r *rig) arrives(sub *client.Subscription) bool {
	if reply := r.publish(order(999)); reply.Answer != wire.Accepted {
		r.t.Fatalf("fence: %+v", reply)
	}
	return r.receive(sub).BusinessID != "order-999"
}

func (r *rig) count(s store.Store, state store.State) (n int) {
	err := s.Rows(r.ctx, store.Selection{}, func(row store.Row) error {
		if row.State == state {
			n++
		}
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

// flushed waits until the store has done everything requested of it, using an
// inspection as a barrier.
func (r *rig) flushed() {
	if _, err := r.producer.Admin(r.ctx, "rows", ""); err != nil {
		r.t.Fatal(err)
	}
}

// until waits for a condition of the store.
func (r *rig) until(what func() bool) {
	for !what() {
		if r.ctx.Err() != nil {
			r.t.Fatal("the condition never held")
		}
		r.flushed()
	}
}

// patience is how many round trips to the broker a probe waits for an event that
// occurs only with the defect, or only without it: a busy machine slows the round
// trips as much as the event.
const patience = 1000

// soon waits for a condition, with patience.
func (r *rig) soon(what func() bool) bool {
	for range patience {
		if what() {
			return true
		}
		r.stats()
	}
	return false
}

func (r *rig) stats() string {
	reply, err := r.producer.Admin(r.ctx, "stats", "")
	if err != nil {
		r.t.Fatal(err)
	}
	return string(reply.Payload)
}

// probes detect the defect of their name: they return true with it and false
// without.
var probes = map[string]func(r *rig) bool{
	"accept-before-persist": func(r *rig) bool {
		r.subscribe(wire.AtLeastOnce, 0)
		hold := make(chan struct{})
		r.rows.hold.Store(&hold)
		call, err := r.producer.Publish(r.ctx, order(1))
		if err != nil {
			r.t.Fatal(err)
		}
		early := r.soon(func() bool {
			select {
			case <-call.Done():
				return true
			default:
				return false
			}
		})
		r.rows.hold.Store(nil)
		close(hold)
		call.Wait(r.ctx)
		return early
	},
	"persist-fails-but-accepted": func(r *rig) bool {
		r.subscribe(wire.AtLeastOnce, 0)
		r.rows.fail.Store(true)
		reply := r.publish(order(1))
		r.rows.fail.Store(false)
		return reply.Answer == wire.Accepted
	},
	"duplicate-id-second-row": func(r *rig) bool {
		r.subscribe(wire.AtLeastOnce, 0)
		m := order(1)
		m.MessageID = "chosen"
		r.publish(m)
		if reply := r.publish(m); reply.MessageID != "chosen" || !reply.Again {
			r.t.Errorf("the second answer: %+v", reply)
		}
		return r.count(r.rows, store.Pending) == 2
	},
	"declined-but-stored": func(r *rig) bool {
		reply := r.publish(order(1))
		r.flushed()
		return reply.Answer == wire.Declined && r.count(r.rows, store.Pending) == 1
	},
	"declined-but-delivered": func(r *rig) bool {
		declined := r.publish(order(1)).Answer == wire.Declined
		return declined && r.arrives(r.subscribe(wire.AtLeastOnce, 5))
	},
	"payload-truncated": func(r *rig) bool {
		sub := r.subscribe(wire.AtLeastOnce, 1)
		m := order(1)
		m.Payload = bytes.Repeat([]byte("0123456789"), 1000)
		r.publish(m)
		return len(r.receive(sub).Payload) != len(m.Payload)
	},
	"ttl-wrong-unit": func(r *rig) bool {
		r.subscribe(wire.AtLeastOnce, 0)
		m := order(1)
		m.TTL = 10 * time.Minute
		r.publish(m)
		r.server.SetClockOffset(9 * time.Minute)
		return !r.arrives(r.subscribe(wire.AtLeastOnce, 5))
	},
	"expired-delivered": func(r *rig) bool {
		r.subscribe(wire.AtLeastOnce, 0)
		m := order(1)
		m.TTL = 10 * time.Minute
		r.publish(m)
		r.server.SetClockOffset(11 * time.Minute)
		return r.arrives(r.subscribe(wire.AtLeastOnce, 5))
	},
	"delivery-to-all-competitors": func(r *rig) bool {
		one, two := r.subscribe(wire.AtLeastOnce, 1), r.subscribe(wire.AtLeastOnce, 1)
		r.publish(order(1))
		r.publish(order(2))
		a, b := r.receive(one), r.receive(two)
		return a.MessageID == b.MessageID && !a.Again && !b.Again
	},
	"ack-before-processed-deletes": func(r *rig) bool {
		sub := r.subscribe(wire.AtLeastOnce, 1)
		r.publish(order(1))
		d := r.receive(sub)
		r.flushed()
		gone := r.count(r.rows, store.Pending) == 0
		if reply := r.ack(d); reply.Answer != wire.Accepted {
			r.t.Errorf("the ACK: %+v", reply)
		}
		return gone
	},
	"redelivery-with-new-id": func(r *rig) bool {
		first, again := r.redeliver()
		if reply := r.ack(again); reply.Answer != wire.Accepted {
			r.t.Errorf("the ACK: %+v", reply)
		}
		return first.MessageID != again.MessageID
	},
	"redelivery-without-mark": func(r *rig) bool {
		_, again := r.redeliver()
		if reply := r.ack(again); reply.Answer != wire.Accepted {
			r.t.Errorf("the ACK: %+v", reply)
		}
		return !again.Again && again.Attempt == 1
	},
	"no-redelivery-after-disconnect": func(r *rig) bool {
		lost := r.dial()
		sub, err := lost.Subscribe(r.ctx, client.Filter{Topic: "#", Mode: wire.AtLeastOnce, Window: 1})
		if err != nil {
			r.t.Fatal(err)
		}
		r.publish(order(1))
		r.receive(sub)
		lost.Close()
		other := r.subscribe(wire.AtLeastOnce, 5)
		if !r.soon(func() bool { return strings.Contains(r.stats(), `"sessions":2`) }) {
			return true // the lost one is still there
		}
		return r.receive(other).BusinessID != "order-1"
	},
	"attempts-unbounded": func(r *rig) bool {
		sub := r.subscribe(wire.AtLeastOnce, 1)
		r.publish(order(1))
		for range 3 {
			r.nack(r.receive(sub))
		}
		fourth := false
		r.until(func() bool {
			stats := r.stats()
			fourth = strings.Contains(stats, `"delivered":4`)
			return fourth || strings.Contains(stats, `"deadLettered":1`)
		})
		return fourth
	},
	"dead-letter-lost": func(r *rig) bool {
		sub := r.subscribe(wire.AtLeastOnce, 1)
		r.publish(order(1))
		for range 3 {
			r.nack(r.receive(sub))
		}
		r.until(func() bool { return strings.Contains(r.stats(), `"deadLettered":1`) })
		r.flushed()
		return r.count(r.rows, store.Dead) == 0
	},
	"ack-never-deletes": func(r *rig) bool {
		sub := r.subscribe(wire.AtLeastOnce, 1)
		r.publish(order(1))
		r.ack(r.receive(sub))
		r.flushed()
		return r.count(r.rows, store.Pending) == 1
	},
	"lookup-absent-for-stored": func(r *rig) bool {
		r.subscribe(wire.AtLeastOnce, 0)
		r.publish(order(1))
		reply, err := r.producer.Lookup(r.ctx, "order-1", time.Minute)
		if err != nil {
			r.t.Fatal(err)
		}
		return reply.Answer == wire.NotSeen
	},
	"lookup-settled-for-stored": func(r *rig) bool {
		r.subscribe(wire.AtLeastOnce, 0)
		r.publish(order(1))
		reply, err := r.producer.Lookup(r.ctx, "order-1", time.Minute)
		if err != nil {
			r.t.Fatal(err)
		}
		return reply.Answer == wire.Settled
	},
	"nack-served-at-once": func(r *rig) bool {
		sub := r.subscribe(wire.AtLeastOnce, 1)
		r.publish(order(1))
		if _, err := r.receive(sub).Nack(r.ctx, client.Rejection{Delay: time.Hour}); err != nil {
			r.t.Fatal(err)
		}
		return r.soon(func() bool { return strings.Contains(r.stats(), `"redelivered":1`) })
	},
	"malformed-endured": func(r *rig) bool {
		nc, err := net.Dial("tcp", r.server.Addr())
		if err != nil {
			r.t.Fatal(err)
		}
		defer nc.Close()
		conn, err := transport.Connect(nc, transport.Options{Handshake: time.Minute, Silence: time.Minute, Write: time.Minute, Heartbeat: time.Minute, Queue: 1 << 20})
		if err != nil {
			r.t.Fatal(err)
		}
		hello, err := wire.AppendHead(nil, &wire.Message{Kind: wire.Hello, Request: 1, Client: "c"})
		if err != nil {
			r.t.Fatal(err)
		}
		say := append(append([]byte{1, byte(len(hello))}, hello...), 0, 0)
		say = append(say, bytes.Repeat([]byte{1, 1, 'x', 0, 0}, 17)...)
		if _, err := nc.Write(say); err != nil {
			r.t.Fatal(err)
		}
		for errors := 0; errors < 17; {
			m, err := conn.Receive()
			if err != nil {
				return false
			}
			if m.Kind == wire.Error {
				errors++
			}
		}
		return true
	},
	"unexpired-purged": func(r *rig) bool {
		r.subscribe(wire.AtLeastOnce, 0)
		r.publish(order(1))
		r.purged()
		return r.count(r.rows, store.Pending) == 0
	},
	"expiry-purges-other-partition": func(r *rig) bool {
		row := store.Row{MessageID: "theirs", Topic: "orders", Version: wire.Version, ExpiresAt: time.Now().Add(-time.Hour)}
		if err := r.neighbour.Apply(r.ctx, []store.Operation{{Kind: store.Insert, Row: row}}); err != nil {
			r.t.Fatal(err)
		}
		r.subscribe(wire.AtLeastOnce, 0)
		r.purged()
		return r.soon(func() bool { return r.count(r.neighbour, store.Pending) == 0 })
	},
	"pending-forgotten-on-restart": func(r *rig) bool {
		r.subscribe(wire.AtLeastOnce, 0)
		r.publish(order(1))
		r.restart()
		return !r.arrives(r.subscribe(wire.AtLeastOnce, 5))
	},
	"store-swap-loses-pending": func(r *rig) bool {
		spare := r.spare()
		r.cfg.Connect = func(context.Context, string) (store.Store, error) { return spare, nil }
		r.restart()
		r.waiting(6)
		if reply, err := r.producer.Admin(r.ctx, "swap", "spare"); err != nil || reply.Answer != wire.Accepted {
			r.t.Fatalf("swap: %+v, %v", reply, err)
		}
		return r.count(spare, store.Pending) < 6
	},
	"backup-lacks-rows": func(r *rig) bool {
		spare := r.spare()
		r.cfg.Connect = func(context.Context, string) (store.Store, error) { return kept{spare}, nil }
		r.restart()
		r.waiting(6)
		if reply, err := r.producer.Admin(r.ctx, "backup", "spare"); err != nil || reply.Answer != wire.Accepted {
			r.t.Fatalf("backup: %+v, %v", reply, err)
		}
		return r.count(spare, store.Pending) < 6
	},
	"migration-forgets-rows": func(r *rig) bool {
		r.waiting(6)
		spare, source := r.spare(), store.Store(r.rows)
		if r.cfg.Seams.Store != nil {
			source = r.cfg.Seams.Store(source)
		}
		if _, err := handover.Migrate(r.ctx, source, spare); err != nil {
			r.t.Fatal(err)
		}
		return r.count(spare, store.Pending) < 6
	},
	"replay-out-of-order": func(r *rig) bool {
		r.subscribe(wire.AtLeastOnce, 0)
		r.publish(order(1))
		r.publish(order(2))
		r.restart()
		return r.receive(r.subscribe(wire.AtLeastOnce, 5)).BusinessID != "order-1"
	},
	"backlog-unreadable": func(r *rig) bool {
		r.subscribe(wire.AtLeastOnce, 0)
		r.publish(order(1))
		r.stop()
		again, err := broker.Open(r.ctx, r.cfg)
		if err == nil {
			r.server = again // the rig stops it
		}
		return err != nil
	},
	"uncertain-commit-called-absent": func(r *rig) bool {
		r.subscribe(wire.AtLeastOnce, 0)
		r.rows.lose.Store(true)
		reply := r.publish(order(1))
		r.rows.lose.Store(false)
		return reply.Answer == wire.Rejected && r.count(r.rows, store.Pending) == 1
	},
	"settled-ids-forgotten": func(r *rig) bool {
		sub := r.subscribe(wire.AtLeastOnce, 1)
		m := order(1)
		m.MessageID = "chosen"
		r.publish(m)
		r.ack(r.receive(sub))
		r.restart()
		r.subscribe(wire.AtLeastOnce, 0)
		return !r.publish(m).Again
	},
	"expiry-read-as-settled": func(r *rig) bool {
		r.subscribe(wire.AtLeastOnce, 0)
		m := order(1)
		m.TTL = time.Millisecond
		r.publish(m)
		ended := func(as wire.Answer) func() bool {
			return func() bool {
				reply, err := r.producer.Lookup(r.ctx, m.BusinessID, time.Minute)
				return err == nil && reply.Answer == as
			}
		}
		if !r.soon(ended(wire.Forgotten)) || !r.soon(func() bool { return r.count(r.rows, store.SettledMarker) == 1 }) {
			r.t.Fatal("it has not expired")
		}
		r.restart()
		return ended(wire.Settled)()
	},
	"attempts-not-stored": func(r *rig) bool {
		r.publishTo(r.subscribe(wire.AtLeastOnce, 1))
		r.restart()
		return !r.receive(r.subscribe(wire.AtLeastOnce, 1)).Again
	},
	"history-replayed-as-pending": func(r *rig) bool {
		r.ack(r.publishTo(r.subscribe(wire.AtLeastOnce, 1)))
		r.restart()
		return r.arrives(r.subscribe(wire.AtLeastOnce, 5))
	},
	"upgrade-forgets-rows": func(r *rig) bool {
		r.subscribe(wire.AtLeastOnce, 0)
		r.publish(order(1))
		r.publish(order(2))
		r.restart()
		return r.count(r.rows, store.Pending) < 2
	},
	"old-payload-misread": func(r *rig) bool {
		r.subscribe(wire.AtLeastOnce, 0)
		r.publish(order(1))
		r.stop()
		r.rows.old.Store(true)
		r.start()
		misread := strings.Contains(r.stats(), `"refusedRows":0`)
		r.rows.old.Store(false)
		return misread
	},
	"falls-back-to-another-partition": func(r *rig) bool {
		row := store.Row{MessageID: "theirs", Topic: "orders", Version: wire.Version, InsertedAt: time.Now(), ExpiresAt: time.Now().Add(time.Hour)}
		if err := r.neighbour.Apply(r.ctx, []store.Operation{{Kind: store.Insert, Row: row}}); err != nil {
			r.t.Fatal(err)
		}
		r.restart()
		return r.arrives(r.subscribe(wire.AtLeastOnce, 5))
	},
	"memory-taken-for-durable": func(r *rig) bool {
		r.subscribe(wire.AtLeastOnce, 0)
		r.publish(order(1))
		r.restart()
		return !r.arrives(r.subscribe(wire.AtLeastOnce, 5))
	},
	"headers-lost-on-restart": func(r *rig) bool {
		r.subscribe(wire.AtLeastOnce, 0)
		m := order(1)
		m.Headers = map[string]string{"colour": "red"}
		r.publish(m)
		r.restart()
		return r.receive(r.subscribe(wire.AtLeastOnce, 1)).Headers["colour"] != "red"
	},
	"ttl-begins-again-on-restart": func(r *rig) bool {
		r.subscribe(wire.AtLeastOnce, 0)
		m := order(1)
		m.TTL = 500 * time.Millisecond
		r.publish(m)
		r.restart()
		<-time.After(m.TTL) // outlast the time to live that remained when the broker was stopped
		r.subscribe(wire.AtLeastOnce, 0)
		r.purged()
		return r.count(r.rows, store.Pending) > 0
	},
	"misrouted": func(r *rig) bool {
		mails := r.subscribeTo("mails", wire.AtLeastOnce, 5)
		orders := r.subscribeTo("orders", wire.AtLeastOnce, 5)
		r.publish(order(1))
		r.receive(orders)
		m := order(999)
		m.Topic = "mails"
		r.publish(m)
		return r.receive(mails).BusinessID != "order-999"
	},
	"message-id-shared": func(r *rig) bool {
		r.subscribe(wire.AtLeastOnce, 0)
		seen := map[string]bool{}
		for n := range 20 {
			id := r.publish(order(n)).MessageID
			if seen[id] {
				return true
			}
			seen[id] = true
		}
		return false
	},
	"declined-though-ready": func(r *rig) bool {
		r.subscribe(wire.AtLeastOnce, 5)
		for n := range 20 {
			if r.publish(order(n)).Answer == wire.Declined {
				return true
			}
		}
		return false
	},
	"publish-unanswered": func(r *rig) bool {
		r.subscribe(wire.AtLeastOnce, 0)
		for n := range 20 {
			call, err := r.producer.Publish(r.ctx, order(n))
			if err != nil {
				r.t.Fatal(err)
			}
			answered := make(chan struct{})
			waiting, giveUp := context.WithCancel(r.ctx)
			go func() {
				defer close(answered)
				_, _ = call.Wait(waiting)
			}()
			told := r.soon(func() bool {
				select {
				case <-answered:
					return true
				default:
					return false
				}
			})
			giveUp()
			<-answered
			if !told {
				return true
			}
		}
		return false
	},
	"credit-ignored": func(r *rig) bool {
		sub := r.subscribe(wire.AtLeastOnce, 1)
		r.publish(order(1))
		r.publish(order(2))
		first := r.receive(sub)
		other := r.subscribe(wire.AtLeastOnce, 1)
		got := make(chan string, 1)
		ctx, cancel := context.WithCancel(r.ctx)
		defer cancel()
		go func() {
			if d, err := other.Receive(ctx); err == nil {
				got <- d.BusinessID
			}
			close(got)
		}()
		if r.soon(func() bool { return len(got) > 0 }) {
			return false // the second one was kept for a consumer with credit
		}
		cancel()
		for range got {
		}
		return first.BusinessID == "order-1"
	},
	"one-competitor-gets-all": func(r *rig) bool {
		first := r.subscribe(wire.AtLeastOnce, 1)
		other := r.subscribe(wire.AtLeastOnce, 1)
		r.publish(order(1))
		r.publish(order(2))
		r.receive(first)
		got := make(chan string, 1)
		ctx, cancel := context.WithCancel(r.ctx)
		defer cancel()
		go func() {
			if d, err := other.Receive(ctx); err == nil {
				got <- d.BusinessID
			}
			close(got)
		}()
		served := r.soon(func() bool { return len(got) > 0 })
		cancel()
		for range got {
		}
		return !served
	},
	"session-dropped": func(r *rig) bool {
		sub := r.subscribe(wire.AtLeastOnce, 100)
		for n := range 31 {
			r.publish(order(n))
		}
		for range 31 {
			if _, err := sub.Receive(r.ctx); err != nil {
				return true
			}
		}
		return false
	},
	"redelivery-backwards": func(r *rig) bool {
		held := r.dial()
		sub, err := held.Subscribe(r.ctx, client.Filter{Topic: "#", Mode: wire.AtLeastOnce, Window: 3})
		if err != nil {
			r.t.Fatal(err)
		}
		for n := range 3 {
			r.publish(order(n))
			r.receive(sub)
		}
		other := r.subscribe(wire.AtLeastOnce, 3)
		held.Close()
		return r.receive(other).BusinessID != "order-0"
	},
	"anybody-settles": func(r *rig) bool {
		held := r.dial()
		sub, err := held.Subscribe(r.ctx, client.Filter{Topic: "#", Mode: wire.AtLeastOnce, Window: 2})
		if err != nil {
			r.t.Fatal(err)
		}
		r.publish(order(1))
		first := r.receive(sub)
		r.nack(first)
		r.receive(sub)
		return r.ack(first).Answer == wire.Accepted // the first attempt is over
	},
	"dead-lettered-early": func(r *rig) bool {
		sub := r.subscribe(wire.AtLeastOnce, 1)
		r.publish(order(1))
		r.nack(r.receive(sub))
		r.nack(r.receive(sub))
		return r.soon(func() bool { return r.count(r.rows, store.Dead) == 1 })
	},
	"one-of-a-batch-forgotten": func(r *rig) bool {
		r.subscribe(wire.AtLeastOnce, 0)
		hold := make(chan struct{})
		r.rows.hold.Store(&hold)
		var calls []*client.Call
		for n := range 5 {
			call, err := r.producer.Publish(r.ctx, order(n))
			if err != nil {
				r.t.Fatal(err)
			}
			calls = append(calls, call)
		}
		r.rows.hold.Store(nil)
		close(hold)
		for _, call := range calls {
			if reply, err := call.Wait(r.ctx); err != nil || reply.Answer != wire.Accepted {
				r.t.Fatal(reply, err)
			}
		}
		return r.count(r.rows, store.Pending) < len(calls)
	},
}

// publishTo publishes a message, and gives its delivery.
func (r *rig) publishTo(sub *client.Subscription) *client.Delivery {
	r.publish(order(1))
	return r.receive(sub)
}

// spare is another place for rows, which is taken for one that lasts.
func (r *rig) spare() store.Store {
	return &strikable{Store: memory.New(store.Partition{Connection: "spare", Identity: "one"}, memory.Options{})}
}

// kept stays open when a broker has made its backup in it, so that it can be read.
type kept struct{ store.Store }

func (kept) Close() error { return nil }

// waiting has so many messages wait in the store.
func (r *rig) waiting(n int) {
	r.subscribe(wire.AtLeastOnce, 0)
	for i := range n {
		r.publish(order(i))
	}
}

func (r *rig) redeliver() (first, again *client.Delivery) {
	sub := r.subscribe(wire.AtLeastOnce, 1)
	r.publish(order(1))
	first = r.receive(sub)
	r.nack(first)
	return first, r.receive(sub)
}

// purged waits until an expired message is gone from the store.
func (r *rig) purged() {
	m := order(100)
	m.TTL = time.Millisecond
	r.publish(m)
	r.until(func() bool {
		gone := true
		err := r.rows.Rows(r.ctx, store.Selection{}, func(row store.Row) error {
			gone = gone && (row.BusinessID != "order-100" || row.State != store.Pending)
			return nil
		})
		if err != nil {
			r.t.Fatal(err)
		}
		return gone
	})
	r.flushed()
}

func TestEachDefectIsSeenAndOnlyWithIt(t *testing.T) {
	for _, d := range defects.All() {
		probe := probes[d.Name]
		if probe == nil {
			t.Errorf("%s has no probe", d.Name)
			continue
		}
		t.Run(d.Name, func(t *testing.T) {
			if probe(newRig(t, "")) {
				t.Error("the healthy broker shows it")
			}
			if !probe(newRig(t, d.Name)) {
				t.Error("the broken broker does not show it")
			}
		})
	}
}

func TestEveryDefectIsDescribedAndHasOneSeam(t *testing.T) {
	seen := map[string]bool{}
	for _, d := range defects.All() {
		seams := 0
		for _, set := range []bool{d.Store != nil, d.Machine != nil, d.Settings != nil} {
			if set {
				seams++
			}
		}
		if d.Name == "" || seen[d.Name] || d.Text == "" || d.Breaks == "" || d.SeenIn == "" || seams != 1 {
			t.Errorf("%+v", d)
		}
		seen[d.Name] = true
	}
	if _, err := defects.Find("no-such"); err == nil || !strings.Contains(err.Error(), "ack-never-deletes") {
		t.Errorf("an unknown name: %v", err)
	}
	if err := defects.Apply("expiry-purges-other-partition", &broker.Config{}, defects.Options{}); err == nil {
		t.Error("a defect that needs a neighbour was applied without one")
	}
}
