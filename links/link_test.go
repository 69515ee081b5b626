package links_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
)

// However bytes are split, they arrive unchanged and each frame is recorded
// once, in order.
func TestRelayIsTransparent(t *testing.T) {
	r := newRig(t)
	rapid.Check(t, func(rt *rapid.T) {
		client, broker := r.connect()
		defer client.Close()
		defer broker.Close()
		before := len(r.sink.of(evidence.FrameCarried))
		frames := rapid.SliceOfN(rapid.StringMatching(`(publish|ack) [a-z]{1,40}`), 1, 20).Draw(rt, "frames")
		stream := strings.Join(frames, "\n") + "\n"
		for rest := stream; rest != ""; {
			n := rapid.IntRange(1, len(rest)).Draw(rt, "piece")
			client.send(rest[:n])
			rest = rest[n:]
		}
		broker.gets(stream)
		if got := r.sink.of(evidence.FrameCarried)[before:]; !slices.Equal(got, frames) {
			rt.Fatalf("carried %q, want %q", got, frames)
		}
	})
}

func TestEndsTravelInTheirDirection(t *testing.T) {
	r := newRig(t)
	client, broker := r.connect()
	client.send("publish a\npart")
	client.Conn.(*net.TCPConn).CloseWrite()
	if err := broker.ends("publish a\npart"); err != nil {
		t.Error(err)
	}
	broker.send("deliver x\n")
	broker.Close()
	if err := client.ends("deliver x\n"); err != nil {
		t.Error(err)
	}
	r.sink.await(t, evidence.LinkDisconnected, 1)

	client, broker = r.connect()
	client.Conn.(*net.TCPConn).SetLinger(0)
	client.Close()
	if err := broker.ends(""); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client's reset arrived as %v", err)
	}
}

func TestRefusedUpstreamResetsTheClient(t *testing.T) {
	r := newRig(t)
	r.up.Close()
	c, err := net.Dial("tcp", r.link.Addr())
	if err == nil { // the reset may arrive before the connect has returned
		err = newPeer(t, c).ends("")
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("client saw %v, want a reset", err)
	}
	if e := r.sink.await(t, evidence.LinkDisconnected, 1); !strings.Contains(e.Reason, "refused") {
		t.Errorf("reason %q", e.Reason)
	}
	up, err := net.Listen("tcp", r.up.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer up.Close()
	r.up = up
	client, broker := r.connect()
	client.send("publish a\n")
	broker.gets("publish a\n")
}

func TestDownAndUpAgain(t *testing.T) {
	r := newRig(t)
	client, broker := r.connect()
	addr := r.link.Addr()
	a, err := r.link.Down("d")
	if err != nil {
		t.Fatal(err)
	}
	fired(t, a)
	client.ends("")
	broker.ends("")
	if c, err := net.Dial("tcp", addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a link that is down: %v %v", c, err)
	}
	if _, err := r.link.Down("d"); err == nil {
		t.Error("down twice")
	}
	heal(t, a)
	if r.link.Addr() != addr {
		t.Error("the address changed")
	}
	client, broker = r.connect()
	client.send("publish a\n")
	broker.gets("publish a\n")
}

func TestResetFiresForEachConnection(t *testing.T) {
	r := newRig(t)
	notFired(t, r.link.Reset("none open"))
	client, broker := r.connect()
	r.connect()
	r.sink.await(t, evidence.LinkConnected, 2) // the link has noticed the connection too
	a := r.link.Reset("r")
	fired(t, a)
	if a.Count() != 2 {
		t.Errorf("count %d", a.Count())
	}
	for _, p := range []*peer{client, broker} {
		if err := p.ends(""); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("saw %v", err)
		}
	}
}

func TestBlackHole(t *testing.T) {
	r := newRig(t)
	client, broker := r.connect()
	idle, idleBroker := r.connect()
	a, err := r.link.BlackHole("hole", evidence.NoDirection)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.link.BlackHole("hole", evidence.ToBroker); err == nil {
		t.Error("two black holes at once")
	}
	notFired(t, a)
	client.send("publish a\n")
	fired(t, a)
	broker.send("deliver x\n")
	r.sink.await(t, evidence.FaultFired, 2)
	client.getsNothing()
	broker.getsNothing()
	late := r.dial() // accepted and silent
	late.send("hello\n")
	late.getsNothing()
	client.Close()
	broker.getsNothing() // its half-close is lost as well
	heal(t, a)
	broker.ends("")
	late.ends("")
	idle.send("publish b\n") // lost nothing, so it stays open
	idleBroker.gets("publish b\n")
	want := []string{"publish a fault=hole struck=black-hole", "deliver x fault=hole struck=black-hole"}
	if got := r.sink.of(evidence.FaultFired); !slices.Equal(got, want) {
		t.Errorf("fired %q, want %q", got, want)
	}
}

