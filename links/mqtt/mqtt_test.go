package mqtt_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"
	server "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/hooks/auth"
	"github.com/mochi-mqtt/server/v2/listeners"
	"go.uber.org/goleak"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/linktest"
	"github.com/custodymq/custody/links/mqtt"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func protocol() links.Protocol { return mqtt.Protocol{} }

// rig is a link to a real server.
type rig struct{ *linktest.Rig }

func newRig(t *testing.T) rig { return rig{linktest.Open(t, serve(t), protocol())} }

// serve runs a real server in this process.
func serve(t *testing.T) (address string) {
	t.Helper()
	s := server.New(&server.Options{Logger: slog.New(slog.DiscardHandler)})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(s.AddHook(new(auth.AllowHook), nil), s.AddListener(listeners.NewNet("tcp", l)), s.Serve())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return l.Addr().String()
}

// client is a real client with deliveries on a channel.
type client struct {
	*paho.Client
	deliveries chan *paho.Publish
}

// connect opens a session that outlives its connection.
func (r rig) connect(id string) client {
	r.T.Helper()
	conn, err := net.Dial("tcp", r.Link.Addr())
	r.Must(err)
	c := client{deliveries: make(chan *paho.Publish, 16)}
	c.Client = paho.NewClient(paho.ClientConfig{
		Conn: conn, PacketTimeout: linktest.Timeout, EnableManualAcknowledgment: true, SendAcksInterval: time.Millisecond,
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(p paho.PublishReceived) (bool, error) {
			c.deliveries <- p.Packet
			return true, nil
		}},
	})
	expiry := uint32(60)
	_, err = c.Connect(r.Ctx, &paho.Connect{ClientID: id, KeepAlive: 60, Properties: &paho.ConnectProperties{SessionExpiryInterval: &expiry}})
	r.Must(err)
	r.T.Cleanup(func() { c.Disconnect(&paho.Disconnect{}) })
	return c
}

func (r rig) subscribe(c client, topic string, qos byte) {
	r.T.Helper()
	_, err := c.Subscribe(r.Ctx, &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: topic, QoS: qos}}})
	r.Must(err)
}

func (r rig) publish(c client, topic string, qos byte, n, body string) *paho.PublishResponse {
	r.T.Helper()
	answer, err := c.Publish(r.Ctx, &paho.Publish{Topic: topic, QoS: qos, Payload: linktest.Payload(n, body)})
	r.Must(err)
	return answer
}

func (r rig) receive(c client) *paho.Publish {
	r.T.Helper()
	select {
	case m := <-c.deliveries:
		return m
	case <-r.Ctx.Done():
		r.T.Fatal("nothing was delivered")
		return nil
	}
}

// eventually waits for n frames of a kind.
func (r rig) eventually(kind string, n int) []evidence.Event {
	r.T.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		if got := r.Sink.Carried(kind); len(got) >= n {
			return got
		}
		select {
		case <-tick.C:
		case <-r.Ctx.Done():
			r.T.Fatalf("%d frames of %s, want %d", len(r.Sink.Carried(kind)), kind, n)
		}
	}
}

// dialogue does one of everything with the real client.
func (r rig) dialogue() {
	t := r.T
	t.Helper()
	c := r.connect("dialogue")
	r.publish(c, "nobody", 1, "0", "x")
	r.subscribe(c, "orders/+", 2)
	r.publish(c, "orders/new", 0, "1", "x")
	r.publish(c, "orders/new", 1, "2", strings.Repeat("long ", 60))
	expiry := uint32(60)
	_, err := c.Publish(r.Ctx, &paho.Publish{Topic: "orders/new", QoS: 2, Payload: linktest.Payload("3", ""), Properties: &paho.PublishProperties{
		MessageExpiry: &expiry, User: paho.UserProperties{{Key: "key", Value: "k"}},
	}})
	r.Must(err)
	for range 3 {
		r.Must(c.Ack(r.receive(c)))
	}
	r.eventually(mqtt.FrameAckComplete, 1)
	_, err = c.Unsubscribe(r.Ctx, &paho.Unsubscribe{Topics: []string{"orders/+"}})
	r.Must(err)
	r.Must(c.Disconnect(&paho.Disconnect{}))
}

