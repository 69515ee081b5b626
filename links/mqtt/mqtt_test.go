package mqtt_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"
	server "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/hooks/auth"
	"github.com/mochi-mqtt/server/v2/listeners"
	"go.uber.org/goleak"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/mqtt"
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

// rig is a server with a link to it.
type rig struct {
	t    *testing.T
	ctx  context.Context
	link *links.Link
	sink *sink
}

func newRig(t *testing.T) *rig { return newRigAt(t, serve(t), mqtt.Protocol{}) }

func newRigAt(t *testing.T, upstream string, protocol links.Protocol) *rig {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	r := &rig{t: t, ctx: ctx, sink: &sink{}}
	var err error
	r.link, err = links.Open(ctx, links.Options{Name: "c1", Upstream: upstream, Protocol: protocol, Index: links.NewIndex(), Sink: r.sink})
	must(t, err)
	t.Cleanup(func() { r.link.Close() })
	return r
}

// serve runs a real server in this process.
func serve(t *testing.T) (address string) {
	t.Helper()
	s := server.New(&server.Options{Logger: slog.New(slog.DiscardHandler)})
	must(t, s.AddHook(new(auth.AllowHook), nil))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, s.AddListener(listeners.NewNet("tcp", l)))
	must(t, s.Serve())
	t.Cleanup(func() { s.Close() })
	return l.Addr().String()
}

// client is a real one, whose deliveries come through a channel.
type client struct {
	*paho.Client
	deliveries chan *paho.Publish
}

// connect opens a session that outlives its connection.
func (r *rig) connect(id string) client {
	r.t.Helper()
	conn, err := net.Dial("tcp", r.link.Addr())
	must(r.t, err)
	c := client{deliveries: make(chan *paho.Publish, 16)}
	c.Client = paho.NewClient(paho.ClientConfig{
		Conn: conn, PacketTimeout: patience, EnableManualAcknowledgment: true, SendAcksInterval: time.Millisecond,
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(p paho.PublishReceived) (bool, error) {
			c.deliveries <- p.Packet
			return true, nil
		}},
	})
	expiry := uint32(60)
	_, err = c.Connect(r.ctx, &paho.Connect{ClientID: id, KeepAlive: 60, Properties: &paho.ConnectProperties{SessionExpiryInterval: &expiry}})
	must(r.t, err)
	r.t.Cleanup(func() { c.Disconnect(&paho.Disconnect{}) })
	return c
}

func (r *rig) subscribe(c client, topic string, qos byte) {
	r.t.Helper()
	_, err := c.Subscribe(r.ctx, &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: topic, QoS: qos}}})
	must(r.t, err)
}

func (r *rig) publish(c client, topic string, qos byte, n, body string) *paho.PublishResponse {
	r.t.Helper()
	answer, err := c.Publish(r.ctx, &paho.Publish{Topic: topic, QoS: qos, Payload: payload(n, body)})
	must(r.t, err)
	return answer
}

func (r *rig) receive(c client) *paho.Publish {
	r.t.Helper()
	select {
	case m := <-c.deliveries:
		return m
	case <-r.ctx.Done():
		r.t.Fatal("nothing was delivered")
		return nil
	}
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

// eventually waits for n frames of a kind.
func (r *rig) eventually(kind string, n int) []evidence.Event {
	r.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		if got := r.sink.of(kind); len(got) >= n {
			return got
		}
		select {
		case <-tick.C:
		case <-r.ctx.Done():
			r.t.Fatalf("%d frames of %s, want %d", len(r.sink.of(kind)), kind, n)
		}
	}
}

// dialogue does one of everything with the real client.
func (r *rig) dialogue() {
	t := r.t
	t.Helper()
	c := r.connect("dialogue")
	r.publish(c, "nobody", 1, "0", "x")
	r.subscribe(c, "orders/+", 2)
	r.publish(c, "orders/new", 0, "1", "x")
	r.publish(c, "orders/new", 1, "2", strings.Repeat("long ", 60))
	expiry := uint32(60)
	_, err := c.Publish(r.ctx, &paho.Publish{Topic: "orders/new", QoS: 2, Payload: payload("3", ""), Properties: &paho.PublishProperties{
		MessageExpiry: &expiry, User: paho.UserProperties{{Key: "key", Value: "k"}},
	}})
	must(t, err)
	for range 3 {
		must(t, c.Ack(r.receive(c)))
	}
	r.eventually(mqtt.FrameAckComplete, 1)
	_, err = c.Unsubscribe(r.ctx, &paho.Unsubscribe{Topics: []string{"orders/+"}})
	must(t, err)
	must(t, c.Disconnect(&paho.Disconnect{}))
}

