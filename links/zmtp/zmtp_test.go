package zmtp_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
	"github.com/go-zeromq/zmq4/security/plain"
	"go.uber.org/goleak"

	"github.com/custodymq/custody/broker/wire"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/linktest"
	"github.com/custodymq/custody/links/zmtp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func protocol() links.Protocol { return zmtp.Protocol{} }

// session is a client and a broker on zmq4, with a link in between.
type session struct {
	*linktest.Rig
	client, broker *zmq4.Conn
}

func connect(t *testing.T, client, broker zmq4.Security) *session {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	s := &session{Rig: linktest.Open(t, ln.Addr().String(), protocol())}
	dialled, err := net.Dial("tcp", s.Link.Addr())
	s.Must(err)
	t.Cleanup(func() { dialled.Close() })
	accepted, err := ln.Accept()
	s.Must(err)
	t.Cleanup(func() { accepted.Close() })
	for _, c := range []net.Conn{dialled, accepted} {
		c.SetDeadline(time.Now().Add(linktest.Timeout))
	}
	opened := make(chan error, 1)
	go func() {
		var err error
		s.broker, err = zmq4.Open(accepted, broker, zmq4.Router, zmq4.SocketIdentity("b"), true, nil)
		opened <- err
	}()
	s.client, err = zmq4.Open(dialled, client, zmq4.Dealer, zmq4.SocketIdentity("c"), false, nil)
	s.Must(errors.Join(err, <-opened))
	return s
}

func (s *session) send(from *zmq4.Conn, m wire.Message) {
	s.T.Helper()
	parts, err := wire.Encode(nil, &m)
	s.Must(err)
	s.Must(from.SendMsg(zmq4.NewMsgFrom(parts...)))
}

func (s *session) receive(at *zmq4.Conn) wire.Message {
	s.T.Helper()
	msg, err := at.RecvMsg()
	s.Must(err)
	m, err := wire.Decode(msg.Frames)
	s.Must(err)
	return m
}

// dialogue is one of each frame that a script can name, in order, with its
// expected item.
var dialogue = []struct {
	to   evidence.Direction
	msg  wire.Message
	kind string
	item evidence.FrameItem
}{
	{evidence.ToBroker, wire.Message{Kind: wire.Hello, Request: 1, Client: "c1"}, "", evidence.FrameItem{}},
	{evidence.ToClient, wire.Message{Kind: wire.Welcome, Request: 1, Credit: 8}, "", evidence.FrameItem{}},
	{evidence.ToBroker, wire.Message{Kind: wire.Subscribe, Request: 2, Topic: "orders", Mode: wire.AtLeastOnce, Credit: 1}, "subscribe", evidence.FrameItem{}},
	{evidence.ToClient, wire.Message{Kind: wire.SubscribeReply, Request: 2, Answer: wire.Accepted}, "subscribed", evidence.FrameItem{}},
	{evidence.ToBroker, wire.Message{Kind: wire.Publish, Request: 3, Topic: "orders", Mode: wire.AtLeastOnce, BusinessID: "order-1", Payload: linktest.Payload("1", "body")}, "publish", evidence.FrameItem{BusinessID: "order-1", PublishID: "p1-1-1"}},
	{evidence.ToClient, wire.Message{Kind: wire.PublishReply, Request: 3, Answer: wire.Accepted, MessageID: "m-1"}, "accept", evidence.FrameItem{BusinessID: "order-1", PublishID: "p1-1-1", MessageID: "m-1"}},
	{evidence.ToClient, wire.Message{Kind: wire.Deliver, Topic: "orders", BusinessID: "order-1", MessageID: "m-1", Attempt: 1, Payload: linktest.Payload("1", "body")}, "deliver", evidence.FrameItem{BusinessID: "order-1", PublishID: "p1-1-1", MessageID: "m-1"}},
	{evidence.ToBroker, wire.Message{Kind: wire.Nack, Request: 4, MessageID: "m-1", Attempt: 1}, "nack", evidence.FrameItem{BusinessID: "order-1", PublishID: "p1-1-1", MessageID: "m-1"}},
	{evidence.ToClient, wire.Message{Kind: wire.NackReply, Request: 4, MessageID: "m-1", Answer: wire.Accepted}, "nack-confirm", evidence.FrameItem{BusinessID: "order-1", PublishID: "p1-1-1", MessageID: "m-1"}},
	{evidence.ToBroker, wire.Message{Kind: wire.Ack, Request: 5, MessageID: "m-1", Attempt: 2}, "ack", evidence.FrameItem{BusinessID: "order-1", PublishID: "p1-1-1", MessageID: "m-1"}},
	{evidence.ToClient, wire.Message{Kind: wire.AckReply, Request: 5, Answer: wire.Accepted}, "ack-confirm", evidence.FrameItem{BusinessID: "order-1", PublishID: "p1-1-1", MessageID: "m-1"}},
	{evidence.ToBroker, wire.Message{Kind: wire.Lookup, Request: 6, BusinessID: "order-1"}, "lookup", evidence.FrameItem{BusinessID: "order-1"}},
	{evidence.ToClient, wire.Message{Kind: wire.LookupReply, Request: 6, BusinessID: "order-1", Answer: wire.Settled}, "lookup-reply", evidence.FrameItem{BusinessID: "order-1"}},
	{evidence.ToBroker, wire.Message{Kind: wire.Credit, Credit: 3}, "credit", evidence.FrameItem{}},
	{evidence.ToBroker, wire.Message{Kind: wire.Ping}, "", evidence.FrameItem{}},
	// A retry answered with the first message's ID is an alias: the first
	// publish is what is stored.
	{evidence.ToBroker, wire.Message{Kind: wire.Publish, Request: 7, Topic: "orders", Mode: wire.AtLeastOnce, BusinessID: "order-1", Payload: evidence.Envelope{PublishID: "p1-1-2", BusinessID: "order-1"}.Encode()}, "publish", evidence.FrameItem{BusinessID: "order-1", PublishID: "p1-1-2"}},
	{evidence.ToClient, wire.Message{Kind: wire.PublishReply, Request: 7, Answer: wire.Accepted, MessageID: "m-1", Again: true}, "accept", evidence.FrameItem{BusinessID: "order-1", PublishID: "p1-1-2", MessageID: "m-1"}},
	{evidence.ToBroker, wire.Message{Kind: wire.Ack, Request: 8, MessageID: "m-1", Attempt: 3}, "ack", evidence.FrameItem{BusinessID: "order-1", PublishID: "p1-1-1", MessageID: "m-1"}},
}

