package mqtt

import (
	"context"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	v311 "github.com/eclipse/paho.mqtt.golang/packets"
	mochimqtt "github.com/mochi-mqtt/server/v2"
	mochipackets "github.com/mochi-mqtt/server/v2/packets"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

func TestMessagesTravelWhole(t *testing.T) {
	for _, m := range []systems.Message{
		{Destination: "orders", Payload: []byte("body")},
		{Destination: "orders/new", Payload: []byte{}, Key: "customer-7", MessageID: "m-1", Headers: map[string]string{"Region": "north", "": "empty", "trace": "a b: ü"}},
		{Destination: "orders", Payload: []byte("x"), TTL: 2 * time.Second},
	} {
		p, err := encode(m, 1)
		if err != nil {
			t.Errorf("%+v: %v", m, err)
			continue
		}
		if got := decode(p); !reflect.DeepEqual(got, m) {
			t.Errorf("sent %+v, got %+v", m, got)
		}
	}
}

func TestTimeToLiveIsRoundedUp(t *testing.T) {
	for ttl, want := range map[time.Duration]uint32{time.Millisecond: 1, time.Second: 1, 1001 * time.Millisecond: 2, math.MaxInt64: math.MaxUint32} {
		p, err := encode(systems.Message{Destination: "orders", TTL: ttl}, 1)
		if err != nil || *p.Properties.MessageExpiry != want {
			t.Errorf("%v: %+v, %v; want %d", ttl, p, err, want)
		}
	}
}

func TestWhatMQTTCannotCarryIsRefused(t *testing.T) {
	for _, m := range []systems.Message{
		{Destination: ""}, {Destination: "$SYS/broker"}, {Destination: "orders/+"}, {Destination: "orders/#"}, {Destination: "a\x00b"},
		{Destination: strings.Repeat("a", maxText+1)},
		{Destination: "orders", Headers: map[string]string{keyProperty: "mine"}},
		{Destination: "orders", Headers: map[string]string{"name": "\xff"}},
		{Destination: "orders", Key: strings.Repeat("k", maxText+1)},
	} {
		if p, err := encode(m, 1); err == nil {
			t.Errorf("%.60q: %+v", m.Destination, p)
		}
	}
}

func TestNamesOfSubscriptionsDiffer(t *testing.T) {
	seen := make(map[string]string)
	for _, s := range []string{"billing", "billing/eu", "billing+eu", "billing#eu", strings.Repeat("b", 100), strings.Repeat("b", 101)} {
		n := shareName(s)
		if strings.ContainsAny(n, "/+#") || n == "" || seen[n] != "" {
			t.Errorf("%.20q and %.20q are both called %q", s, seen[n], n)
		}
		seen[n] = s
	}
}

func TestAnswers(t *testing.T) {
	for code, want := range map[byte]evidence.Acceptance{
		0x00: evidence.Accepted,
		0x01: evidence.Accepted, // used by mochi-mqtt, not in the standard
		0x10: evidence.Declined,
		0x80: evidence.Unknown,
		0x97: evidence.Declined,
	} {
		r := receipt(code)
		if r.Acceptance != want || (r.ClientResult == "ok") != (want == evidence.Accepted) || (r.HeldBy == evidence.HeldByNobody) == (want == evidence.Accepted) || (r.Cause != evidence.NoCause) != (want == evidence.Declined) {
			t.Errorf("0x%02x: %+v, want %v", code, r, want)
		}
	}
}

func TestSeats(t *testing.T) {
	s := seats{dir: t.TempDir(), run: systems.RunName()}
	take := func(subscription, want string) *seat {
		t.Helper()
		seat, err := s.take(subscription, "orders")
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(seat.clientID, want) {
			t.Errorf("took %s, want seat %s", seat.clientID, want)
		}
		t.Cleanup(seat.leave)
		return seat
	}
	first, second := take("billing", ".1"), take("billing", ".2")
	take("shipping", ".1")
	first.leave()
	first.leave()
	take("billing", ".1")
	take("billing", ".3")
	second.leave()
	take("billing", ".2")
	if _, err := (seats{dir: s.dir + "/nowhere"}).take("billing", "orders"); err == nil {
		t.Error("took a seat in a folder that does not exist")
	}
}

func TestCredentials(t *testing.T) {
	p := Profile{}
	want := clients{address: "127.0.0.1:1", seats: seats{dir: "/seats", run: "custody-1"}}
	for _, in := range []systems.Instance{&instance{clients: want}, &remote{clients: want}} {
		if c, err := p.Connect(p.Credentials(in)); err != nil || !reflect.DeepEqual(c, want) {
			t.Errorf("%+v, %v", c, err)
		}
	}
	for _, text := range []string{"", "{}", `{"address":"127.0.0.1:1","seats":"/s"}`, `{"address":"nowhere","seats":"/s","run":"custody-1"}`} {
		if _, err := p.Connect(text); err == nil {
			t.Errorf("connected with %q", text)
		}
	}
}

// TestPacketsOfAnotherVersion checks that packets survive translation to MQTT
// 3.1.1 and back in everything that a session needs.
func TestPacketsOfAnotherVersion(t *testing.T) {
	sent, err := encode(systems.Message{Destination: "orders", Payload: []byte("a\nb"), Key: "k", Headers: map[string]string{"trace": "a\nb: ü"}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	sent.PacketID = 7
	packet, err := toV311(sent)
	if err != nil {
		t.Fatal(err)
	}
	got, err := toV5(packet)
	if err != nil || !reflect.DeepEqual(got.Content, sent) {
		t.Errorf("sent %+v, got %+v (%v)", sent, got.Content, err)
	}
	for code, want := range map[byte]byte{0: 0, 3: serverUnavailable, 5: 0x87} {
		if got, err := toV5(&v311.ConnackPacket{ReturnCode: code}); err != nil || got.Content.(*packets.Connack).ReasonCode != want {
			t.Errorf("CONNACK %d: %+v, %v", code, got, err)
		}
	}
	for _, bad := range []v311.ControlPacket{&v311.ConnackPacket{ReturnCode: 6}, &v311.PublishPacket{Payload: []byte("x")}, &v311.PublishPacket{Payload: []byte("{}\nx")}, &v311.ConnectPacket{}} {
		if got, err := toV5(bad); err == nil {
			t.Errorf("%v became %+v", bad, got)
		}
	}
	if got, err := toV311(&packets.Pubrel{}); err == nil {
		t.Errorf("a packet that no session of QoS 1 sends became %v", got)
	}
}

// TestRowsWaitForPublishesInHand checks that Rows waits for publishes in
// progress.
func TestRowsWaitForPublishesInHand(t *testing.T) {
	h := &handling{open: make(map[*mochimqtt.Client]chan struct{})}
	c, publish := new(mochimqtt.Client), mochipackets.Packet{FixedHeader: mochipackets.FixedHeader{Type: mochipackets.Publish}}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := h.OnPublish(c, publish); err != nil {
		t.Fatal(err)
	}
	h.OnPacketProcessed(c, mochipackets.Packet{FixedHeader: mochipackets.FixedHeader{Type: mochipackets.Puback}}, nil)
	if err := h.wait(over); err == nil {
		t.Error("did not wait")
	}
	h.OnPacketProcessed(c, publish, nil)
	h.OnPacketProcessed(c, publish, nil) // refused before OnPublish
	if err := h.wait(over); err != nil {
		t.Errorf("waits for nothing: %v", err)
	}
}
