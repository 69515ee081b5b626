package nats_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/nats"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

// sink keeps events in memory.
type sink struct {
	mu     sync.Mutex
	events []evidence.Event
}

func (s *sink) Record(e evidence.Event) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
	return uint64(len(s.events))
}

// of lists what was carried of one kind.
func (s *sink) of(kind string) (list []evidence.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		if e.Kind == evidence.FrameCarried && e.Frame == kind {
			list = append(list, e)
		}
	}
	return list
}

// rig is a real server and a real client with a link between them.
type rig struct {
	t    *testing.T
	ctx  context.Context
	link *links.Link
	sink *sink
	nc   *client.Conn
	js   jetstream.JetStream
}

func newRig(t *testing.T, protocol links.Protocol) *rig {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(patience) {
		t.Fatal("the server is not ready")
	}
	r := &rig{t: t, ctx: ctx, sink: &sink{}}
	r.link, err = links.Open(ctx, links.Options{Name: "c1", Upstream: s.Addr().String(), Protocol: protocol, Index: links.NewIndex(), Sink: r.sink})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.link.Close() })
	r.nc, r.js = r.connect()
	if _, err := r.js.CreateStream(ctx, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, Storage: jetstream.MemoryStorage}); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) connect() (*client.Conn, jetstream.JetStream) {
	r.t.Helper()
	nc, err := client.Connect("nats://"+r.link.Addr(), client.NoReconnect(), client.Timeout(patience))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		r.t.Fatal(err)
	}
	return nc, js
}

