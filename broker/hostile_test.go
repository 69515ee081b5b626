package broker_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/custodymq/custody/broker"
	"github.com/custodymq/custody/broker/attack"
	"github.com/custodymq/custody/broker/client"
	"github.com/custodymq/custody/broker/transport"
	"github.com/custodymq/custody/broker/wire"
)

func raw(t testing.TB, s *broker.Server) net.Conn {
	t.Helper()
	nc, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	nc.SetDeadline(time.Now().Add(30 * time.Second))
	return nc
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// closedByPeer reads until the broker closes the connection.
func closedByPeer(t testing.TB, nc net.Conn) {
	t.Helper()
	var timeout net.Error
	if _, err := io.Copy(io.Discard, nc); errors.As(err, &timeout) && timeout.Timeout() {
		t.Error("the broker kept the connection")
	}
}

// cycle checks that a healthy producer and consumer are served.
func cycle(t testing.TB, producer *client.Conn, sub *client.Subscription, id string) {
	t.Helper()
	if reply := publish(t, producer, order(id)); reply.Answer != wire.Accepted {
		t.Fatalf("publish beside a hostile peer: %+v", reply)
	}
	ack(t, receive(t, sub), wire.Accepted)
}

func TestAHostilePeerCostsNobodyElseAnything(t *testing.T) {
	s := start(t, broker.Config{Store: newStore()})
	producer := dial(t, s, "p")
	sub := subscribe(t, dial(t, s, "c"), "orders", wire.AtLeastOnce, 8)
	entered := join(attack.Greeting(), attack.Ready(attack.Dealer), attack.Hello(""))
	random := make([]byte, 64<<10)
	source := rand.NewChaCha8([32]byte{1})
	source.Read(random)
	for name, c := range map[string]struct {
		say  []byte
		cut  bool // the broker must close the connection
		want string
	}{
		"silent":                  {},
		"half a greeting":         {say: attack.Greeting()[:20]},
		"greeting only":           {say: attack.Greeting()},
		"random bytes":            {say: random, cut: true},
		"old ZMTP":                {say: append([]byte{0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 1}, make([]byte, 53)...), cut: true},
		"2^62 in the handshake":   {say: join(attack.Greeting(), attack.Header(4, 1<<62)), cut: true},
		"2^40 in the handshake":   {say: join(attack.Greeting(), attack.Header(4, 1<<40)), cut: true},
		"metadata past its end":   {say: join(attack.Greeting(), attack.Ready("\xffx")), cut: true},
		"metadata cut":            {say: join(attack.Greeting(), attack.Ready("\x0bSocket-Type\x00")), cut: true},
		"another socket type":     {say: join(attack.Greeting(), attack.Ready("\x0bSocket-Type\x00\x00\x00\x03SUB")), cut: true},
		"no Hello":                {say: join(attack.Greeting(), attack.Ready(attack.Dealer), attack.Frames(wire.Message{Kind: wire.Ping})), cut: true},
		"2^62 bytes of head":      {say: join(entered, attack.Header(1, 1<<62)), cut: true},
		"2^62 bytes of payload":   {say: join(entered, []byte{1, 1, 'x'}, attack.Header(0, 1<<62)), cut: true},
		"2^62 bytes of command":   {say: join(entered, attack.Header(4, 1<<62)), cut: true},
		"endless parts":           {say: join(entered, bytes.Repeat([]byte{1, 1, 'x'}, 100)), cut: true},
		"random after the Hello":  {say: join(entered, random), cut: true},
		"many malformed messages": {say: join(entered, bytes.Repeat([]byte{1, 1, 'x', 0, 0}, 100)), cut: true},
	} {
		t.Run(name, func(t *testing.T) {
			nc := raw(t, s)
			// The broker may close the connection before everything is sent.
			_, _ = nc.Write(c.say)
			cycle(t, producer, sub, "order-"+name)
			if c.cut {
				closedByPeer(t, nc)
			}
		})
	}
	cycle(t, producer, sub, "order-last")
}

func TestAMalformedMessageIsAnsweredAndTheSessionGoesOn(t *testing.T) {
	s := start(t, broker.Config{})
	nc := raw(t, s)
	conn, err := transport.Connect(nc, transport.Options{Handshake: time.Minute, Silence: time.Minute, Write: time.Minute, Heartbeat: time.Minute, Queue: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nc.Write(join(attack.Hello(""), []byte{1, 5, 0xC5, wire.Version, byte(wire.Publish), 7, 99, 0, 0})); err != nil {
		t.Fatal(err)
	}
	if _, err := nc.Write(attack.Frames(wire.Message{Kind: wire.Ping, Request: 8})); err != nil {
		t.Fatal(err)
	}
	for _, want := range []wire.Message{{Kind: wire.Welcome, Request: 1}, {Kind: wire.Error, Request: 7}, {Kind: wire.Pong, Request: 8}} {
		m, err := conn.Receive()
		if err != nil || m.Kind != want.Kind || m.Request != want.Request {
			t.Fatalf("got %+v, %v, want kind %d for request %d", m, err, want.Kind, want.Request)
		}
	}
}

func TestPINGIsAnsweredWithItsContext(t *testing.T) {
	s := start(t, broker.Config{})
	nc := raw(t, s)
	if _, err := nc.Write(join(attack.Greeting(), attack.Ready(attack.Dealer), attack.Hello(""), []byte("\x04\x0a\x04PING\x00\x64ctx"))); err != nil {
		t.Fatal(err)
	}
	want := []byte("\x04\x08\x04PONGctx")
	var got []byte
	for buf := make([]byte, 1024); !bytes.Contains(got, want); {
		n, err := nc.Read(buf)
		if err != nil {
			t.Fatalf("no PONG in %q: %v", got, err)
		}
		got = append(got, buf[:n]...)
	}
}

// stall opens a subscription whose peer never reads.
func stall(t testing.TB, s *broker.Server, mode wire.Mode) {
	t.Helper()
	say := join(attack.Greeting(), attack.Ready(attack.Dealer), attack.Hello(""), attack.Frames(wire.Message{Kind: wire.Subscribe, Request: 2, Topic: "orders", Mode: mode, Credit: 64}))
	if _, err := raw(t, s).Write(say); err != nil {
		t.Fatal(err)
	}
}

// TestWhatAStalledPeerHeldIsRedelivered checks that a peer which stops reading
// loses its session, and its messages go to another.
func TestWhatAStalledPeerHeldIsRedelivered(t *testing.T) {
	s := start(t, broker.Config{Store: newStore(), Outgoing: 64 << 20, WriteTimeout: 200 * time.Millisecond})
	stall(t, s, wire.AtLeastOnce)
	producer := dial(t, s, "p")
	big := order("order-big")
	big.Payload = make([]byte, 1<<20)
	for accepted := 0; accepted < 32; { // exceeds the sockets' own buffers
		answer := publish(t, producer, big).Answer
		if answer == wire.Accepted {
			accepted++
		} else if accepted > 0 {
			break // the session is lost already
		}
	}
	sub := subscribe(t, dial(t, s, "c"), "orders", wire.AtLeastOnce, 64)
	d := receive(t, sub)
	if !d.Again || d.Attempt < 2 {
		t.Fatalf("what the stalled peer held came as %+v", d.Message)
	}
	ack(t, d, wire.Accepted)
}

func TestAFullQueueEndsTheSession(t *testing.T) {
	s := start(t, broker.Config{Outgoing: 8 << 20, WriteTimeout: 20 * time.Second})
	stall(t, s, wire.AtMostOnce)
	producer := dial(t, s, "p")
	big := wire.Message{Topic: "orders", Mode: wire.AtMostOnce, Payload: make([]byte, 1<<20)}
	for accepted := 0; ; {
		reply := publish(t, producer, big)
		if reply.Answer == wire.Accepted {
			accepted++
			continue
		}
		if accepted == 0 {
			continue // the subscription is not there yet
		}
		if reply.Answer != wire.Declined || accepted == 64 {
			t.Fatalf("after %d copies for a peer that does not read: %+v", accepted, reply)
		}
		return
	}
}

func TestASilentPeerIsGoneAfterThreeHeartbeats(t *testing.T) {
	s := start(t, broker.Config{Heartbeat: 20 * time.Millisecond, Handshake: 50 * time.Millisecond})
	before, after := raw(t, s), raw(t, s)
	if _, err := after.Write(join(attack.Greeting(), attack.Ready(attack.Dealer), attack.Hello(""))); err != nil {
		t.Fatal(err)
	}
	closedByPeer(t, before)
	closedByPeer(t, after)
}

func TestConnectionsAreLimited(t *testing.T) {
	s := start(t, broker.Config{Connections: 1})
	first := dial(t, s, "first")
	if c, err := client.Dial(within(t), s.Addr(), client.Options{}); err == nil {
		c.Close()
		t.Fatal("a second connection was let in")
	}
	if first.Err() != nil {
		t.Fatalf("the first one lost its place: %v", first.Err())
	}
}

func FuzzBytesAfterTheHello(f *testing.F) {
	s := start(f, broker.Config{Store: newStore()})
	producer := dial(f, s, "p")
	sub := subscribe(f, dial(f, s, "c"), "healthy", wire.AtLeastOnce, 8)
	f.Add(attack.Frames(wire.Message{Kind: wire.Subscribe, Request: 2, Topic: "#", Mode: wire.AtMostOnce, Credit: 3}))
	f.Add(attack.Frames(wire.Message{Kind: wire.Publish, Request: 2, Topic: "a", Mode: wire.AtLeastOnce}))
	f.Add([]byte{1, 5, 0xC5, 2, 3, 7, 99, 0, 0})
	f.Add(attack.Header(1, 1<<62))
	f.Fuzz(func(t *testing.T, say []byte) {
		nc := raw(t, s)
		_, _ = nc.Write(join(attack.Greeting(), attack.Ready(attack.Dealer), attack.Hello(""), say))
		m := order("order-1")
		m.Topic = "healthy"
		if reply := publish(t, producer, m); reply.Answer != wire.Accepted {
			t.Fatalf("publish: %+v", reply)
		}
		ack(t, receive(t, sub), wire.Accepted)
		nc.Close()
	})
}
