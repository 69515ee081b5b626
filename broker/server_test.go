package broker_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/custodymq/custody/broker"
	"github.com/custodymq/custody/broker/client"
	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/memory"
	"github.com/custodymq/custody/broker/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var partition = store.Partition{Connection: "broker", Identity: "test"}

func newStore() store.Store { return memory.New(partition, memory.Options{}) }

// within returns a context that bounds everything a test waits for.
func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func start(t testing.TB, cfg broker.Config) *broker.Server {
	t.Helper()
	s, err := broker.Open(within(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, s) })
	return s
}

func stop(t testing.TB, s *broker.Server) {
	t.Helper()
	if err := s.Close(within(t)); err != nil {
		t.Error(err)
	}
}

func dial(t testing.TB, s *broker.Server, name string) *client.Conn {
	t.Helper()
	return dialAddr(t, s.Addr(), name)
}

func dialAddr(t testing.TB, addr, name string) *client.Conn {
	t.Helper()
	c, err := client.Dial(within(t), addr, client.Options{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func subscribe(t testing.TB, c *client.Conn, topic string, mode wire.Mode, window int) *client.Subscription {
	t.Helper()
	sub, err := c.Subscribe(within(t), client.Filter{Topic: topic, Mode: mode, Window: window})
	if err != nil {
		t.Fatal(err)
	}
	return sub
}

func publish(t testing.TB, c *client.Conn, m wire.Message) wire.Message {
	t.Helper()
	call, err := c.Publish(within(t), m)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := call.Wait(within(t))
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

func receive(t testing.TB, sub *client.Subscription) *client.Delivery {
	t.Helper()
	d, err := sub.Receive(within(t))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func ack(t testing.TB, d *client.Delivery, want wire.Answer) {
	t.Helper()
	reply, err := d.Ack(within(t))
	if err != nil || reply.Answer != want {
		t.Fatalf("ack of %s: %+v, %v, want answer %d", d.MessageID, reply, err, want)
	}
}

func order(id string) wire.Message {
	return wire.Message{Topic: "orders", Mode: wire.AtLeastOnce, BusinessID: id, Payload: []byte("payload of " + id)}
}

func TestPublishDeliverAck(t *testing.T) {
	s := start(t, broker.Config{Store: newStore()})
	producer, consumer := dial(t, s, "p"), dial(t, s, "c")
	sub := subscribe(t, consumer, "orders", wire.AtLeastOnce, 8)
	reply := publish(t, producer, order("order-1"))
	if reply.Answer != wire.Accepted || reply.MessageID == "" {
		t.Fatalf("publish: %+v", reply)
	}
	d := receive(t, sub)
	if d.MessageID != reply.MessageID || string(d.Payload) != "payload of order-1" || d.Attempt != 1 || d.Again {
		t.Fatalf("delivered %+v", d.Message)
	}
	ack(t, d, wire.Accepted)
	ack(t, d, wire.Refused)
	found, err := producer.Lookup(within(t), "order-1", time.Second)
	if err != nil || found.Answer != wire.Settled {
		t.Fatalf("lookup: %+v, %v, want Settled", found, err)
	}
}

func TestARestartKeepsWhatWasAccepted(t *testing.T) {
	kept := newStore()
	s := start(t, broker.Config{Store: kept})
	producer, consumer := dial(t, s, "p"), dial(t, s, "c")
	sub := subscribe(t, consumer, "orders", wire.AtLeastOnce, 1)
	first := publish(t, producer, order("order-1"))
	second := publish(t, producer, order("order-2"))
	receive(t, sub) // and no answer
	addr := s.Addr()
	stop(t, s)
	if _, err := sub.Receive(within(t)); err == nil {
		t.Fatal("a subscription outlived its broker")
	}

	s = start(t, broker.Config{Store: kept, Listen: addr})
	sub = subscribe(t, dial(t, s, "c"), "#", wire.AtLeastOnce, 8)
	for i, want := range []struct {
		id      string
		attempt int
	}{{first.MessageID, 2}, {second.MessageID, 1}} {
		d := receive(t, sub)
		if d.MessageID != want.id || d.Attempt != want.attempt || d.Again != (want.attempt > 1) {
			t.Fatalf("delivery %d after the restart: %+v, want %+v", i, d.Message, want)
		}
		ack(t, d, wire.Accepted)
	}
	if again := publish(t, dial(t, s, "p"), wire.Message{Topic: "orders", Mode: wire.AtLeastOnce, BusinessID: "order-1", MessageID: first.MessageID}); again.Answer != wire.Accepted || !again.Again {
		t.Fatalf("the same message ID again: %+v", again)
	}
}

// fake is a store whose Apply is scripted.
type fake struct {
	store.Store
	apply       func(context.Context, []store.Operation) error
	reestablish func() (bool, error)
}

func (f fake) Apply(ctx context.Context, batch []store.Operation) error {
	return f.apply(ctx, batch)
}

func (f fake) Reestablish(context.Context) (bool, error) { return f.reestablish() }

func TestAnUncertainWriteIsSettledWhereTheStoreCan(t *testing.T) {
	doubt := errors.New("sync failed")
	for name, c := range map[string]struct {
		written bool
		absent  bool
		err     error
		answer  wire.Answer
	}{
		"absent":  {absent: true, answer: wire.Rejected},
		"stored":  {written: true, answer: wire.Accepted},
		"unknown": {written: true, err: doubt, answer: wire.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			inner := newStore()
			once := false
			s := start(t, broker.Config{Store: fake{inner,
				func(ctx context.Context, batch []store.Operation) error {
					if once {
						return inner.Apply(ctx, batch)
					}
					once = true
					if c.written {
						if err := inner.Apply(ctx, batch); err != nil {
							return err
						}
					}
					return &store.Failure{Err: doubt}
				},
				func() (bool, error) { return c.absent, c.err },
			}})
			sub := subscribe(t, dial(t, s, "c"), "orders", wire.AtLeastOnce, 1)
			producer := dial(t, s, "p")
			if reply := publish(t, producer, order("order-1")); reply.Answer != c.answer {
				t.Fatalf("answered %+v, want %d", reply, c.answer)
			}
			publish(t, producer, order("order-2"))
			if d := receive(t, sub); (d.BusinessID == "order-1") != (c.answer == wire.Accepted) {
				t.Fatalf("delivered %+v", d.Message)
			}
		})
	}
}

// TestAForgottenMessageIDIsKnownToTheStore checks that an ID which the broker has
// forgotten but the store has not is answered as published before, without
// affecting the rest of the batch.
func TestAForgottenMessageIDIsKnownToTheStore(t *testing.T) {
	cfg := broker.Config{Store: newStore()}
	cfg.Limits.SettledIDs = 1
	s := start(t, cfg)
	producer := dial(t, s, "p")
	sub := subscribe(t, dial(t, s, "c"), "orders", wire.AtLeastOnce, 8)
	chosen := func(id string) wire.Message { m := order(id); m.MessageID = id; return m }
	for _, id := range []string{"a", "b", "c"} {
		publish(t, producer, chosen(id))
		ack(t, receive(t, sub), wire.Accepted)
	}
	var calls []*client.Call
	for _, id := range []string{"new-1", "a", "new-2", "b", "new-3"} {
		call, err := producer.Publish(within(t), chosen(id))
		if err != nil {
			t.Fatal(err)
		}
		calls = append(calls, call)
	}
	for i, call := range calls {
		reply, err := call.Wait(within(t))
		if err != nil || reply.Answer != wire.Accepted || reply.Again != (i%2 == 1) {
			t.Errorf("publish %d: %+v, %v", i, reply, err)
		}
	}
}

func TestCloseFinishesWhatWasTaken(t *testing.T) {
	inner := newStore()
	begun, free := make(chan struct{}, 1), make(chan struct{})
	s := start(t, broker.Config{Store: fake{Store: inner, apply: func(ctx context.Context, batch []store.Operation) error {
		select {
		case begun <- struct{}{}:
		default:
		}
		<-free
		return inner.Apply(ctx, batch)
	}}})
	producer := dial(t, s, "p")
	sub := subscribe(t, dial(t, s, "c"), "orders", wire.AtLeastOnce, 1)
	call, err := producer.Publish(within(t), order("order-1"))
	if err != nil {
		t.Fatal(err)
	}
	<-begun
	closed := make(chan error, 1)
	go func() { closed <- s.Close(within(t)) }()
	for ctx := within(t); ; { // until the broker stops accepting connections
		nc, err := new(net.Dialer).DialContext(ctx, "tcp", s.Addr())
		if ctx.Err() != nil {
			t.Fatal("the broker does not stop")
		}
		if err != nil {
			break
		}
		nc.Close()
	}
	select {
	case err := <-closed:
		t.Fatalf("closed before the commit was done: %v", err)
	case <-s.Done():
		t.Fatal("done before the commit was done")
	default:
	}
	close(free)
	if reply, err := call.Wait(within(t)); err != nil || reply.Answer != wire.Accepted {
		t.Fatalf("what was on its way to the store: %+v, %v", reply, err)
	}
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	if d, err := sub.Receive(within(t)); err == nil {
		t.Fatalf("delivered while stopping: %+v", d.Message)
	}
	if err := s.Wait(); err != nil {
		t.Fatal(err)
	}
}

func TestCloseGivesUpWithItsContext(t *testing.T) {
	inner := newStore()
	begun := make(chan struct{})
	s, err := broker.Open(within(t), broker.Config{Store: fake{Store: inner, apply: func(ctx context.Context, _ []store.Operation) error {
		close(begun)
		<-ctx.Done()
		return &store.Failure{Err: ctx.Err()}
	}}})
	if err != nil {
		t.Fatal(err)
	}
	subscribe(t, dial(t, s, "c"), "orders", wire.AtLeastOnce, 0)
	call, err := dial(t, s, "p").Publish(within(t), order("order-1"))
	if err != nil {
		t.Fatal(err)
	}
	<-begun
	over, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Close(over); !errors.Is(err, context.Canceled) {
		t.Fatalf("close: %v", err)
	}
	if reply, err := call.Wait(within(t)); err == nil && reply.Answer != wire.Unknown {
		t.Fatalf("the abandoned publish: %+v", reply)
	}
}

func TestConfigIsChecked(t *testing.T) {
	for name, cfg := range map[string]broker.Config{
		"remote":      {Listen: "0.0.0.0:0"},
		"no port":     {Listen: "127.0.0.1"},
		"negative":    {VisibilityTimeout: -1},
		"attempts":    {MaxAttempts: -1},
		"TTL":         {DefaultTTL: 1e6 * time.Hour},
		"small queue": {Outgoing: 1},
		"long name":   {Name: string(make([]byte, wire.MaxID+1))},
	} {
		if s, err := broker.Open(within(t), cfg); err == nil {
			stop(t, s)
			t.Errorf("%s: opened", name)
		}
	}
}
