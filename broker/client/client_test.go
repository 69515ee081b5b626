package client_test

import (
	"context"
	"errors"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/custodymq/custody/broker"
	"github.com/custodymq/custody/broker/client"
	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/memory"
	"github.com/custodymq/custody/broker/transport"
	"github.com/custodymq/custody/broker/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// holding is a store whose Apply blocks until free is closed.
type holding struct {
	store.Store
	begun chan struct{}
	free  chan struct{}
}

func (h holding) Apply(ctx context.Context, batch []store.Operation) error {
	select {
	case h.begun <- struct{}{}:
	default:
	}
	<-h.free
	return h.Store.Apply(ctx, batch)
}

func newHolding() holding {
	return holding{
		memory.New(store.Partition{Connection: "b", Identity: "t"}, memory.Options{}),
		make(chan struct{}, 1), make(chan struct{}),
	}
}

func serve(t *testing.T, cfg broker.Config) *broker.Server {
	t.Helper()
	s, err := broker.Open(within(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(within(t)); err != nil {
			t.Error(err)
		}
	})
	return s
}

func dial(t *testing.T, addr string, o client.Options) *client.Conn {
	t.Helper()
	c, err := client.Dial(within(t), addr, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func listen(t *testing.T, c *client.Conn, window int) *client.Subscription {
	t.Helper()
	sub, err := c.Subscribe(within(t), client.Filter{Topic: "orders", Mode: wire.AtLeastOnce, Window: window})
	if err != nil {
		t.Fatal(err)
	}
	return sub
}

func offer(t *testing.T, c *client.Conn) *client.Call {
	t.Helper()
	call, err := c.Publish(within(t), wire.Message{Topic: "orders", Mode: wire.AtLeastOnce})
	if err != nil {
		t.Fatal(err)
	}
	return call
}

func TestDialIsRefusedWithTheReason(t *testing.T) {
	s := serve(t, broker.Config{Token: "a-secret-of-20-bytes"})
	if _, err := client.Dial(within(t), s.Addr(), client.Options{Token: "guess"}); !errors.Is(err, client.ErrRefused) || !strings.Contains(err.Error(), "token") {
		t.Fatalf("a wrong token: %v", err)
	}
	dial(t, s.Addr(), client.Options{Token: "a-secret-of-20-bytes"})
}

func TestDialObeysItsContext(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if _, err := client.Dial(ctx, silent.Addr().String(), client.Options{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("dialling a silent peer: %v", err)
	}
}

func TestAtLeastOnceWithoutAStoreIsRefused(t *testing.T) {
	c := dial(t, serve(t, broker.Config{}).Addr(), client.Options{})
	if _, err := c.Subscribe(within(t), client.Filter{Topic: "a", Mode: wire.AtLeastOnce}); !errors.Is(err, client.ErrRefused) || !strings.Contains(err.Error(), "store") {
		t.Fatalf("subscribe: %v", err)
	}
	reply, err := offer(t, c).Wait(within(t))
	if err != nil || reply.Answer != wire.Declined || !strings.Contains(reply.Reason, "store") {
		t.Fatalf("publish: %+v, %v", reply, err)
	}
}

func TestWhatWaitsWhenTheConnectionEnds(t *testing.T) {
	h := newHolding()
	s := serve(t, broker.Config{Store: h})
	defer close(h.free)
	c := dial(t, s.Addr(), client.Options{Window: 1})
	sub := listen(t, c, 1)
	call := offer(t, c)
	<-h.begun // the publish has reached the store, which blocks it
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := call.Wait(cancelled); !errors.Is(err, context.Canceled) {
		t.Fatalf("a cancelled wait: %v", err)
	}
	if _, err := c.Publish(cancelled, wire.Message{Topic: "orders"}); !errors.Is(err, context.Canceled) {
		t.Fatalf("a cancelled publish past the window: %v", err)
	}
	waiting := make(chan error, 1)
	go func() {
		_, err := c.Publish(within(t), wire.Message{Topic: "orders"})
		waiting <- err
	}()
	c.Close()
	if _, err := call.Wait(within(t)); !errors.Is(err, client.ErrDisconnected) || !call.Written() {
		t.Fatalf("the publish: %v, written %v", err, call.Written())
	}
	if _, err := sub.Receive(within(t)); !errors.Is(err, client.ErrDisconnected) {
		t.Fatalf("the subscription: %v", err)
	}
	if err := <-waiting; !errors.Is(err, client.ErrDisconnected) {
		t.Fatalf("the publish that waited for the window: %v", err)
	}
	if _, err := c.Publish(within(t), wire.Message{Topic: "orders"}); !errors.Is(err, client.ErrDisconnected) {
		t.Fatalf("a publish after the end: %v", err)
	}
	if !errors.Is(c.Err(), client.ErrDisconnected) {
		t.Fatalf("Err: %v", c.Err())
	}
}

// TestACallBesideTheEndIsToldWhy has a broker refuse something that it does not
// name while calls are made: none may fail with less than that reason.
func TestACallBesideTheEndIsToldWhy(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	refuse := func() error {
		nc, err := ln.Accept()
		if err != nil {
			return err
		}
		o := transport.Options{Handshake: time.Minute, Silence: time.Minute, Write: time.Minute, Heartbeat: time.Minute, Queue: 1 << 20}
		conn, err := transport.Accept(nc, o)
		if err != nil {
			return errors.Join(err, nc.Close())
		}
		hello, err := conn.Receive()
		if err = errors.Join(err, conn.Admit()); err == nil {
			_, err = conn.Send(&wire.Message{Kind: wire.Welcome, Request: hello.Request, Credit: 1000})
		}
		if err == nil {
			_, err = conn.Send(&wire.Message{Kind: wire.Error, Reason: "not understood"})
		}
		go conn.Run()
		conn.Flush()
		for next := err; next == nil; { // until the client has ended the session
			_, next = conn.Receive()
		}
		conn.Close()
		<-conn.Done()
		return err
	}
	for range 100 {
		refused := make(chan error, 1)
		go func() { refused <- refuse() }()
		c := dial(t, ln.Addr().String(), client.Options{Name: "c"})
		for err = nil; err == nil; {
			_, err = c.Publish(within(t), wire.Message{Topic: "orders"})
		}
		if !errors.Is(err, client.ErrRefused) {
			t.Fatalf("a call beside the end: %v", err)
		}
		if err := <-refused; err != nil {
			t.Fatal(err)
		}
	}
}

// TestWrittenTellsWhatNeverLeft fills the socket of a broker that has stopped
// reading: a call queued behind that never reaches the socket.
func TestWrittenTellsWhatNeverLeft(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	released := make(chan struct{})
	ended := make(chan struct{})
	s := serve(t, broker.Config{})
	go func() { // relays the handshake to a broker, then reads nothing more
		defer close(ended)
		down, err := ln.Accept()
		if err != nil {
			return
		}
		defer down.Close()
		up, err := net.Dial("tcp", s.Addr())
		if err != nil {
			return
		}
		defer up.Close()
		back := make(chan struct{})
		go func() {
			defer close(back)
			buf := make([]byte, 4096)
			for {
				n, err := up.Read(buf)
				if err != nil {
					return
				}
				down.Write(buf[:n])
			}
		}()
		buf := make([]byte, 1) // reads not a byte beyond the handshake
		for total := 0; total < handshakeBytes; total++ {
			if _, err := down.Read(buf); err != nil {
				break
			}
			up.Write(buf)
		}
		<-released
		up.Close()
		<-back
	}()
	c := dial(t, ln.Addr().String(), client.Options{Name: "c"})
	big := wire.Message{Topic: "orders", Mode: wire.AtLeastOnce, Payload: make([]byte, 4<<20)}
	var calls []*client.Call
	for range 8 {
		call, err := c.Publish(within(t), big)
		if err != nil {
			t.Fatal(err)
		}
		calls = append(calls, call)
	}
	first, last := calls[0], calls[len(calls)-1]
	for waiting := within(t); !first.Written(); runtime.Gosched() {
		if waiting.Err() != nil {
			t.Fatal("the first publish is said never to have left")
		}
	}
	c.Close()
	close(released)
	<-ended
	if !first.Written() {
		t.Error("the first publish is said never to have left")
	}
	if _, err := last.Wait(within(t)); !errors.Is(err, client.ErrDisconnected) || last.Written() {
		t.Errorf("the last publish: %v, written %v", err, last.Written())
	}
}

func TestUnsubscribeEndsTheStream(t *testing.T) {
	h := newHolding()
	close(h.free)
	s := serve(t, broker.Config{Store: h})
	one, two := dial(t, s.Addr(), client.Options{Name: "one"}), dial(t, s.Addr(), client.Options{Name: "two"})
	sub := listen(t, one, 1)
	offer(t, two)
	if _, err := sub.Receive(within(t)); err != nil {
		t.Fatal(err)
	}
	other := listen(t, two, 1)
	if err := sub.Unsubscribe(within(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := sub.Receive(within(t)); !errors.Is(err, client.ErrUnsubscribed) {
		t.Fatalf("receive after unsubscribe: %v", err)
	}
	d, err := other.Receive(within(t))
	if err != nil || !d.Again {
		t.Fatalf("what it held: %+v, %v", d, err)
	}
	if _, err := d.Nack(within(t), client.Rejection{Reason: "bad", DeadLetter: true}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ command, object, want string }{{"dlq.list", "", d.MessageID}, {"dlq.show", d.MessageID, "rejected by the consumer: bad"}} {
		reply, err := two.Admin(within(t), c.command, c.object)
		if err != nil || !strings.Contains(string(reply.Payload), c.want) {
			t.Fatalf("%s: %s (%s), %v; want %q in it", c.command, reply.Payload, reply.Reason, err, c.want)
		}
	}
	if reply, err := two.Admin(within(t), "dlq.redrive", d.MessageID); err != nil || reply.Answer != wire.Accepted {
		t.Fatalf("redrive: %+v, %v", reply, err)
	}
	if d, err = other.Receive(within(t)); err != nil || d.Attempt != 1 {
		t.Fatalf("redriven: %+v, %v", d, err)
	}
	if reply, err := two.Admin(within(t), "dlq.discard", d.MessageID); err != nil || reply.Answer != wire.Refused {
		t.Fatalf("discarding what is no dead letter: %+v, %v", reply, err)
	}
}

func TestAtMostOnceFlowsPastItsWindow(t *testing.T) {
	s := serve(t, broker.Config{})
	c := dial(t, s.Addr(), client.Options{})
	sub, err := c.Subscribe(within(t), client.Filter{Topic: "a/+", Mode: wire.AtMostOnce, Window: 2})
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		call, err := c.Publish(within(t), wire.Message{Topic: "a/b", Mode: wire.AtMostOnce})
		if err != nil {
			t.Fatal(err)
		}
		if reply, err := call.Wait(within(t)); err != nil || reply.Answer != wire.Accepted {
			t.Fatalf("publish: %+v, %v", reply, err)
		}
		if _, err := sub.Receive(within(t)); err != nil {
			t.Fatal(err)
		}
	}
}

// handshakeBytes is the length of the greeting, the READY command with the
// properties that go-zeromq sends, and the Hello of a client called "c".
var handshakeBytes = 64 + readySize() + helloSize()

func readySize() int {
	properties := len("\x0bSocket-Type\x00\x00\x00\x06DEALER") + len("\x08Identity\x00\x00\x00\x00")
	return 2 + len("\x05READY") + properties
}

func helloSize() int {
	parts, err := wire.Encode(nil, &wire.Message{Kind: wire.Hello, Request: 1, Client: "c"})
	if err != nil {
		panic(err)
	}
	return 2 + len(parts[0]) + 2 + len(parts[1])
}
