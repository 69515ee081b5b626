package broker_test

import (
	"context"
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

// within bounds everything that a test waits for.
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
	c, err := client.Dial(within(t), s.Addr(), client.Options{Name: name})
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