func TestEveryKindIsUnderstood(t *testing.T) {
	for name, security := range map[string]func() zmq4.Security{
		"NULL": null.Security, "PLAIN": func() zmq4.Security { return plain.Security("user", "secret") },
	} {
		t.Run(name, func(t *testing.T) {
			s := connect(t, security(), security())
			var want []evidence.Event
			for _, step := range dialogue {
				from, at := s.broker, s.client
				if step.to == evidence.ToBroker {
					from, at = s.client, s.broker
				}
				s.send(from, step.msg)
				s.receive(at)
				if step.kind != "" {
					e := evidence.Event{Kind: evidence.FrameCarried, Frame: step.kind, To: step.to}
					if step.item != (evidence.FrameItem{}) {
						e.Items = []evidence.FrameItem{step.item}
					}
					want = append(want, e)
				}
			}
			got := s.Sink.Carried("")
			if len(got) != len(want) {
				t.Fatalf("%d frames carried, want %d: %+v", len(got), len(want), got)
			}
			for i := range want {
				if got[i].Frame != want[i].Frame || got[i].To != want[i].To || !slices.Equal(got[i].Items, want[i].Items) {
					t.Errorf("frame %d: %+v, want %+v", i, got[i], want[i])
				}
			}
		})
	}
}

func TestStrikesBetweenRealPeers(t *testing.T) {
	for action, arrive := range map[links.Action][]string{
		links.Drop:      {"one", "three"},
		links.Duplicate: {"one", "two", "two", "three"},
		links.Corrupt:   {"one", "twn", "three"},
		links.Delay:     {"one", "two", "three"},
		links.Hold:      {"one", "two", "three"},
		links.HoldAfter: {"one", "two", "three"},
		links.CutBefore: {"one"},
		links.CutAfter:  {"one", "two"},
	} {
		t.Run(string(action), func(t *testing.T) {
			s := connect(t, null.Security(), null.Security())
			a := s.Arm(links.Strike{Action: action, Kind: links.FramePublish, Of: "order-2", Delay: time.Millisecond})
			for i, body := range []string{"one", "two", "three"} {
				n := string(rune('1' + i))
				parts, err := wire.Encode(nil, &wire.Message{Kind: wire.Publish, Request: uint64(i + 1), Topic: "orders", Mode: wire.AtLeastOnce, BusinessID: "order-" + n, Payload: linktest.Payload(n, body)})
				s.Must(err)
				if s.client.SendMsg(zmq4.NewMsgFrom(parts...)) != nil {
					break // the connection was cut meanwhile
				}
			}
			s.Fired(a)
			s.Must(a.Heal(s.Ctx))
			for _, want := range arrive {
				m := s.receive(s.broker)
				e, err := evidence.ParseEnvelope(m.Payload)
				if err != nil || string(e.Body) != want {
					t.Fatalf("got %q (%v), want %q", e.Body, err, want)
				}
			}
		})
	}
}

