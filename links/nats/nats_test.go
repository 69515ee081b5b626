package nats_test

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/linktest"
	"github.com/custodymq/custody/links/nats"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func protocol() links.Protocol { return nats.Protocol{} }

// rig is a real server and a real client, with a link in between.
type rig struct {
	*linktest.Rig
	nc *client.Conn
	js jetstream.JetStream
}

func newRig(t *testing.T, p links.Protocol) *rig {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(linktest.Timeout) {
		t.Fatal("the server is not ready")
	}
	r := &rig{Rig: linktest.Open(t, s.Addr().String(), p)}
	r.nc, r.js = r.connect()
	_, err = r.js.CreateStream(r.Ctx, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, Storage: jetstream.MemoryStorage})
	r.Must(err)
	return r
}

func (r *rig) connect() (*client.Conn, jetstream.JetStream) {
	r.T.Helper()
	nc, err := client.Connect("nats://"+r.Link.Addr(), client.NoReconnect(), client.Timeout(linktest.Timeout))
	r.Must(err)
	r.T.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	r.Must(err)
	return nc, js
}

func (r *rig) consumer() jetstream.Consumer {
	r.T.Helper()
	c, err := r.js.CreateConsumer(r.Ctx, "ORDERS", jetstream.ConsumerConfig{Durable: "work", AckPolicy: jetstream.AckExplicitPolicy, AckWait: linktest.Timeout})
	r.Must(err)
	return c
}

func (r *rig) next(c jetstream.Consumer) jetstream.Msg {
	r.T.Helper()
	m, err := c.Next(jetstream.FetchContext(r.Ctx))
	r.Must(err)
	return m
}

func (r *rig) publish(n, body string) *jetstream.PubAck {
	r.T.Helper()
	ack, err := r.js.Publish(r.Ctx, "orders.new", linktest.Payload(n, body))
	r.Must(err)
	return ack
}

// dialogue does one of everything with the real client.
func (r *rig) dialogue() {
	t := r.T
	t.Helper()
	r.publish("1", "body")
	m := client.NewMsg("orders.new")
	m.Header.Set("Key", "k")
	m.Data = linktest.Payload("2", "")
	_, err := r.js.PublishMsg(r.Ctx, m, jetstream.WithMsgID("id-2"))
	r.Must(err)
	m.Data = evidence.Envelope{PublishID: "p1-2-2", BusinessID: "order-2"}.Encode()
	again, err := r.js.PublishMsg(r.Ctx, m, jetstream.WithMsgID("id-2"))
	if err != nil || !again.Duplicate {
		t.Fatalf("%+v %v", again, err)
	}
	_, err = r.js.Publish(r.Ctx, "orders.new", linktest.Payload("3", "x"), jetstream.WithExpectLastSequence(99))
	if err == nil {
		t.Fatal("a publish at the wrong sequence was accepted")
	}
	_, err = r.js.Publish(r.Ctx, "nobody.listens", linktest.Payload("4", "x"), jetstream.WithRetryAttempts(0))
	if !errors.Is(err, jetstream.ErrNoStreamResponse) {
		t.Fatal(err)
	}
	c := r.consumer()
	first := r.next(c)
	r.Must(first.InProgress())
	r.Must(first.Nak())
	second := r.next(c)
	r.Must(second.DoubleAck(r.Ctx))
	third := r.next(c)
	r.Must(third.Ack())
	r.publish("5", "x")
	r.Must(r.next(c).TermWithReason("poison"))
	sub, err := r.nc.SubscribeSync("plain")
	r.Must(err)
	r.Must(r.nc.Publish("plain", linktest.Payload("6", "x")))
	if _, err := sub.NextMsgWithContext(r.Ctx); err != nil {
		t.Fatal(err)
	}
	r.Must(sub.Unsubscribe())
	r.Must(r.nc.FlushWithContext(r.Ctx))
}

func TestRealClientIsUnderstood(t *testing.T) {
	r := newRig(t, protocol())
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
		links.FrameAckConfirm: nil, // filled in below: the server chooses which message came second
		nats.FrameTerm:        {five},
	} {
		var got []evidence.FrameItem
		for _, e := range r.Sink.Carried(kind) {
			got = append(got, e.Items...)
		}
		if kind == links.FrameAckConfirm {
			want = append(want, r.Sink.Carried(links.FrameAck)[0].Items...)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %+v, want %+v", kind, got, want)
		}
	}
	// Order 2 is stored under its first publish: delivery and ack do not name
	// the second.
	for kind, n := range map[string]int{links.FrameDeliver: 5, links.FrameAck: 2} {
		frames := r.Sink.Carried(kind)
		if len(frames) != n {
			t.Errorf("%d frames of %s, want %d", len(frames), kind, n)
		}
		for _, e := range frames {
			if len(e.Items) != 1 || strings.HasSuffix(e.Items[0].PublishID, "-2") || e.Items[0].PublishID == "" {
				t.Errorf("%s: %+v", kind, e.Items)
			}
		}
	}
	for kind, n := range map[string]int{links.FrameSubscribe: 1, nats.FrameAPI: 2, nats.FrameAPIReply: 2, links.FrameError: 0} {
		if got := len(r.Sink.Carried(kind)); got != n {
			t.Errorf("%d frames of %s, want %d", got, kind, n)
		}
	}
	if len(r.Sink.Carried(nats.FramePull)) < 4 {
		t.Errorf("pulls: %+v", r.Sink.Carried(nats.FramePull))
	}
}

