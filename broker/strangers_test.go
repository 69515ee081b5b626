package broker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/custodymq/custody/broker"
	"github.com/custodymq/custody/broker/attack"
	"github.com/custodymq/custody/broker/client"
	"github.com/custodymq/custody/broker/wire"
)

// The tests in this file cover peers that have shown no token, or a wrong one.

const token = "a-token-of-24-characters"

func enter(t testing.TB, s *broker.Server, token string) (*client.Conn, error) {
	t.Helper()
	c, err := client.Dial(within(t), s.Addr(), client.Options{Name: "c", Token: token})
	if err == nil {
		t.Cleanup(func() { c.Close() })
	}
	return c, err
}

func state(t testing.TB, s *broker.Server) broker.State {
	t.Helper()
	st, err := s.State(within(t))
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// trickle writes at a steady pace until the broker closes the connection.
func trickle(t testing.TB, nc net.Conn, next func() []byte) {
	t.Helper()
	pace := time.NewTicker(20 * time.Millisecond)
	defer pace.Stop()
	for {
		if _, err := nc.Write(next()); err != nil {
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() {
				t.Error("the broker kept the connection")
			}
			return
		}
		<-pace.C
	}
}

// TestTheDeadlineOfTheHelloIsAbsolute checks that the deadline from the first
// byte to the Hello does not move, whatever the peer sends.
func TestTheDeadlineOfTheHelloIsAbsolute(t *testing.T) {
	s := start(t, broker.Config{Handshake: 300 * time.Millisecond, Heartbeat: 10 * time.Minute})
	ping := []byte(attack.Ping)
	for name, c := range map[string]struct{ first, again []byte }{
		"silent":            {},
		"greeting, then no": {first: attack.Greeting()},
		"no Hello":          {first: join(attack.Greeting(), attack.Ready(attack.Dealer))},
		"pings":             {first: join(attack.Greeting(), attack.Ready(attack.Dealer)), again: ping},
		"half a Hello":      {first: join(attack.Greeting(), attack.Ready(attack.Dealer), attack.Hello("")[:5])},
	} {
		t.Run(name, func(t *testing.T) {
			nc := raw(t, s)
			_, _ = nc.Write(c.first)
			if c.again == nil {
				closedByPeer(t, nc)
				return
			}
			trickle(t, nc, func() []byte { return c.again })
		})
	}
	t.Run("byte by byte", func(t *testing.T) {
		nc := raw(t, s)
		rest := join(attack.Greeting(), attack.Ready(attack.Dealer), bytes.Repeat(ping, 1000))
		trickle(t, nc, func() []byte {
			next := rest[:1]
			rest = rest[1:]
			return next
		})
	})
}

// TestBeforeTheHelloLittleIsRead checks that a frame announcing more than a Hello
// needs is neither awaited nor allocated, and that small ones are limited too.
func TestBeforeTheHelloLittleIsRead(t *testing.T) {
	s := start(t, broker.Config{Handshake: 10 * time.Minute})
	entering := join(attack.Greeting(), attack.Ready(attack.Dealer))
	head := attack.Frames(wire.Message{Kind: wire.Hello, Request: 1, Client: "x"})
	head = head[:len(head)-9] // strip the empty payload
	for name, say := range map[string][]byte{
		"a head of 64 KiB":                 join(entering, attack.Header(1, 64<<10)),
		"a payload of 4 MiB":               join(entering, head, attack.Header(0, 4<<20)),
		"a payload of 5 KiB":               join(entering, head, attack.Header(0, 5<<10)),
		"a second part of 4 KiB and again": join(entering, head, bytes.Repeat(append(attack.Header(1, 4<<10), make([]byte, 4<<10)...), 8)),
		"pings without end":                join(entering, bytes.Repeat([]byte(attack.Ping), 10_000)),
	} {
		t.Run(name, func(t *testing.T) {
			nc := raw(t, s)
			_, _ = nc.Write(say)
			closedByPeer(t, nc)
		})
	}
	// Once accepted there is no such limit, for data sent along with the Hello
	// too.
	nc := raw(t, s)
	big := attack.Frames(wire.Message{Kind: wire.Publish, Request: 2, Topic: "nobody", Mode: wire.AtMostOnce, Payload: make([]byte, 1<<20)})
	if _, err := nc.Write(join(entering, attack.Hello(""), big, attack.Frames(wire.Message{Kind: wire.Ping, Request: 3}))); err != nil {
		t.Fatal(err)
	}
	pong := []byte{0xC5, wire.Version, byte(wire.Pong), 3}
	var got []byte
	for buf := make([]byte, 1024); !bytes.Contains(got, pong); {
		n, err := nc.Read(buf)
		if err != nil {
			t.Fatalf("no Pong in %q: %v", got, err)
		}
		got = append(got, buf[:n]...)
	}
}

// TestStrangersShutNobodyOut checks that a client is admitted however many
// connections stay silent.
func TestStrangersShutNobodyOut(t *testing.T) {
	const places = 16
	s := start(t, broker.Config{Store: newStore(), Connections: 2, Strangers: places, Handshake: 10 * time.Minute, Token: token})
	first, err := enter(t, s, token)
	if err != nil {
		t.Fatal(err)
	}
	sub := subscribe(t, first, "orders", wire.AtLeastOnce, 8)
	for i := range 200 {
		nc := raw(t, s)
		if i%2 == 0 {
			_, _ = nc.Write(join(attack.Greeting(), attack.Ready(attack.Dealer)))
		}
		if n := state(t, s).Strangers; n > places {
			t.Fatalf("%d strangers hold a place, limit %d", n, places)
		}
	}
	second, err := enter(t, s, token)
	if err != nil {
		t.Fatalf("a client among strangers: %v", err)
	}
	cycle(t, second, sub, "order-1")
	if _, err := enter(t, s, token); !errors.Is(err, client.ErrRefused) || !strings.Contains(err.Error(), "limit of 2 sessions") {
		t.Errorf("a third session: %v", err)
	}
	if n := state(t, s).Refused[broker.RefusedPlace]; n == 0 {
		t.Error("nobody's place was needed, so this has shown nothing")
	}
}

// logged collects the lines of a log.
type logged struct {
	mu    sync.Mutex
	lines []string
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(p))
	return len(p), nil
}