func (r *rig) consumer() jetstream.Consumer {
	r.t.Helper()
	c, err := r.js.CreateConsumer(r.ctx, "ORDERS", jetstream.ConsumerConfig{Durable: "work", AckPolicy: jetstream.AckExplicitPolicy, AckWait: patience})
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

func (r *rig) next(c jetstream.Consumer) jetstream.Msg {
	r.t.Helper()
	m, err := c.Next(jetstream.FetchContext(r.ctx))
	if err != nil {
		r.t.Fatal(err)
	}
	return m
}

func (r *rig) publish(n, body string) *jetstream.PubAck {
	r.t.Helper()
	ack, err := r.js.Publish(r.ctx, "orders.new", payload(n, body))
	if err != nil {
		r.t.Fatal(err)
	}
	return ack
}

func payload(n, body string) []byte {
	return evidence.Envelope{PublishID: "p1-" + n + "-1", BusinessID: "order-" + n, Body: []byte(body)}.Encode()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// dialogue does one of everything with the real client.
func (r *rig) dialogue() {
	t := r.t
	t.Helper()
	r.publish("1", "body")
	m := client.NewMsg("orders.new")
	m.Header.Set("Key", "k")
	m.Data = payload("2", "")
	_, err := r.js.PublishMsg(r.ctx, m, jetstream.WithMsgID("id-2"))
	must(t, err)
	m.Data = evidence.Envelope{PublishID: "p1-2-2", BusinessID: "order-2"}.Encode()
	again, err := r.js.PublishMsg(r.ctx, m, jetstream.WithMsgID("id-2"))
	if err != nil || !again.Duplicate {
		t.Fatalf("%+v %v", again, err)
	}
	_, err = r.js.Publish(r.ctx, "orders.new", payload("3", "x"), jetstream.WithExpectLastSequence(99))
	if err == nil {
		t.Fatal("a publish at the wrong sequence was accepted")
	}
	_, err = r.js.Publish(r.ctx, "nobody.listens", payload("4", "x"), jetstream.WithRetryAttempts(0))
	if !errors.Is(err, jetstream.ErrNoStreamResponse) {
		t.Fatal(err)
	}
	c := r.consumer()
	first := r.next(c)
	must(t, first.InProgress())
	must(t, first.Nak())
	second := r.next(c)
	must(t, second.DoubleAck(r.ctx))
	third := r.next(c)
	must(t, third.Ack())
	r.publish("5", "x")
	must(t, r.next(c).TermWithReason("poison"))
	sub, err := r.nc.SubscribeSync("plain")
	must(t, err)
	must(t, r.nc.Publish("plain", payload("6", "x")))
	if _, err := sub.NextMsgWithContext(r.ctx); err != nil {
		t.Fatal(err)
	}
	must(t, sub.Unsubscribe())
	must(t, r.nc.FlushWithContext(r.ctx))
}

func TestRealClientIsUnderstood(t *testing.T) {
	r := newRig(t, nats.Protocol{})
	r.dialogue()
	item := func(n, try, id string) evidence.FrameItem {
		return evidence.FrameItem{BusinessID: "order-" + n, PublishID: "p1-" + n + "-" + try, MessageID: id}
	}
	one, two, five := item("1", "1", "ORDERS:1"), item("2", "1", "ORDERS:2"), item("5", "1", "ORDERS:3")
	for kind, want := range map[string][]evidence.FrameItem{
		links.FramePublish:    {item("1", "1", ""), item("2", "1", ""), item("2", "2", ""), item("3", "1", ""), item("4", "1", ""), item("5", "1", ""), item("6", "1", "")},
		links.FrameAccept:     {one, two, item("2", "2", "ORDERS:2"), item("3", "1", ""), item("4", "1", ""), five},
		nats.FrameInProgress:  {one},
		links.FrameNack:       {one},
		links.FrameAckConfirm: nil, // filled in below: which message came second is the server's choice
		nats.FrameTerm:        {five},
	} {
		var got []evidence.FrameItem
		for _, e := range r.sink.of(kind) {
			got = append(got, e.Items...)
		}
		if kind == links.FrameAckConfirm {
			want = append(want, r.sink.of(links.FrameAck)[0].Items...)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %+v, want %+v", kind, got, want)
		}
	}
	// Order 2 is stored under its first try: neither delivery nor ack name the second.
	for kind, n := range map[string]int{links.FrameDeliver: 5, links.FrameAck: 2} {
		frames := r.sink.of(kind)
		if len(frames) != n {
			t.Errorf("%d frames of %s, want %d", len(frames), kind, n)
		}
		for _, e := range frames {
			if len(e.Items) != 1 || strings.HasSuffix(e.Items[0].PublishID, "-2") || e.Items[0].PublishID == "" {
				t.Errorf("%s: %+v", kind, e.Items)
			}
		}
	}
	for kind, n := range map[string]int{links.FrameSubscribe: 1, nats.FrameAPI: 2, nats.FrameAPIReply: 2, nats.FrameError: 0} {
		if got := len(r.sink.of(kind)); got != n {
			t.Errorf("%d frames of %s, want %d", got, kind, n)
		}
	}
	if len(r.sink.of(nats.FramePull)) < 4 {
		t.Errorf("pulls: %+v", r.sink.of(nats.FramePull))
	}
}

func (r *rig) arm(s links.Strike) *links.Armed {
	r.t.Helper()
	s.Label = "f"
	a, err := r.link.Arm(s)
	if err != nil {
		r.t.Fatal(err)
	}
	return a
}

func (r *rig) fired(a *links.Armed) {
	r.t.Helper()
	select {
	case <-a.Fired():
	case <-r.ctx.Done():
		r.t.Fatal("never fired")
	}
}

func TestDroppedAcceptLeavesOtherRepliesInPlace(t *testing.T) {
	r := newRig(t, nats.Protocol{})
	a := r.arm(links.Strike{Action: links.Drop, Kind: links.FrameAccept, Of: "order-1"})
	lost, err := r.js.PublishAsync("orders.new", payload("1", "x"), jetstream.WithRetryAttempts(0))
	must(t, err)
	if ack := r.publish("2", "x"); ack.Sequence != 2 {
		t.Errorf("order-2 was answered with sequence %d", ack.Sequence)
	}
	r.fired(a)
	select {
	case <-lost.Ok():
		t.Error("a dropped answer arrived")
	default:
	}
}

func TestStrikesOnDeliveries(t *testing.T) {
	for _, c := range []struct {
		action links.Action
		bodies []string
	}{
		{links.Duplicate, []string{"body", "body", "last"}},
		{links.Corrupt, []string{"bodx", "last"}},
		{links.Delay, []string{"body", "last"}},
		{links.Drop, []string{"last"}},
	} {
		t.Run(string(c.action), func(t *testing.T) {
			r := newRig(t, nats.Protocol{})
			sub, err := r.nc.SubscribeSync("plain")
			must(t, err)
			a := r.arm(links.Strike{Action: c.action, Kind: links.FrameDeliver, Delay: time.Millisecond})
			must(t, r.nc.Publish("plain", payload("1", "body")))
			must(t, r.nc.Publish("plain", payload("2", "last")))
			for _, want := range c.bodies {
				m, err := sub.NextMsgWithContext(r.ctx)
				must(t, err)
				if e, err := evidence.ParseEnvelope(m.Data); err != nil || string(e.Body) != want {
					t.Errorf("got %q (%v), want %q", e.Body, err, want)
				}
			}
			r.fired(a)
		})
	}
}

func TestHeldAckIsNotConfirmed(t *testing.T) {
	r := newRig(t, nats.Protocol{})
	r.publish("1", "x")
	m := r.next(r.consumer())
	a := r.arm(links.Strike{Action: links.Hold, Kind: links.FrameAck, Of: "order-1"})
	confirmed := make(chan error, 1)
	go func() { confirmed <- m.DoubleAck(r.ctx) }()
	r.fired(a)
	select {
	case err := <-confirmed:
		t.Fatalf("confirmed while held: %v", err)
	default:
	}
	must(t, a.Heal(r.ctx))
	must(t, <-confirmed)
}

func TestCutsEndTheConnection(t *testing.T) {
	for action, stored := range map[links.Action]uint64{links.CutBefore: 0, links.CutAfter: 1} {
		t.Run(string(action), func(t *testing.T) {
			r := newRig(t, nats.Protocol{})
			a := r.arm(links.Strike{Action: action, Kind: links.FramePublish})
			if _, err := r.js.Publish(r.ctx, "orders.new", payload("1", "x"), jetstream.WithRetryAttempts(0)); err == nil && action == links.CutBefore {
				t.Error("accepted through a cut")
			}
			r.fired(a)
			_, js := r.connect()
			s, err := js.Stream(r.ctx, "ORDERS")
			must(t, err)
			// The server may still be reading the cut connection.
			for s.CachedInfo().State.Msgs < stored && r.ctx.Err() == nil {
				_, err = s.Info(r.ctx)
				must(t, err)
			}
			if got := s.CachedInfo().State.Msgs; got != stored {
				t.Errorf("%d stored, want %d", got, stored)
			}
		})
	}
}

// tap is the protocol, and keeps what every connection carried.
type tap struct {
	nats.Protocol
	mu      sync.Mutex
	streams []*stream // toBroker, toClient, in turn
}

type stream struct {
	links.Framer
	mu    sync.Mutex
	bytes []byte
}

func (s *stream) Next(buf []byte) (links.Frame, int, error) {
	f, n, err := s.Framer.Next(buf)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes = append(s.bytes, buf[:n]...)
	return f, n, err
}

func (p *tap) NewConn(ix *links.Index) (toBroker, toClient links.Framer) {
	b, c := p.Protocol.NewConn(ix)
	p.mu.Lock()
	defer p.mu.Unlock()
	pair := []*stream{{Framer: b}, {Framer: c}}
	p.streams = append(p.streams, pair...)
	return pair[0], pair[1]
}

// captured are the two streams of the real client's dialogue.
func captured(t *testing.T) (toBroker, toClient []byte) {
	t.Helper()
	p := &tap{}
	r := newRig(t, p)
	r.dialogue()
	r.nc.Close()
	r.link.Close()
	return p.streams[0].bytes, p.streams[1].bytes
}

// frames cuts both streams, which come in pieces of these lengths.
func frames(toBroker, toClient []byte, pieces ...int) (list []links.Frame, err error) {
	b, c := nats.Protocol{}.NewConn(links.NewIndex())
	for _, way := range []struct {
		framer links.Framer
		stream []byte
	}{{b, toBroker}, {c, toClient}} {
		begin, have := 0, 0
	pieces:
		for _, piece := range append(slices.Clone(pieces), len(way.stream)) {
			have = min(have+piece, len(way.stream))
			for begin < have {
				f, n, bad := way.framer.Next(way.stream[begin:have:have])
				if bad != nil {
					err = errors.Join(err, bad)
					break pieces
				}
				if n == 0 {
					break
				}
				if n < 0 || begin+n > have || !bytes.Equal(f.Raw, way.stream[begin:begin+n]) {
					return nil, errors.New("a framer read over the end")
				}
				list = append(list, links.Frame{Kind: f.Kind, Items: f.Items, Raw: bytes.Clone(f.Raw)})
				begin += n
			}
		}
	}
	return list, err
}

func sameFrames(a, b []links.Frame) bool {
	return slices.EqualFunc(a, b, func(x, y links.Frame) bool {
		return x.Kind == y.Kind && slices.Equal(x.Items, y.Items) && bytes.Equal(x.Raw, y.Raw)
	})
}

func TestSplittingChangesNothing(t *testing.T) {
	toBroker, toClient := captured(t)
	whole, err := frames(toBroker, toClient)
	if err != nil || len(whole) < 30 {
		t.Fatalf("%d frames, %v", len(whole), err)
	}
	rapid.Check(t, func(rt *rapid.T) {
		pieces := rapid.SliceOfN(rapid.IntRange(1, 90), 0, 120).Draw(rt, "pieces")
		split, err := frames(toBroker, toClient, pieces...)
		if err != nil || !sameFrames(split, whole) {
			rt.Fatalf("%d frames (%v), want %d", len(split), err, len(whole))
		}
	})
}

func TestAckSubjects(t *testing.T) {
	for subject, want := range map[string]string{
		"$JS.ACK.ORDERS.work.1.7.3.1700000000000000000.0":            "ORDERS:7",
		"$JS.ACK._.hash.ORDERS.work.1.7.3.1700000000000000000.0":     "ORDERS:7",
		"$JS.ACK.hub.hash.ORDERS.work.2.7.3.1700000000000000000.0.x": "ORDERS:7",
		"$JS.ACK.hub.ORDERS.work.1.7.3.1700000000000000000.0":        "",
		"$JS.ACK.ORDERS.work.1.seven.3.1.0":                          "",
	} {
		b, _ := nats.Protocol{}.NewConn(links.NewIndex())
		f, n, err := b.Next([]byte("PUB " + subject + " 4\r\n+ACK\r\n"))
		if err != nil || n == 0 {
			t.Fatal(subject, n, err)
		}
		got := ""
		if f.Kind == links.FrameAck {
			got = f.Items[0].MessageID
		}
		if got != want {
			t.Errorf("%s: %q %q, want %q", subject, f.Kind, got, want)
		}
	}
}

func TestBadStreamsAreRefused(t *testing.T) {
	for _, line := range []string{
		"GET / HTTP/1.1", "\x16\x03\x01\x00", "PUB a\r\n", "PUB a b c 1\r\n", "PUB a -1\r\n", "PUB a 99999999999999999999\r\n",
		"PUB a 8388609\r\n", "HPUB a 9 3\r\n", "PUB a 1\r\nabc", "INFO " + strings.Repeat("x", 1<<20),
	} {
		b, _ := nats.Protocol{}.NewConn(links.NewIndex())
		if _, _, err := b.Next([]byte(line)); err == nil {
			t.Errorf("%.40q: no error", line)
		}
	}
}

func TestCorruptKeepsFramesWellFormed(t *testing.T) {
	for _, raw := range []string{
		"PUB orders.new 26\r\ncustody/1 p1-1-1 order-1\nx\r\n",
		"HMSG orders.new 1 12 37\r\nNATS/1.0\r\n\r\ncustody/1 p1-1-1 order-1\n\r\n",
	} {
		got, err := nats.Protocol{}.Corrupt(links.Frame{Raw: []byte(raw)})
		if err != nil || string(got) == raw || len(got) != len(raw) || !bytes.Contains(got, []byte("custody/1 p1-1-1 order-")) {
			t.Errorf("%q: %q %v", raw, got, err)
		}
	}
	var illegal *links.ErrIllegal
	if err := (nats.Protocol{}).Legal(links.FrameAck, links.Corrupt); !errors.As(err, &illegal) {
		t.Errorf("corrupt ack: %v", err)
	}
}

func FuzzFramer(f *testing.F) {
	f.Add([]byte("CONNECT {}\r\nPUB orders.new _INBOX.a.b 26\r\ncustody/1 p1-1-1 order-1\nx\r\nPING\r\n"), []byte("INFO {}\r\nMSG _INBOX.a.b 1 26\r\n{\"stream\":\"ORDERS\",\"seq\":1}\r\nPONG\r\n"), uint(3))
	f.Add([]byte("HPUB $JS.ACK.S.C.1.2.3.4.5 r 12 16\r\nNATS/1.0\r\n\r\n+ACK\r\n"), []byte("HMSG _INBOX.x 1 28 28\r\nNATS/1.0 503 No Responders\r\n\r\n"), uint(1))
	f.Fuzz(func(t *testing.T, toBroker, toClient []byte, piece uint) {
		whole, err1 := frames(toBroker, toClient)
		size := int(piece%64) + 1
		split, err2 := frames(toBroker, toClient, slices.Repeat([]int{size}, max(len(toBroker), len(toClient))/size)...)
		if !sameFrames(whole, split) || (err1 == nil) != (err2 == nil) {
			t.Fatalf("whole: %d frames, %v; in pieces: %d frames, %v", len(whole), err1, len(split), err2)
		}
		for _, fr := range whole {
			if corrupted, err := (nats.Protocol{}).Corrupt(fr); err == nil && len(corrupted) != len(fr.Raw) {
				t.Fatal("corrupt changed the length")
			}
		}
	})
}
