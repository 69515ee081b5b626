package transport

import (
	"bytes"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/custodymq/custody/broker/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var generous = Options{Handshake: 30 * time.Second, Silence: 30 * time.Second, Write: 30 * time.Second, Heartbeat: 30 * time.Second, Queue: 1 << 20}

// pair returns both ends of a connection. The client's writer is not running yet.
func pair(t *testing.T, o Options) (client, server *Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	accepted := make(chan error, 1)
	go func() {
		nc, err := ln.Accept()
		if err == nil {
			server, err = Accept(nc, o)
		}
		accepted <- err
	}()
	nc, err := net.Dial("tcp", ln.Addr().String())
	if err == nil {
		client, err = Connect(nc, o)
	}
	if err := errors.Join(err, <-accepted); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	if err := errors.Join(client.Admit(), server.Admit()); err != nil {
		t.Fatal(err)
	}
	return client, server
}

func run(t *testing.T, c *Conn) {
	t.Helper()
	go c.Run()
	t.Cleanup(func() { c.Close(); <-c.Done() })
}

func TestMessagesOfAllSizesArrive(t *testing.T) {
	client, server := pair(t, Options{Handshake: generous.Handshake, Silence: generous.Silence, Write: generous.Write, Heartbeat: generous.Heartbeat, Queue: 64 << 20})
	run(t, client)
	for i, size := range []int{0, 1, 255, 256, 65535, 1 << 20, wire.MaxPayload, 1, 65535, 256} {
		if i == 5 {
			client.Share()
		}
		sent := wire.Message{Kind: wire.Publish, Request: uint64(i), Topic: "t", Payload: bytes.Repeat([]byte{byte(i)}, size)}
		if _, err := client.Send(&sent); err != nil {
			t.Fatal(err)
		}
		client.Flush()
		got, err := server.Receive()
		if err != nil || got.Request != sent.Request || !bytes.Equal(got.Payload, sent.Payload) {
			t.Fatalf("%d bytes: request %d with %d bytes, %v", size, got.Request, len(got.Payload), err)
		}
	}
}

func TestTheQueueIsBoundedAndKnowsWhatLeft(t *testing.T) {
	client, server := pair(t, Options{Handshake: generous.Handshake, Silence: generous.Silence, Write: generous.Write, Heartbeat: generous.Heartbeat, Queue: 1000})
	m := wire.Message{Kind: wire.Publish, Topic: "t", Payload: make([]byte, 600)}
	first, err := client.Send(&m)
	if err != nil || client.Written(first) {
		t.Fatalf("queued: %v, written %v", err, client.Written(first))
	}
	if _, err := client.Send(&m); err != nil {
		t.Fatalf("below the bound: %v", err)
	}
	if _, err := client.Send(&m); !errors.Is(err, ErrFull) {
		t.Fatalf("above the bound: %v", err)
	}
	run(t, client)
	client.Flush()
	<-client.Took()
	if _, err := server.Receive(); err != nil || !client.Written(first) {
		t.Fatalf("received: %v, written %v", err, client.Written(first))
	}
	late, err := client.Send(&m)
	if err != nil {
		t.Fatalf("after the writer took the queue: %v", err)
	}
	client.Close()
	<-client.Done()
	if client.Written(late) {
		t.Error("what was never flushed is said to have left")
	}
	if _, err := client.Send(&m); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestAnIdleSideSendsHeartbeats(t *testing.T) {
	client, server := pair(t, Options{Handshake: generous.Handshake, Silence: generous.Silence, Write: generous.Write, Heartbeat: 5 * time.Millisecond, Queue: 1 << 20})
	run(t, client)
	if m, err := server.Receive(); err != nil || m.Kind != wire.Ping {
		t.Fatalf("got %+v, %v", m, err)
	}
}

func TestAPeerHasItsWholeTimeOfSilence(t *testing.T) {
	const silence = 80 * time.Millisecond
	client, server := pair(t, Options{Handshake: generous.Handshake, Silence: silence, Write: generous.Write, Heartbeat: generous.Heartbeat, Queue: 1 << 20})
	run(t, client)
	// The last message arrives just after the deadline was moved; it must count
	// too.
	for _, wait := range []time.Duration{silence / 8, 0} {
		if _, err := client.Send(&wire.Message{Kind: wire.Ping}); err != nil {
			t.Fatal(err)
		}
		client.Flush()
		if _, err := server.Receive(); err != nil {
			t.Fatal(err)
		}
		<-time.After(wait)
	}
	last := time.Now()
	if _, err := server.Receive(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
	if quiet := time.Since(last); quiet < silence-time.Millisecond {
		t.Errorf("ended after %v of silence, want at least %v", quiet, silence)
	}
}

func TestCloseAfterQueueSendsWhatWaits(t *testing.T) {
	client, server := pair(t, generous)
	if _, err := client.Send(&wire.Message{Kind: wire.Pong, Request: 7}); err != nil {
		t.Fatal(err)
	}
	client.CloseAfterQueue()
	run(t, client)
	if m, err := server.Receive(); err != nil || m.Request != 7 {
		t.Fatalf("got %+v, %v", m, err)
	}
	if _, err := server.Receive(); err == nil {
		t.Fatal("the connection is still there")
	}
}