func (l *logged) with(what string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if strings.Contains(line, what) {
			found = append(found, line)
		}
	}
	return found
}

func TestAWrongTokenLeavesALine(t *testing.T) {
	var log logged
	s := start(t, broker.Config{Token: token, Log: slog.New(slog.NewTextHandler(&log, nil))})
	const wrong = "a-token-of-24-charactersX"
	for range 3 {
		if _, err := enter(t, s, wrong); !errors.Is(err, client.ErrRefused) || !strings.Contains(err.Error(), "token") {
			t.Fatalf("a wrong token: %v", err)
		}
	}
	if _, err := enter(t, s, token); err != nil {
		t.Fatalf("the right token after wrong ones: %v", err)
	}
	lines := log.with("token refused")
	if len(lines) != 3 || !strings.Contains(lines[2], "failures=3") || !strings.Contains(lines[2], "peer=127.0.0.1:") || !strings.Contains(lines[2], "level=WARN") {
		t.Errorf("the log has %q", lines)
	}
	if told := log.with("a-token-of"); len(told) > 0 {
		t.Errorf("a token is in the log: %q", told)
	}
	if n := state(t, s).Refused[broker.RefusedToken]; n != 3 {
		t.Errorf("%d wrong tokens are counted", n)
	}
}

// TestGuessingIsSlow checks that guessing costs ever longer waits, even without
// waiting for the answer, and that it can neither flood the log nor lock out a
// client behind the same address.
func TestGuessingIsSlow(t *testing.T) {
	var log logged
	s := start(t, broker.Config{Token: token, Strangers: 64, Handshake: time.Minute, Log: slog.New(slog.NewTextHandler(&log, nil))})
	guess := join(attack.Greeting(), attack.Ready(attack.Dealer), attack.Frames(wire.Message{Kind: wire.Hello, Request: 1, Client: "g", Token: "wrong"}))

	var all sync.WaitGroup
	ctx, stop := context.WithCancel(within(t))
	for range 8 { // half of the address's places
		all.Go(func() {
			for ctx.Err() == nil {
				nc, err := net.Dial("tcp", s.Addr())
				if err != nil {
					t.Error(err)
					return
				}
				free := context.AfterFunc(ctx, func() { nc.Close() })
				_, _ = nc.Write(guess)
				_, _ = io.Copy(io.Discard, nc)
				free()
				nc.Close()
			}
		})
	}
	for state(t, s).Refused[broker.RefusedToken] < 16 {
	}
	if _, err := enter(t, s, token); err != nil {
		t.Errorf("a client beside guessers: %v", err)
	}
	stop()
	all.Wait()

	// impatient connections send everything at once and wait for nothing.
	const impatient = 300
	before := state(t, s).Refused
	for range impatient {
		nc := raw(t, s)
		if _, err := nc.Write(guess); err == nil {
			_ = nc.(*net.TCPConn).CloseWrite()
		}
	}
	for {
		now := state(t, s).Refused
		judged, turned := now[broker.RefusedToken]-before[broker.RefusedToken], now[broker.RefusedPlace]-before[broker.RefusedPlace]
		if judged+turned < impatient {
			continue
		}
		if judged > impatient/3 {
			t.Errorf("%d guesses of %d were judged", judged, impatient)
		}
		break
	}
	if n := len(log.with("")); n > 400 {
		t.Errorf("%d lines in the log", n)
	}
}

func TestTheLogCannotBeFlooded(t *testing.T) {
	var log logged
	s := start(t, broker.Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
	const connections = 500
	for range connections {
		nc := raw(t, s)
		_, _ = nc.Write(bytes.Repeat([]byte("x"), 64))
		closedByPeer(t, nc)
	}
	if n := state(t, s).Refused[broker.RefusedHandshake]; n != connections {
		t.Errorf("%d handshakes are counted", n)
	}
	if n := len(log.with("handshake failed")); n == 0 || n > connections/2 {
		t.Errorf("%d lines in the log", n)
	}
}

func TestAShortTokenIsRefusedAtTheStart(t *testing.T) {
	_, err := broker.Open(within(t), broker.Config{Token: "short"})
	if err == nil || !strings.Contains(err.Error(), "5 bytes") || !strings.Contains(err.Error(), "at least 16") || strings.Contains(err.Error(), "short") {
		t.Error(fmt.Sprint(err))
	}
}