var record = flag.String("record", "", "address of an MQTT 5 server: record the real client's dialogue with it under testdata/")

func recordAnew(t *testing.T) {
	t.Helper()
	p := &tap{}
	r := newRigAt(t, *record, p)
	r.dialogue()
	r.link.Close()
	var lines bytes.Buffer
	for _, c := range p.carried {
		fmt.Fprintf(&lines, "%s %x\n", c.way, c.bytes)
	}
	must(t, os.WriteFile(file("v5"), lines.Bytes(), 0o644))
}

// chunk is what came at once in one direction.
type chunk struct {
	way   string // ">" to the broker, "<" to the client
	bytes []byte
}

const (
	toBroker = ">"
	toClient = "<"
)

// tap is the protocol, and keeps what its connection carried.
type tap struct {
	mqtt.Protocol
	mu      sync.Mutex
	carried []chunk
}

func (p *tap) NewConn(ix *links.Index) (broker, client links.Framer) {
	broker, client = p.Protocol.NewConn(ix)
	return tapped{broker, p, toBroker}, tapped{client, p, toClient}
}

type tapped struct {
	links.Framer
	tap *tap
	way string
}

func (f tapped) Next(buf []byte) (links.Frame, int, error) {
	frame, n, err := f.Framer.Next(buf)
	f.tap.mu.Lock()
	defer f.tap.mu.Unlock()
	if n > 0 {
		f.tap.carried = append(f.tap.carried, chunk{f.way, bytes.Clone(buf[:n])})
	}
	return frame, n, err
}

// capture is what one real connection carried, in order. v5 is the dialogue of
// this test with Mosquitto 2.0.11; v311 is mosquitto_rr 2.0.11 in MQTT 3.1.1,
// which publishes to its own subscription at QoS 2.
type capture []chunk

var captures = []string{"v5", "v311"}

func file(name string) string { return filepath.Join("testdata", name+".hex") }

func captured(t testing.TB, name string) (c capture) {
	t.Helper()
	text, err := os.ReadFile(file(name))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		way, digits, _ := strings.Cut(strings.TrimSpace(line), " ")
		b, err := hex.DecodeString(digits)
		if err != nil {
			t.Fatal(err)
		}
		c = append(c, chunk{way, b})
	}
	return c
}

// size is the number of all bytes.
func (c capture) size() (n int) {
	for _, x := range c {
		n += len(x.bytes)
	}
	return n
}

// splitAt is the same with one chunk more: the one that holds this byte in two.
func (c capture) splitAt(at int) (split capture) {
	for _, x := range c {
		if at > 0 && at < len(x.bytes) {
			split = append(split, chunk{x.way, x.bytes[:at]}, chunk{x.way, x.bytes[at:]})
		} else {
			split = append(split, x)
		}
		at -= len(x.bytes)
	}
	return split
}

// inPieces is the same in chunks of at most n bytes.
func (c capture) inPieces(n int) (split capture) {
	for _, x := range c {
		for piece := range slices.Chunk(x.bytes, n) {
			split = append(split, chunk{x.way, piece})
		}
	}
	return split
}

// cut gives the frames, as a relay would see them: a direction that its framer
// refuses is not looked at again.
func (c capture) cut() (list []links.Frame, err error) {
	broker, client := mqtt.Protocol{}.NewConn(links.NewIndex())
	framers := map[string]links.Framer{toBroker: broker, toClient: client}
	buffers := make(map[string][]byte)
	for _, x := range c {
		buf := append(buffers[x.way], x.bytes...)
		for len(buf) > 0 && framers[x.way] != nil {
			f, n, bad := framers[x.way].Next(buf[:len(buf):len(buf)])
			if bad != nil {
				framers[x.way] = nil
				err = errors.Join(err, bad)
			}
			if n == 0 {
				break
			}
			if n < 0 || n > len(buf) || !bytes.Equal(f.Raw, buf[:n]) {
				return nil, errors.New("a framer read over the end")
			}
			f.Raw = bytes.Clone(f.Raw)
			list = append(list, f)
			buf = buf[n:]
		}
		buffers[x.way] = bytes.Clone(buf)
	}
	return list, err
}