func TestBlackHoleInOneDirection(t *testing.T) {
	r := newRig(t)
	client, broker := r.connect()
	a, err := r.link.BlackHole("hole", evidence.ToBroker)
	if err != nil {
		t.Fatal(err)
	}
	client.send("publish a\n")
	fired(t, a)
	broker.send("deliver x\n")
	client.gets("deliver x\n")
	broker.getsNothing()
	heal(t, a)
	broker.ends("")
}

func TestToxics(t *testing.T) {
	r := newRig(t, func(o *links.Options) { o.Toxics = true })
	client, broker := r.connect()
	round := func() {
		t.Helper()
		client.send("publish a\n")
		broker.gets("publish a\n")
		broker.send("deliver x\n")
		client.gets("deliver x\n")
	}
	round()
	for _, x := range []links.Toxic{
		{Type: "latency", To: evidence.ToBroker, Attributes: map[string]any{"latency": 20}},
		{Type: "bandwidth", To: evidence.ToClient, Attributes: map[string]any{"rate": 1000}},
	} {
		a, err := r.link.AddToxic(x.Type, x)
		if err != nil {
			t.Fatal(err)
		}
		notFired(t, a)
		began := time.Now()
		round()
		fired(t, a)
		if x.Type == "latency" && time.Since(began) < 20*time.Millisecond {
			t.Errorf("no delay: %v", time.Since(began))
		}
		heal(t, a)
		round()
	}
	if want := []string{" fault=latency struck=latency", " fault=bandwidth struck=bandwidth"}; !slices.Equal(r.sink.of(evidence.FaultFired), want) {
		t.Errorf("fired %q", r.sink.of(evidence.FaultFired))
	}
}

func TestToxicStartedLaterActsOnNewConnections(t *testing.T) {
	r := newRig(t)
	old, oldBroker := r.connect()
	a, err := r.link.AddToxic("late", links.Toxic{Type: "latency", To: evidence.ToBroker, Attributes: map[string]any{"latency": 1}})
	if err != nil {
		t.Fatal(err)
	}
	old.send("publish a\n")
	oldBroker.gets("publish a\n")
	notFired(t, a)
	client, broker := r.connect()
	client.send("publish b\n")
	broker.gets("publish b\n")
	fired(t, a)
	for _, bad := range []links.Toxic{{Type: "acid", To: evidence.ToBroker}, {Type: "latency"}, {Type: "latency", To: evidence.ToBroker, Attributes: map[string]any{"latency": "long"}}} {
		if _, err := r.link.AddToxic("bad", bad); err == nil {
			t.Errorf("%+v: added", bad)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	if _, err := links.Open(t.Context(), links.Options{Name: "c1"}); err == nil {
		t.Error("opened without an upstream")
	}
}

// BenchmarkRelay compares round trips with and without a link.
func BenchmarkRelay(b *testing.B) {
	up, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer up.Close()
	go func() {
		for {
			c, err := up.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(c, c)
			}()
		}
	}()
	link, err := links.Open(b.Context(), links.Options{Name: "c1", Upstream: up.Addr().String(), Protocol: lines{}, Index: links.NewIndex(), Sink: nowhere{}})
	if err != nil {
		b.Fatal(err)
	}
	defer link.Close()
	frame := append(bytes.Repeat([]byte("x"), 256), '\n')
	copy(frame, "publish ")
	for name, addr := range map[string]string{"direct": up.Addr().String(), "link": link.Addr()} {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		for window, run := range map[string]int{"one": 1, "thousand": 1000} {
			b.Run(name+"/"+window, func(b *testing.B) {
				out, in := bytes.Repeat(frame, run), make([]byte, run*len(frame))
				b.SetBytes(int64(len(out)))
				for b.Loop() {
					if _, err := c.Write(out); err != nil {
						b.Fatal(err)
					}
					if _, err := io.ReadFull(c, in); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

type nowhere struct{}

func (nowhere) Record(evidence.Event) uint64 { return 0 }

// Toxiproxy cannot remove a toxic while a peer does not read; healing then cuts
// the connections, in bounded time, and the link works again.
func TestToxicHealsAlthoughAPeerStoppedReading(t *testing.T) {
	r := newRig(t, func(o *links.Options) { o.Toxics = true })
	client, _ := r.connect()
	a, err := r.link.AddToxic("slow", links.Toxic{Type: "latency", To: evidence.ToBroker, Attributes: map[string]any{"latency": 1}})
	if err != nil {
		t.Fatal(err)
	}
	client.SetWriteDeadline(time.Now().Add(10 * silence))
	flood := []byte(strings.Repeat("publish a\n", 1000))
	for err == nil {
		_, err = client.Write(flood)
	}
	ctx, cancel := context.WithTimeout(t.Context(), silence)
	defer cancel()
	if err := a.Heal(ctx); err != nil {
		t.Fatal(err)
	}
	client, broker := r.connect()
	client.send("publish b\n")
	broker.gets("publish b\n")
}
