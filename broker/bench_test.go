package broker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/custodymq/custody/broker"
	"github.com/custodymq/custody/broker/client"
	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/sqlite"
	"github.com/custodymq/custody/broker/transport"
	"github.com/custodymq/custody/broker/wire"
)

// The bare limit is what the same connection layer and the same store can do
// with nothing of a broker between them: every publish is one row, a
// transaction holds what has gathered while the one before was committed, and
// the answer goes out after the commit (SQLite, WAL, synchronous=FULL).
//
// The broker's figure is to be read against the bare one of the same run: both
// share the cores with the load that they measure.
func BenchmarkDurableAccepts(b *testing.B) {
	for _, side := range []struct {
		name  string
		start func(b *testing.B, s store.Store) (addr string)
	}{{"bare", startBare}, {"broker", startBroker}} {
		for _, window := range []int{1, 64, 256} {
			b.Run(fmt.Sprintf("%s/window-%d", side.name, window), func(b *testing.B) {
				conn := connect(b, side.start(b, openSQLite(b)))
				b.ResetTimer()
				pump(b, conn, window)
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msgs/s")
			})
		}
	}
}

func openSQLite(b *testing.B) store.Store {
	b.Helper()
	s, err := sqlite.Open(within(b), sqlite.Options{Path: filepath.Join(b.TempDir(), "broker.db"), Partition: partition})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	return s
}

var benchTransport = transport.Options{Handshake: 10 * time.Second, Silence: time.Minute, Write: 10 * time.Second, Heartbeat: 20 * time.Second, Queue: 64 << 20}

// connect opens the load's connection and completes the Hello.
func connect(b *testing.B, addr string) *transport.Conn {
	b.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		b.Fatal(err)
	}
	conn, err := transport.Connect(nc, benchTransport)
	if err != nil {
		b.Fatal(err)
	}
	go conn.Run()
	b.Cleanup(func() { conn.Close(); <-conn.Done() })
	conn.Send(&wire.Message{Kind: wire.Hello, Request: 1, Client: "load"})
	conn.Flush()
	if m, err := conn.Receive(); err != nil || m.Kind != wire.Welcome {
		b.Fatalf("hello: %+v, %v", m, err)
	}
	if err := conn.Admit(); err != nil {
		b.Fatal(err)
	}
	return conn
}

// pump keeps window publishes of 256 B unanswered until b.N are accepted.
func pump(b *testing.B, conn *transport.Conn, window int) {
	b.Helper()
	m := wire.Message{Kind: wire.Publish, Topic: "orders", Mode: wire.AtLeastOnce, BusinessID: "order-1", Payload: make([]byte, 256)}
	for sent, answered := 0, 0; answered < b.N; {
		for ; sent < b.N && sent-answered < window; sent++ {
			m.Request = uint64(sent + 2)
			if _, err := conn.Send(&m); err != nil {
				b.Fatal(err)
			}
		}
		conn.Flush()
		for {
			reply, err := conn.Receive()
			if err != nil || reply.Answer != wire.Accepted {
				b.Fatalf("reply %d: %+v, %v", answered, reply, err)
			}
			answered++
			if answered == sent || !conn.Buffered() {
				break
			}
		}
	}
}

func startBroker(b *testing.B, s store.Store) string {
	b.Helper()
	server := start(b, broker.Config{Store: s})
	subscribe(b, dial(b, server, "idle"), "orders", wire.AtLeastOnce, 0) // online, but without credit
	return server.Addr()
}

func startBare(b *testing.B, s store.Store) string {
	b.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		nc, err := ln.Accept()
		if err != nil {
			return
		}
		bare(nc, s)
	}()
	b.Cleanup(func() { ln.Close(); <-ended })
	return ln.Addr().String()
}

func bare(nc net.Conn, s store.Store) {
	conn, err := transport.Accept(nc, benchTransport)
	if err != nil {
		return
	}
	hello, err := conn.Receive()
	if err != nil || conn.Admit() != nil {
		return
	}
	go conn.Run()
	defer func() { conn.Close(); <-conn.Done() }()
	conn.Send(&wire.Message{Kind: wire.Welcome, Request: hello.Request})
	conn.Flush()
	var (
		mu       sync.Mutex
		gathered []wire.Message
		more     = make(chan struct{}, 1)
		ended    = make(chan struct{})
		written  = make(chan struct{})
	)
	go func() {
		defer close(written)
		n := 0
		var batch []wire.Message
		var operations []store.Operation
		for {
			select {
			case <-more:
			case <-ended:
				return
			}
			mu.Lock()
			batch, gathered = gathered, batch[:0]
			mu.Unlock()
			operations = operations[:0]
			for i := range batch {
				n++
				m := &batch[i]
				operations = append(operations, store.Operation{Kind: store.Insert, Row: store.Row{
					MessageID: fmt.Sprintf("bare-%d", n), BusinessID: m.BusinessID, Topic: m.Topic, Payload: m.Payload, Version: m.Version,
				}})
			}
			if s.Apply(context.Background(), operations) != nil {
				conn.Close()
				return
			}
			for i := range batch {
				conn.Send(&wire.Message{Kind: wire.PublishReply, Request: batch[i].Request, MessageID: operations[i].Row.MessageID, Answer: wire.Accepted})
			}
			conn.Flush()
		}
	}()
	defer func() { close(ended); <-written }()
	for {
		m, err := conn.Receive()
		if err != nil {
			return
		}
		mu.Lock()
		gathered = append(gathered, m)
		mu.Unlock()
		if conn.Buffered() {
			continue
		}
		select {
		case more <- struct{}{}:
		default:
		}
	}
}

// BenchmarkFullCycle measures a message from publish to answered ACK, its row
// inserted and deleted, 64 at a time.
func BenchmarkFullCycle(b *testing.B) {
	const window = 64
	server := start(b, broker.Config{Store: openSQLite(b)})
	sub := subscribe(b, dial(b, server, "c"), "orders", wire.AtLeastOnce, window)
	producer := dial(b, server, "p")
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	m := wire.Message{Topic: "orders", Mode: wire.AtLeastOnce, BusinessID: "order-1", Payload: make([]byte, 256)}
	b.ResetTimer()
	failed := make(chan error, 1)
	go func() { failed <- produce(ctx, producer, m, b.N, window) }()
	var last *client.Call
	for range b.N {
		d, err := sub.Receive(ctx)
		if err != nil {
			b.Fatal(err)
		}
		if last, err = d.AckStart(); err != nil {
			b.Fatal(err)
		}
	}
	if reply, err := last.Wait(ctx); err != nil || reply.Answer != wire.Accepted {
		b.Fatalf("last ack: %+v, %v", reply, err)
	}
	if err := <-failed; err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msgs/s")
}

func produce(ctx context.Context, c *client.Conn, m wire.Message, n, window int) error {
	calls := make(chan *client.Call, window)
	answered := make(chan error, 1)
	go func() {
		for call := range calls {
			if reply, err := call.Wait(ctx); err != nil || reply.Answer != wire.Accepted {
				answered <- fmt.Errorf("publish: %+v, %w", reply, errors.Join(err, io.ErrUnexpectedEOF))
				return
			}
		}
		answered <- nil
	}()
	for range n {
		call, err := c.Publish(ctx, m)
		if err != nil {
			close(calls)
			<-answered
			return err
		}
		select {
		case calls <- call:
		case err := <-answered:
			return err
		}
	}
	close(calls)
	return <-answered
}