var record = flag.String("record", "", "address of an MQTT 5 server: record the real client's dialogue with it under testdata/")

func recordAnew(t *testing.T) {
	t.Helper()
	recorder := &linktest.Recorder{Protocol: protocol()}
	r := rig{linktest.Open(t, *record, recorder)}
	r.dialogue()
	r.Link.Close()
	recorder.Carried().Write(t, file("v5"))
}

// captures of one connection each: v5 is this test's dialogue with Mosquitto
// 2.0.11; v311 is mosquitto_rr 2.0.11 in MQTT 3.1.1, publishing to its own
// subscription at QoS 2.
var captures = []string{"v5", "v311"}

func file(name string) string { return filepath.Join("testdata", name+".capture") }

func captured(t testing.TB, name string) linktest.Capture {
	t.Helper()
	return linktest.Read(t, file(name))
}

// First bytes of the heartbeats.
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
			"publish order-0/p1-0-1/", "accept order-0/p1-0-1/ says no-matching-subscribers",
			"subscribe", "subscribed says accepted",
			"publish order-1/p1-1-1/", "publish order-2/p1-2-1/",
			"deliver order-1/p1-1-1/", "deliver order-2/p1-2-1/", "accept order-2/p1-2-1/ says accepted",
			"publish order-3/p1-3-1/", "publish-received order-3/p1-3-1/ says accepted", "publish-release order-3/p1-3-1/",
			"deliver order-3/p1-3-1/", "accept order-3/p1-3-1/ says accepted",
			"ack order-2/p1-2-1/", "ack order-3/p1-3-1/", "ack-confirm order-3/p1-3-1/", "ack-complete order-3/p1-3-1/",
			"unsubscribe", "unsubscribed",
			"", // DISCONNECT
		},
		"v311": {
			"", "", // CONNECT, CONNACK
			"subscribe", "subscribed says accepted",
			"publish order-1/p1-1-1/", "publish-received order-1/p1-1-1/ says accepted",
			"publish-release order-1/p1-1-1/", "deliver order-1/p1-1-1/",
			"ack order-1/p1-1-1/", "accept order-1/p1-1-1/ says accepted",
			"ack-confirm order-1/p1-1-1/", "ack-complete order-1/p1-1-1/",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, f := range captured(t, name).Understood(t, protocol()) {
				if f.Raw[0] != pingreq && f.Raw[0] != pingresp { // these occur at any time
					got = append(got, linktest.Summary(f))
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
		linktest.Splitting(t, protocol, captured(t, name))
	}
}

// greeting is a CONNECT of the given version.
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
		{"a refusal at QoS 2 ends the exchange", "\x50\x03\x00\x07\x97", 5, "accept says quota-exceeded"},
		{"a refusal at QoS 1", "\x40\x03\x00\x07\x87", 5, "accept says not-authorized"},
		{"a reason that has no name", "\x40\x03\x00\x07\x9d", 5, "accept says reason-0x9d"},
		{"an answer of MQTT 3.1.1", "\x40\x02\x00\x07", 4, "accept says accepted"},
		{"a failed subscription", "\x90\x03\x00\x01\x80", 4, "subscribed says unspecified-error"},
		{"one filter of two fails", "\x90\x05\x00\x01\x00\x01\x8f", 5, "subscribed says topic-filter-invalid"},
		{"a delivery under a topic alias", "\x30\x20\x00\x00\x03\x23\x00\x01custody/1 p1-9-1 order-9\nx", 5, "deliver order-9/p1-9-1/"},
		{"a delivery with key and headers in a line before it", "\x30\x20\x00\x01a[]\ncustody/1 p1-9-1 order-9\nx", 4, "deliver order-9/p1-9-1/"},
		{"a delivery that is not ours", "\x30\x04\x00\x01ax", 4, "deliver"},
		{"a release from an earlier connection", "\x62\x02\x00\x09", 5, "ack-confirm"},
		{"the end by the server", "\xe0\x01\x8e", 5, "disconnect"},
	} {
		b, cl := mqtt.Protocol{}.NewConn(links.NewIndex())
		if _, _, err := b.Next(greeting(c.version)); err != nil {
			t.Fatal(err)
		}
		f, n, err := cl.Next([]byte(c.raw))
		if err != nil || n != len(c.raw) || linktest.Summary(f) != c.want {
			t.Errorf("%s: %q, %d bytes of %d, %v; want %q", c.about, linktest.Summary(f), n, len(c.raw), err, c.want)
		}
	}
}

