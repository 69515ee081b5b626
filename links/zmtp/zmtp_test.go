package zmtp_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
	"github.com/go-zeromq/zmq4/security/plain"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/custodymq/custody/broker/wire"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/zmtp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

// sink keeps frames in memory.
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

func (s *sink) carried() (list []evidence.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		if e.Kind == evidence.FrameCarried {
			list = append(list, e)
		}
	}
	return list
}

// session is a client and a broker on zmq4, with a link between them.
type session struct {
	t              *testing.T
	link           *links.Link
	sink           *sink
	client, broker *zmq4.Conn
	raw            []net.Conn
}

func connect(t *testing.T, client, broker zmq4.Security) *session {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	s := &session{t: t, sink: &sink{}}
	s.link, err = links.Open(t.Context(), links.Options{
		Name: "c1", Upstream: ln.Addr().String(), Protocol: zmtp.Protocol{}, Index: links.NewIndex(), Sink: s.sink,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, c := range s.raw {
			c.Close()
		}
		s.link.Close()
	})
	dialled, err := net.Dial("tcp", s.link.Addr())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	s.raw = []net.Conn{dialled, accepted}
	for _, c := range s.raw {
		c.SetDeadline(time.Now().Add(patience))
	}
	opened := make(chan error, 1)
	go func() {
		var err error
		s.broker, err = zmq4.Open(accepted, broker, zmq4.Router, zmq4.SocketIdentity("b"), true, nil)
		opened <- err
	}()
	s.client, err = zmq4.Open(dialled, client, zmq4.Dealer, zmq4.SocketIdentity("c"), false, nil)
	if err := errors.Join(err, <-opened); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *session) send(from *zmq4.Conn, m wire.Message) {
	s.t.Helper()
	parts, err := wire.Encode(nil, &m)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := from.SendMsg(zmq4.NewMsgFrom(parts...)); err != nil {
		s.t.Fatal(err)
	}
}

func (s *session) receive(at *zmq4.Conn) wire.Message {
	s.t.Helper()
	msg, err := at.RecvMsg()
	if err != nil {
		s.t.Fatal(err)
	}
	m, err := wire.Decode(msg.Frames)
	if err != nil {
		s.t.Fatal(err)
	}
	return m
}

func payload(n, body string) []byte {
	return evidence.Envelope{PublishID: "p1-" + n + "-1", BusinessID: "order-" + n, Body: []byte(body)}.Encode()
}

// dialogue is one of each that a script can name, in order, each with the item expected.
var dialogue = []struct {
	toBroker bool
	msg      wire.Message
	kind     string
	item     evidence.FrameItem
}{
	{true, wire.Message{Kind: wire.Hello, Request: 1, Client: "c1"}, "", evidence.FrameItem{}},
	{false, wire.Message{Kind: wire.Welcome, Request: 1, Credit: 8}, "", evidence.FrameItem{}},
	{true, wire.Message{Kind: wire.Subscribe, Request: 2, Topic: "orders", Mode: wire.AtLeastOnce, Credit: 1}, "subscribe", evidence.FrameItem{}},
	{false, wire.Message{Kind: wire.SubscribeReply, Request: 2, Answer: wire.Accepted}, "subscribed", evidence.FrameItem{}},
	{true, wire.Message{Kind: wire.Publish, Request: 3, Topic: "orders", Mode: wire.AtLeastOnce, BusinessID: "order-1", Payload: payload("1", "body")}, "publish", evidence.FrameItem{BusinessID: "order-1", PublishID: "p1-1-1"}},
	{false, wire.Message{Kind: wire.PublishReply, Request: 3, Answer: wire.Accepted, MessageID: "m-1"}, "accept", evidence.FrameItem{BusinessID: "order-1", PublishID: "p1-1-1", MessageID: "m-1"}},
	{false, wire.Message{Kind: wire.Deliver, Topic: "orders", BusinessID: "order-1", MessageID: "m-1", Attempt: 1, Payload: payload("1", "body")}, "deliver", evidence.FrameItem{BusinessID: "order-1", PublishID: "p1-1-1", MessageID: "m-1"}},
	{true, wire.Message{Kind: wire.Nack, Request: 4, MessageID: "m-1", Attempt: 1}, "nack", evidence.FrameItem{BusinessID: "order-1", PublishID: "p1-1-1", MessageID: "m-1"}},
	{false, wire.Message{Kind: wire.NackReply, Request: 4, MessageID: "m-1", Answer: wire.Accepted}, "nack-confirm", evidence.FrameItem{BusinessID: "order-1", PublishID: "p1-1-1", MessageID: "m-1"}},
	{true, wire.Message{Kind: wire.Ack, Request: 5, MessageID: "m-1", Attempt: 2}, "ack", evidence.FrameItem{BusinessID: "order-1", PublishID: "p1-1-1", MessageID: "m-1"}},
	{false, wire.Message{Kind: wire.AckReply, Request: 5, Answer: wire.Accepted}, "ack-confirm", evidence.FrameItem{BusinessID: "order-1", PublishID: "p1-1-1", MessageID: "m-1"}},
	{true, wire.Message{Kind: wire.Lookup, Request: 6, BusinessID: "order-1"}, "lookup", evidence.FrameItem{BusinessID: "order-1"}},
	{false, wire.Message{Kind: wire.LookupReply, Request: 6, BusinessID: "order-1", Answer: wire.Settled}, "lookup-reply", evidence.FrameItem{BusinessID: "order-1"}},
	{true, wire.Message{Kind: wire.Credit, Credit: 3}, "credit", evidence.FrameItem{}},
	{true, wire.Message{Kind: wire.Ping}, "", evidence.FrameItem{}},
	// A retry that the broker answers with the first message's ID is an alias: what is stored is the first try's.
	{true, wire.Message{Kind: wire.Publish, Request: 7, Topic: "orders", Mode: wire.AtLeastOnce, BusinessID: "order-1", Payload: evidence.Envelope{PublishID: "p1-1-2", BusinessID: "order-1"}.Encode()}, "publish", evidence.FrameItem{BusinessID: "order-1", PublishID: "p1-1-2"}},
	{false, wire.Message{Kind: wire.PublishReply, Request: 7, Answer: wire.Accepted, MessageID: "m-1", Again: true}, "accept", evidence.FrameItem{BusinessID: "order-1", PublishID: "p1-1-2", MessageID: "m-1"}},
	{true, wire.Message{Kind: wire.Ack, Request: 8, MessageID: "m-1", Attempt: 3}, "ack", evidence.FrameItem{BusinessID: "order-1", PublishID: "p1-1-1", MessageID: "m-1"}},
}