func TestCorruptKeepsFramesWellFormed(t *testing.T) {
	for _, body := range []string{"body", "", string(make([]byte, 70000))} {
		m := wire.Message{Kind: wire.Publish, Request: 1, Topic: "orders", Mode: wire.AtLeastOnce, BusinessID: "order-1", Payload: linktest.Payload("1", body)}
		parts, err := wire.Encode(nil, &m)
		if err != nil {
			t.Fatal(err)
		}
		raw := frame(parts...)
		corrupted, err := zmtp.Protocol{}.Corrupt(links.Frame{Raw: raw})
		if err != nil || bytes.Equal(raw, corrupted) {
			t.Fatalf("body of %d bytes: %v, unchanged: %v", len(body), err, bytes.Equal(raw, corrupted))
		}
		toBroker, _ := zmtp.Protocol{}.NewConn(links.NewIndex())
		toBroker.Next(greeting)
		f, n, err := toBroker.Next(corrupted)
		if err != nil || n != len(raw) || f.Kind != links.FramePublish || len(f.Items) != 1 || f.Items[0].PublishID != "p1-1-1" {
			t.Errorf("body of %d bytes: %+v %d %v", len(body), f.Items, n, err)
		}
	}
	if _, err := (zmtp.Protocol{}).Corrupt(links.Frame{Raw: frame([]byte("one part"))}); err == nil {
		t.Error("a message without a payload was corrupted")
	}
	linktest.Legal(t, protocol(), links.FrameAck, links.Corrupt, false)
}

func TestBadStreamsAreRefused(t *testing.T) {
	for name, stream := range map[string][]byte{
		"no greeting":            []byte("GET / HTTP/1.1\r\n"),
		"size of 2^62":           append(bytes.Clone(greeting), 2, 0x40, 0, 0, 0, 0, 0, 0, 0),
		"sizes that add up":      append(append(bytes.Clone(greeting), frame(make([]byte, 300), nil)[:309]...), 2, 0, 0, 0, 0, 0, 0x7F, 0xFF, 0xFF),
		"reserved flags":         append(bytes.Clone(greeting), 0xF0, 0),
		"command within message": append(bytes.Clone(greeting), 1, 0, 4, 0),
	} {
		if _, refused := linktest.Streams(stream, nil).Frames(t, protocol()); refused == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// captured is the dialogue between a client and its broker.
func captured(t testing.TB) linktest.Capture {
	t.Helper()
	var c linktest.Capture
	for _, to := range []evidence.Direction{evidence.ToBroker, evidence.ToClient} {
		c = append(c, linktest.Chunk{Conn: 1, To: to, Bytes: greeting}, linktest.Chunk{Conn: 1, To: to, Bytes: []byte("\x04\x06\x05READY")})
	}
	for _, step := range dialogue {
		parts, err := wire.Encode(nil, &step.msg)
		if err != nil {
			t.Fatal(err)
		}
		c = append(c, linktest.Chunk{Conn: 1, To: step.to, Bytes: frame(parts...)})
	}
	return c
}

func TestSplittingChangesNothing(t *testing.T) { linktest.Splitting(t, protocol, captured(t)) }

func FuzzFramer(f *testing.F) {
	endless := append(bytes.Clone(greeting), 2, 0x40, 0, 0, 0, 0, 0, 0, 0)
	linktest.Fuzz(f, protocol, captured(f), linktest.Streams(endless, nil))
}

var greeting = func() []byte {
	g := make([]byte, 64)
	g[0], g[9], g[10] = 0xFF, 0x7F, 3
	copy(g[12:], "NULL")
	return g
}()

// frame encodes a message in ZMTP.
func frame(parts ...[]byte) (raw []byte) {
	for i, p := range parts {
		flags := byte(0)
		if i < len(parts)-1 {
			flags |= 1
		}
		if len(p) > 255 {
			n := len(p)
			raw = append(raw, flags|2, 0, 0, 0, 0, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
		} else {
			raw = append(raw, flags, byte(len(p)))
		}
		raw = append(raw, p...)
	}
	return raw
}

// zmq4's high-level sockets work through a link.
func TestSocketsOfZMQ4(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), linktest.Timeout)
	defer cancel()
	router := zmq4.NewRouter(ctx)
	defer router.Close()
	if err := router.Listen("tcp://127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	r := linktest.Open(t, router.Addr().String(), protocol())
	dealer := zmq4.NewDealer(ctx)
	defer dealer.Close()
	r.Must(dealer.Dial("tcp://" + r.Link.Addr()))
	r.Must(dealer.SendMulti(zmq4.NewMsgFrom([]byte("not"), []byte("ours"))))
	msg, err := router.Recv()
	if err != nil || len(msg.Frames) != 3 || string(msg.Frames[2]) != "ours" {
		t.Errorf("%v %v", msg, err)
	}
}