func TestBadStreamsAreRefused(t *testing.T) {
	for _, raw := range []string{
		"\x00", "\x16\x03\x01\x00", "GET / HTTP/1.1", // no client packet
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
		if _, refused := linktest.Streams([]byte(raw), nil).Frames(t, protocol()); refused == nil {
			t.Errorf("%.40q: no error", raw)
		}
	}
	for _, raw := range []string{"\x10\x00", "\x90\x01\x00", "\x90\x03\x00\x01\x05"} {
		if _, refused := linktest.Streams(greeting(5), []byte(raw)).Frames(t, protocol()); refused == nil {
			t.Errorf("from the server, %.40q: no error", raw)
		}
	}
}

func TestCorruptKeepsFramesWellFormed(t *testing.T) {
	for _, name := range captures {
		altered := 0
		for _, f := range captured(t, name).Understood(t, protocol()) {
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
	linktest.Legal(t, protocol(), links.FrameAck, links.Corrupt, false)
}

func TestDroppedAcceptLeavesOtherAnswersInPlace(t *testing.T) {
	for qos := byte(1); qos <= 2; qos++ {
		r := newRig(t)
		c := r.connect("c")
		r.subscribe(c, "orders", qos)
		a := r.Arm(links.Strike{Action: links.Drop, Kind: links.FrameAccept, Of: "order-1"})
		over, cancel := context.WithCancel(r.Ctx)
		lost := make(chan error, 1)
		go func() {
			_, err := c.Publish(over, &paho.Publish{Topic: "orders", QoS: qos, Payload: linktest.Payload("1", "x")})
			lost <- err
		}()
		r.Fired(a)
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
	linktest.StrikeDeliveries(t, func(t *testing.T) linktest.Dialogue {
		r := newRig(t)
		c := r.connect("c")
		r.subscribe(c, "orders", 1)
		return linktest.Dialogue{
			Rig:     r.Rig,
			Publish: func(n, body string) { r.publish(c, "orders", 1, n, body) },
			Receive: func() []byte { return r.receive(c).Payload },
		}
	})
}

// An unheard acknowledgement causes a redelivery, on the next connection and no
// sooner.
func TestDroppedAckBringsTheMessageAgain(t *testing.T) {
	r := newRig(t)
	c := r.connect("c")
	r.subscribe(c, "orders", 1)
	a := r.Arm(links.Strike{Action: links.Drop, Kind: links.FrameAck, Of: "order-1"})
	r.publish(c, "orders", 1, "1", "x")
	r.Must(c.Ack(r.receive(c)))
	r.Fired(a)
	r.Must(c.Disconnect(&paho.Disconnect{}))
	again := r.receive(r.connect("c"))
	if !again.Packet().Duplicate || string(again.Payload) != string(linktest.Payload("1", "x")) {
		t.Errorf("got %+v", again)
	}
}

func FuzzFramer(f *testing.F) {
	linktest.Fuzz(f, protocol, captured(f, "v5"), captured(f, "v311"))
}