func TestDroppedAcceptLeavesOtherRepliesInPlace(t *testing.T) {
	r := newRig(t, protocol())
	a := r.Arm(links.Strike{Action: links.Drop, Kind: links.FrameAccept, Of: "order-1"})
	lost, err := r.js.PublishAsync("orders.new", linktest.Payload("1", "x"), jetstream.WithRetryAttempts(0))
	r.Must(err)
	if ack := r.publish("2", "x"); ack.Sequence != 2 {
		t.Errorf("order-2 was answered with sequence %d", ack.Sequence)
	}
	r.Fired(a)
	select {
	case <-lost.Ok():
		t.Error("a dropped answer arrived")
	default:
	}
}

func TestStrikesOnDeliveries(t *testing.T) {
	linktest.StrikeDeliveries(t, func(t *testing.T) linktest.Dialogue {
		r := newRig(t, protocol())
		sub, err := r.nc.SubscribeSync("plain")
		r.Must(err)
		return linktest.Dialogue{
			Rig:     r.Rig,
			Publish: func(n, body string) { r.Must(r.nc.Publish("plain", linktest.Payload(n, body))) },
			Receive: func() []byte {
				m, err := sub.NextMsgWithContext(r.Ctx)
				r.Must(err)
				return m.Data
			},
		}
	})
}

func TestHeldAckIsNotConfirmed(t *testing.T) {
	r := newRig(t, protocol())
	r.publish("1", "x")
	m := r.next(r.consumer())
	a := r.Arm(links.Strike{Action: links.Hold, Kind: links.FrameAck, Of: "order-1"})
	confirmed := make(chan error, 1)
	go func() { confirmed <- m.DoubleAck(r.Ctx) }()
	r.Fired(a)
	select {
	case err := <-confirmed:
		t.Fatalf("confirmed while held: %v", err)
	default:
	}
	r.Must(a.Heal(r.Ctx))
	r.Must(<-confirmed)
}

func TestCutsEndTheConnection(t *testing.T) {
	for action, stored := range map[links.Action]uint64{links.CutBefore: 0, links.CutAfter: 1} {
		t.Run(string(action), func(t *testing.T) {
			r := newRig(t, protocol())
			a := r.Arm(links.Strike{Action: action, Kind: links.FramePublish})
			if _, err := r.js.Publish(r.Ctx, "orders.new", linktest.Payload("1", "x"), jetstream.WithRetryAttempts(0)); err == nil && action == links.CutBefore {
				t.Error("accepted through a cut")
			}
			r.Fired(a)
			_, js := r.connect()
			s, err := js.Stream(r.Ctx, "ORDERS")
			r.Must(err)
			// The server may still be reading the cut connection.
			for s.CachedInfo().State.Msgs < stored && r.Ctx.Err() == nil {
				_, err = s.Info(r.Ctx)
				r.Must(err)
			}
			if got := s.CachedInfo().State.Msgs; got != stored {
				t.Errorf("%d stored, want %d", got, stored)
			}
		})
	}
}

func TestSplittingChangesNothing(t *testing.T) {
	recorder := &linktest.Recorder{Protocol: protocol()}
	r := newRig(t, recorder)
	r.dialogue()
	r.nc.Close()
	r.Link.Close()
	linktest.Splitting(t, protocol, recorder.Carried())
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
	linktest.Legal(t, protocol(), links.FrameAck, links.Corrupt, false)
}

func FuzzFramer(f *testing.F) {
	linktest.Fuzz(f, protocol,
		linktest.Streams([]byte("CONNECT {}\r\nPUB orders.new _INBOX.a.b 26\r\ncustody/1 p1-1-1 order-1\nx\r\nPING\r\n"), []byte("INFO {}\r\nMSG _INBOX.a.b 1 26\r\n{\"stream\":\"ORDERS\",\"seq\":1}\r\nPONG\r\n")),
		linktest.Streams([]byte("HPUB $JS.ACK.S.C.1.2.3.4.5 r 12 16\r\nNATS/1.0\r\n\r\n+ACK\r\n"), []byte("HMSG _INBOX.x 1 28 28\r\nNATS/1.0 503 No Responders\r\n\r\n")),
	)
}