func sameFrames(a, b []links.Frame) bool {
	return slices.EqualFunc(a, b, func(x, y links.Frame) bool {
		return x.Kind == y.Kind && x.Says == y.Says && slices.Equal(x.Items, y.Items) && bytes.Equal(x.Raw, y.Raw)
	})
}

// told is a frame in words.
func told(f links.Frame) string {
	s := f.Kind
	for _, item := range f.Items {
		s += " " + item.BusinessID + "=" + item.PublishID
	}
	if f.Says != "" {
		s += ": " + f.Says
	}
	return s
}

// The first bytes of the heartbeats.
const (
	pingreq  = 0xC0
	pingresp = 0xD0
)

func TestRealStreamsAreUnderstood(t *testing.T) {
	if *record != "" {
		recordAnew(t)
	}
	for name, want := range map[string][]string{
		"v5": {
			"", "", // CONNECT, CONNACK
			"publish order-0=p1-0-1", "accept order-0=p1-0-1: no-matching-subscribers",
			"subscribe", "subscribed: accepted",
			"publish order-1=p1-1-1", "publish order-2=p1-2-1",
			"deliver order-1=p1-1-1", "deliver order-2=p1-2-1", "accept order-2=p1-2-1: accepted",
			"publish order-3=p1-3-1", "publish-received order-3=p1-3-1: accepted", "publish-release order-3=p1-3-1",
			"deliver order-3=p1-3-1", "accept order-3=p1-3-1: accepted",
			"ack order-2=p1-2-1", "ack order-3=p1-3-1", "ack-confirm order-3=p1-3-1", "ack-complete order-3=p1-3-1",
			"unsubscribe", "unsubscribed",
			"", // DISCONNECT
		},
		"v311": {
			"", "", // CONNECT, CONNACK
			"subscribe", "subscribed: accepted",
			"publish order-1=p1-1-1", "publish-received order-1=p1-1-1: accepted",
			"publish-release order-1=p1-1-1", "deliver order-1=p1-1-1",
			"ack order-1=p1-1-1", "accept order-1=p1-1-1: accepted",
			"ack-confirm order-1=p1-1-1", "ack-complete order-1=p1-1-1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			frames, err := captured(t, name).cut()
			must(t, err)
			var got []string
			for _, f := range frames {
				if f.Raw[0] != pingreq && f.Raw[0] != pingresp { // these come when they like
					got = append(got, told(f))
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}

func TestSplittingChangesNothing(t *testing.T) {
	for _, name := range captures {
		c := captured(t, name)
		whole, err := c.cut()
		must(t, err)
		for at := range c.size() {
			if split, err := c.splitAt(at).cut(); err != nil || !sameFrames(split, whole) {
				t.Fatalf("%s split at byte %d: %d frames (%v), want %d", name, at, len(split), err, len(whole))
			}
		}
		if single, err := c.inPieces(1).cut(); err != nil || !sameFrames(single, whole) {
			t.Fatalf("%s byte by byte: %d frames (%v), want %d", name, len(single), err, len(whole))
		}
	}
}

// greeting is a CONNECT, which tells the version.
func greeting(version byte) []byte {
	if version == 5 {
		return []byte("\x10\x0d\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x00")
	}
	return []byte("\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00")
}

func TestFramesOfTheServer(t *testing.T) {
	for _, c := range []struct {
		about, raw string
		version    byte
		want       string
	}{
		{"a refusal at QoS 2 ends the exchange", "\x50\x03\x00\x07\x97", 5, "accept: quota-exceeded"},
		{"a refusal at QoS 1", "\x40\x03\x00\x07\x87", 5, "accept: not-authorized"},
		{"a reason that has no name", "\x40\x03\x00\x07\x9d", 5, "accept: reason-0x9d"},
		{"an answer of MQTT 3.1.1", "\x40\x02\x00\x07", 4, "accept: accepted"},
		{"a failed subscription", "\x90\x03\x00\x01\x80", 4, "subscribed: unspecified-error"},
		{"one filter of two fails", "\x90\x05\x00\x01\x00\x01\x8f", 5, "subscribed: topic-filter-invalid"},
		{"a delivery under a topic alias", "\x30\x20\x00\x00\x03\x23\x00\x01custody/1 p1-9-1 order-9\nx", 5, "deliver order-9=p1-9-1"},
		{"a delivery with key and headers in a line before it", "\x30\x20\x00\x01a[]\ncustody/1 p1-9-1 order-9\nx", 4, "deliver order-9=p1-9-1"},
		{"a delivery that is not ours", "\x30\x04\x00\x01ax", 4, "deliver"},
		{"a release from an earlier connection", "\x62\x02\x00\x09", 5, "ack-confirm"},
		{"the end by the server", "\xe0\x01\x8e", 5, "disconnect"},
	} {
		b, cl := mqtt.Protocol{}.NewConn(links.NewIndex())
		if _, _, err := b.Next(greeting(c.version)); err != nil {
			t.Fatal(err)
		}
		f, n, err := cl.Next([]byte(c.raw))
		if err != nil || n != len(c.raw) || told(f) != c.want {
			t.Errorf("%s: %q, %d bytes of %d, %v; want %q", c.about, told(f), n, len(c.raw), err, c.want)
		}
	}
}

func TestBadStreamsAreRefused(t *testing.T) {
	for _, raw := range []string{
		"\x00", "\x16\x03\x01\x00", "GET / HTTP/1.1", // no packet of a client
		"\x30\x03\x00\x01a",                                   // a PUBLISH before CONNECT
		"\x10\x06\x00\x04MQTT",                                // no version
		"\x10\x07\x00\x04MQTT\x09",                            // an unknown one
		"\x10\xff\xff\xff\xff\x01",                            // a length of five bytes
		"\x10\xff\xff\xff\x7f",                                // 256 MiB
		string(greeting(5)) + "\x20\x02\x00\x00",              // a CONNACK from a client
		string(greeting(5)) + "\x32\x03\x00\x01a",             // no identifier
		string(greeting(5)) + "\x32\x06\x00\x01a\x00\x01\x7f", // properties over the end
		string(greeting(5)) + "\x40\x01\x00",                  // half an identifier
		string(greeting(5)) + "\x80\x02\x00\x01",              // reserved flags
	} {
		if _, err := (capture{{toBroker, []byte(raw)}}).cut(); err == nil {
			t.Errorf("%.40q: no error", raw)
		}
	}
	for _, raw := range []string{"\x10\x00", "\x90\x01\x00", "\x90\x03\x00\x01\x05"} {
		if _, err := (capture{{toBroker, greeting(5)}, {toClient, []byte(raw)}}).cut(); err == nil {
			t.Errorf("from the server, %.40q: no error", raw)
		}
	}
}

func TestCorruptKeepsFramesWellFormed(t *testing.T) {
	for _, name := range captures {
		frames, err := captured(t, name).cut()
		must(t, err)
		altered := 0
		for _, f := range frames {
			got, err := mqtt.Protocol{}.Corrupt(f)
			if f.Kind != links.FramePublish && f.Kind != links.FrameDeliver {
				if err == nil {
					t.Errorf("%s: corrupted a frame of kind %q", name, f.Kind)
				}
				continue
			}
			altered++
			head := len(f.Raw) - 2
			if err != nil || bytes.Equal(got, f.Raw) || len(got) != len(f.Raw) || !bytes.Equal(got[:head], f.Raw[:head]) {
				t.Errorf("%s: %q became %q (%v)", name, f.Raw, got, err)
			}
		}
		if altered == 0 {
			t.Errorf("%s: nothing to corrupt", name)
		}
	}
	headed := "\x30\x1f\x00\x01a[]\ncustody/1 p1-9-1 order-"
	if got, err := (mqtt.Protocol{}).Corrupt(links.Frame{Raw: []byte(headed + "9\n")}); err != nil || string(got) != headed+"x\n" {
		t.Errorf("behind a line of headers: %q (%v)", got, err)
	}
	if _, err := (mqtt.Protocol{}).Corrupt(links.Frame{Raw: []byte("\x30\x04\x00\x01ax")}); err == nil {
		t.Error("corrupted a payload that is not ours")
	}
	var illegal *links.ErrIllegal
	if err := (mqtt.Protocol{}).Legal(links.FrameAck, links.Corrupt); !errors.As(err, &illegal) {
		t.Errorf("corrupt ack: %v", err)
	}
}

func (r *rig) arm(s links.Strike) *links.Armed {
	r.t.Helper()
	s.Label = "f"
	a, err := r.link.Arm(s)
	must(r.t, err)
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

func TestDroppedAcceptLeavesOtherAnswersInPlace(t *testing.T) {
	for qos := byte(1); qos <= 2; qos++ {
		r := newRig(t)
		c := r.connect("c")
		r.subscribe(c, "orders", qos)
		a := r.arm(links.Strike{Action: links.Drop, Kind: links.FrameAccept, Of: "order-1"})
		over, cancel := context.WithCancel(r.ctx)
		lost := make(chan error, 1)
		go func() {
			_, err := c.Publish(over, &paho.Publish{Topic: "orders", QoS: qos, Payload: payload("1", "x")})
			lost <- err
		}()
		r.fired(a)
		if answer := r.publish(c, "orders", qos, "2", "x"); answer.ReasonCode != 0 {
			t.Errorf("QoS %d: order-2 was answered with %#x", qos, answer.ReasonCode)
		}
		cancel()
		if err := <-lost; !errors.Is(err, context.Canceled) {
			t.Errorf("QoS %d: a dropped answer arrived: %v", qos, err)
		}
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
			r := newRig(t)
			cl := r.connect("c")
			r.subscribe(cl, "orders", 1)
			a := r.arm(links.Strike{Action: c.action, Kind: links.FrameDeliver, Delay: time.Millisecond})
			r.publish(cl, "orders", 1, "1", "body")
			r.publish(cl, "orders", 1, "2", "last")
			for _, want := range c.bodies {
				if e, err := evidence.ParseEnvelope(r.receive(cl).Payload); err != nil || string(e.Body) != want {
					t.Errorf("got %q (%v), want %q", e.Body, err, want)
				}
			}
			r.fired(a)
		})
	}
}

// An acknowledgement that the server never hears brings the message again, on
// the next connection and no sooner.
func TestDroppedAckBringsTheMessageAgain(t *testing.T) {
	r := newRig(t)
	c := r.connect("c")
	r.subscribe(c, "orders", 1)
	a := r.arm(links.Strike{Action: links.Drop, Kind: links.FrameAck, Of: "order-1"})
	r.publish(c, "orders", 1, "1", "x")
	must(t, c.Ack(r.receive(c)))
	r.fired(a)
	must(t, c.Disconnect(&paho.Disconnect{}))
	again := r.receive(r.connect("c"))
	if !again.Packet().Duplicate || string(again.Payload) != string(payload("1", "x")) {
		t.Errorf("got %+v", again)
	}
}

func FuzzFramer(f *testing.F) {
	for _, name := range captures {
		var streams [2][]byte
		for _, x := range captured(f, name) {
			way := strings.Index(toBroker+toClient, x.way)
			streams[way] = append(streams[way], x.bytes...)
		}
		f.Add(streams[0], streams[1], uint(3))
	}
	f.Fuzz(func(t *testing.T, broker, client []byte, piece uint) {
		if len(broker)+len(client) > 1<<12 {
			return // a buffer that grows byte by byte is copied each time
		}
		c := capture{{toBroker, broker}, {toClient, client}}
		whole, err1 := c.cut()
		split, err2 := c.inPieces(int(piece%64) + 1).cut()
		if !sameFrames(whole, split) || (err1 == nil) != (err2 == nil) {
			t.Fatalf("whole: %d frames, %v; in pieces: %d frames, %v", len(whole), err1, len(split), err2)
		}
		for _, fr := range whole {
			if corrupted, err := (mqtt.Protocol{}).Corrupt(fr); err == nil && len(corrupted) != len(fr.Raw) {
				t.Fatal("corrupt changed the length")
			}
		}
	})
}
