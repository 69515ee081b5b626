package rabbitmq

import (
	"maps"
	"strings"
	"testing"
	"time"

	client "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

func TestDecodeIsTheInverseOfEncode(t *testing.T) {
	name := rapid.StringMatching(`[A-Za-z][A-Za-z-]{0,12}`).Filter(func(s string) bool {
		return s != keyHeader && !strings.HasPrefix(s, serverHeaders)
	})
	rapid.Check(t, func(t *rapid.T) {
		m := systems.Message{
			Destination: "orders",
			MessageID:   rapid.StringMatching(`[a-z0-9]{1,8}`).Draw(t, "id"),
			Key:         rapid.StringMatching(`[!-~]{0,8}`).Draw(t, "key"),
			Headers:     rapid.MapOf(name, rapid.StringMatching(`[!-~]{0,20}`)).Draw(t, "headers"),
			Payload:     rapid.SliceOf(rapid.Byte()).Draw(t, "payload"),
			TTL:         time.Duration(rapid.IntRange(0, 1<<20).Draw(t, "ttl")) * time.Millisecond,
		}
		out, err := encode(m, client.Persistent)
		if err != nil {
			t.Fatal(err)
		}
		got := decode("orders", client.Delivery{Headers: out.Headers, MessageId: out.MessageId, Expiration: out.Expiration, Body: out.Body})
		if got.MessageID != m.MessageID || got.Key != m.Key || got.TTL != m.TTL || !maps.Equal(got.Headers, m.Headers) || string(got.Payload) != string(m.Payload) {
			t.Fatalf("sent %+v, got %+v", m, got)
		}
	})
}

func TestEncodeRefusesWhatWouldBeAltered(t *testing.T) {
	for _, m := range []systems.Message{
		{MessageID: strings.Repeat("x", 256)},
		{Headers: map[string]string{keyHeader: "k"}},
		{Headers: map[string]string{"x-death": "never"}},
		{Headers: map[string]string{strings.Repeat("x", 256): "long"}},
	} {
		if out, err := encode(m, client.Persistent); err == nil {
			t.Errorf("%+v was encoded as %+v", m, out)
		}
	}
}

func TestATimeToLiveIsNeverShortened(t *testing.T) {
	for ttl, want := range map[time.Duration]string{0: "", time.Microsecond: "1", time.Millisecond: "1", 1500 * time.Microsecond: "2", time.Hour: "3600000"} {
		if out, err := encode(systems.Message{TTL: ttl}, client.Transient); err != nil || out.Expiration != want {
			t.Errorf("%v: %q, %v; want %q", ttl, out.Expiration, err, want)
		}
	}
}

func TestReadCounts(t *testing.T) {
	got, err := readCounts("ok 6f7264657273 3 6d61696c73 0")
	if err != nil || !maps.Equal(got, map[string]int{"orders": 3, "mails": 0}) {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "ok 6f", "ok xx 1", "ok 6f many", "failed {exception,noproc}"} {
		if got, err := readCounts(bad); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
}

func TestDestinations(t *testing.T) {
	c := newClients(Profile{}, "127.0.0.1:1", "custody-abc-")
	if name, err := c.queueOf("orders"); name != "custody-abc-orders" || err != nil {
		t.Error(name, err)
	}
	for _, bad := range []string{"", strings.Repeat("x", 250)} {
		if name, err := c.queueOf(bad); err == nil {
			t.Errorf("%q: %q", bad, name)
		}
	}
}

func TestCredentials(t *testing.T) {
	for credentials, ok := range map[string]bool{"127.0.0.1:5672 custody-x-": true, "127.0.0.1:5672": false, "127.0.0.1:5672 ": false, "nowhere custody-x-": false, "": false} {
		if _, err := (Profile{}).Connect(credentials); (err == nil) != ok {
			t.Errorf("%q: %v", credentials, err)
		}
	}
}

// TestNegativeConfirms checks that the meaning of a nack depends on the profile.
func TestNegativeConfirms(t *testing.T) {
	for _, s := range Profiles(1) {
		p := s.(Profile)
		want := evidence.Unknown
		if strings.HasPrefix(p.name, "max-length") {
			want = evidence.Declined
		}
		if r := p.nacked(); r.Acceptance != want || (r.Cause == evidence.CauseLimit) != (want == evidence.Declined) {
			t.Errorf("%s: %v for the cause %q, want %v", p.name, r.Acceptance, r.Cause, want)
		}
	}
}