func TestEveryKindIsUnderstood(t *testing.T) {
	for name, security := range map[string]func() zmq4.Security{
		"NULL": null.Security, "PLAIN": func() zmq4.Security { return plain.Security("user", "secret") },
	} {
		t.Run(name, func(t *testing.T) {
			s := connect(t, security(), security())
			var want []evidence.Event
			for _, step := range dialogue {
				from, at, to := s.broker, s.client, evidence.ToClient
				if step.toBroker {
					from, at, to = s.client, s.broker, evidence.ToBroker
				}
				s.send(from, step.msg)
				s.receive(at)
				if step.kind != "" {
					e := evidence.Event{Kind: evidence.FrameCarried, Frame: step.kind, To: to}
					if step.item != (evidence.FrameItem{}) {
						e.Items = []evidence.FrameItem{step.item}
					}
					want = append(want, e)
				}
			}
			got := s.sink.carried()
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
			a, err := s.link.Arm(links.Strike{Label: "f", Action: action, Kind: links.FramePublish, Of: "order-2", Delay: time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			for i, body := range []string{"one", "two", "three"} {
				n := string(rune('1' + i))
				parts, err := wire.Encode(nil, &wire.Message{Kind: wire.Publish, Request: uint64(i + 1), Topic: "orders", Mode: wire.AtLeastOnce, BusinessID: "order-" + n, Payload: payload(n, body)})
				if err != nil {
					t.Fatal(err)
				}
				if s.client.SendMsg(zmq4.NewMsgFrom(parts...)) != nil {
					break // cut meanwhile
				}
			}
			select {
			case <-a.Fired():
			case <-time.After(patience):
				t.Fatal("never fired")
			}
			if err := a.Heal(t.Context()); err != nil {
				t.Fatal(err)
			}
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
		m := wire.Message{Kind: wire.Publish, Request: 1, Topic: "orders", Mode: wire.AtLeastOnce, BusinessID: "order-1", Payload: payload("1", body)}
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
	var illegal *links.ErrIllegal
	if err := (zmtp.Protocol{}).Legal(links.FrameAck, links.Corrupt); !errors.As(err, &illegal) {
		t.Errorf("corrupt ack: %v", err)
	}
}

func TestBadStreamsAreRefused(t *testing.T) {
	for name, stream := range map[string][]byte{
		"no greeting":            []byte("GET / HTTP/1.1\r\n"),
		"size of 2^62":           append(bytes.Clone(greeting), 2, 0x40, 0, 0, 0, 0, 0, 0, 0),
		"sizes that add up":      append(append(bytes.Clone(greeting), frame(make([]byte, 300), nil)[:309]...), 2, 0, 0, 0, 0, 0, 0x7F, 0xFF, 0xFF),
		"reserved flags":         append(bytes.Clone(greeting), 0xF0, 0),
		"command within message": append(bytes.Clone(greeting), 1, 0, 4, 0),
	} {
		if _, err := frames(stream, len(stream)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// frames cuts a stream that comes in pieces of these lengths; the rest comes at once.
func frames(stream []byte, pieces ...int) (list []links.Frame, err error) {
	toBroker, _ := zmtp.Protocol{}.NewConn(links.NewIndex())
	begin, have := 0, 0
	for _, piece := range append(pieces, len(stream)) {
		have = min(have+piece, len(stream))
		for begin < have {
			f, n, err := toBroker.Next(stream[begin:have:have])
			if err != nil {
				return list, err
			}
			if n == 0 {
				break
			}
			if n < 0 || begin+n > have || !bytes.Equal(f.Raw, stream[begin:begin+n]) {
				return list, errors.New("a framer read over the end")
			}
			list = append(list, links.Frame{Kind: f.Kind, Items: f.Items, Raw: bytes.Clone(f.Raw)})
			begin += n
		}
	}
	return list, nil
}

func sameFrames(a, b []links.Frame) bool {
	return slices.EqualFunc(a, b, func(x, y links.Frame) bool {
		return x.Kind == y.Kind && slices.Equal(x.Items, y.Items) && bytes.Equal(x.Raw, y.Raw)
	})
}

// captured is what a client sends in the dialogue.
func captured(t testing.TB) []byte {
	stream := append(bytes.Clone(greeting), 4, 6, 5, 'R', 'E', 'A', 'D', 'Y')
	for _, step := range dialogue {
		if !step.toBroker {
			continue
		}
		parts, err := wire.Encode(nil, &step.msg)
		if err != nil {
			t.Fatal(err)
		}
		stream = append(stream, frame(parts...)...)
	}
	return stream
}

func TestSplittingChangesNothing(t *testing.T) {
	stream := captured(t)
	whole, err := frames(stream)
	if err != nil || len(whole) != 12 {
		t.Fatalf("%d frames, %v", len(whole), err)
	}
	rapid.Check(t, func(rt *rapid.T) {
		pieces := rapid.SliceOfN(rapid.IntRange(1, 40), 0, 60).Draw(rt, "pieces")
		split, err := frames(stream, pieces...)
		if err != nil || !sameFrames(split, whole) {
			rt.Fatalf("%d frames (%v), want %d", len(split), err, len(whole))
		}
	})
}

func FuzzFramer(f *testing.F) {
	f.Add(captured(f), uint(7))
	f.Add(append(bytes.Clone(greeting), 2, 0x40, 0, 0, 0, 0, 0, 0, 0), uint(1))
	f.Fuzz(func(t *testing.T, stream []byte, piece uint) {
		whole, err1 := frames(stream)
		split, err2 := frames(stream, slices.Repeat([]int{int(piece%64) + 1}, len(stream)/(int(piece%64)+1))...)
		if !sameFrames(whole, split) || (err1 == nil) != (err2 == nil) {
			t.Fatalf("whole: %d frames, %v; in pieces: %d frames, %v", len(whole), err1, len(split), err2)
		}
		for _, fr := range whole {
			if corrupted, err := (zmtp.Protocol{}).Corrupt(fr); err == nil && len(corrupted) != len(fr.Raw) {
				t.Fatal("corrupt changed the length")
			}
		}
	})
}

var greeting = func() []byte {
	g := make([]byte, 64)
	g[0], g[9], g[10] = 0xFF, 0x7F, 3
	copy(g[12:], "NULL")
	return g
}()

// frame writes a message as ZMTP does.
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

// The high-level sockets of zmq4 work through a link too.
func TestSocketsOfZMQ4(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	router := zmq4.NewRouter(ctx)
	defer router.Close()
	if err := router.Listen("tcp://127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	link, err := links.Open(ctx, links.Options{Name: "p1", Upstream: router.Addr().String(), Protocol: zmtp.Protocol{}, Index: links.NewIndex(), Sink: &sink{}})
	if err != nil {
		t.Fatal(err)
	}
	defer link.Close()
	dealer := zmq4.NewDealer(ctx)
	defer dealer.Close()
	if err := dealer.Dial("tcp://" + link.Addr()); err != nil {
		t.Fatal(err)
	}
	if err := dealer.SendMulti(zmq4.NewMsgFrom([]byte("not"), []byte("ours"))); err != nil {
		t.Fatal(err)
	}
	msg, err := router.Recv()
	if err != nil || len(msg.Frames) != 3 || string(msg.Frames[2]) != "ours" {
		t.Errorf("%v %v", msg, err)
	}
}
