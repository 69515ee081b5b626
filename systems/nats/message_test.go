package nats

import (
	"errors"
	"maps"
	"regexp"
	"strings"
	"testing"

	client "github.com/nats-io/nats.go"
	"pgregory.net/rapid"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

func TestDecodeIsTheInverseOfEncode(t *testing.T) {
	name := rapid.StringMatching(`[A-Za-z][A-Za-z-]{0,12}`).Filter(func(s string) bool {
		return s != keyHeader && !strings.HasPrefix(s, serverHeaders)
	})
	text := rapid.StringMatching(`[!-~]{1,20}`)
	rapid.Check(t, func(t *rapid.T) {
		m := systems.Message{
			Destination: rapid.StringMatching(`[a-z]{1,8}(\.[a-z]{1,8}){0,3}`).Draw(t, "destination"),
			MessageID:   rapid.StringMatching(`[a-z0-9]{0,8}`).Draw(t, "id"),
			Key:         rapid.StringMatching(`[!-~]{0,8}`).Draw(t, "key"),
			Headers:     rapid.MapOf(name, text).Draw(t, "headers"),
			Payload:     rapid.SliceOf(rapid.Byte()).Draw(t, "payload"),
		}
		msg, err := encode(streamName, m)
		if err != nil {
			t.Fatal(err)
		}
		got := decode(streamName, "custody:7", msg.Subject, msg.Header, msg.Data)
		if got.MessageID != "custody:7" || got.Destination != m.Destination || got.Key != m.Key ||
			!maps.Equal(got.Headers, m.Headers) || string(got.Payload) != string(m.Payload) {
			t.Fatalf("sent %+v, got %+v", m, got)
		}
	})
}

func TestEncodeRefusesWhatNATSWouldAlter(t *testing.T) {
	for _, m := range []systems.Message{
		{Destination: ""},
		{Destination: "orders..new"},
		{Destination: "two words"},
		{Destination: "orders.*"},
		{Destination: "orders.>"},
		{Destination: "orders", Headers: map[string]string{keyHeader: "k"}},
		{Destination: "orders", Headers: map[string]string{"Nats-Rollup": "all"}},
	} {
		if msg, err := encode(streamName, m); err == nil {
			t.Errorf("%+v was encoded as %+v", m, msg)
		}
	}
}

func TestDurableNames(t *testing.T) {
	legal := regexp.MustCompile(`^[A-Za-z0-9_-]{1,80}$`)
	rapid.Check(t, func(t *rapid.T) {
		subscription := rapid.String().Draw(t, "subscription")
		one := systems.SubscriberName(subscription, "orders")
		if !legal.MatchString(one) {
			t.Fatalf("%q has the durable name %q", subscription, one)
		}
		for _, other := range []string{systems.SubscriberName(subscription, "invoices"), systems.SubscriberName(subscription+".", "orders")} {
			if other == one {
				t.Fatalf("two subscriptions have the durable name %q", one)
			}
		}
	})
}

func TestAnswersToAPublish(t *testing.T) {
	noResponders := &client.Msg{Header: client.Header{"Status": {"503"}}}
	for _, c := range []struct {
		name string
		msg  *client.Msg
		want evidence.Acceptance
		id   string
		held evidence.HeldBy
	}{
		{"stored", answer(`{"stream":"custody","seq":7}`), evidence.Accepted, "custody:7", evidence.HeldByStore},
		{"duplicate", answer(`{"stream":"custody","seq":7,"duplicate":true}`), evidence.Accepted, "custody:7", evidence.HeldByStore},
		{"no stream", noResponders, evidence.Rejected, "", 0},
		{"policy", answer(`{"stream":"custody","error":{"code":400,"err_code":10165,"description":"invalid per-message TTL"}}`), evidence.Declined, "", 0},
		{"no resources", answer(`{"stream":"custody","error":{"code":503,"err_code":10023}}`), evidence.Rejected, "", 0},
		{"failed store", answer(`{"stream":"custody","error":{"code":503,"err_code":10077,"description":"write: input/output error"}}`), evidence.Unknown, "", 0},
		{"unheard of", answer(`{"stream":"custody","error":{"code":500,"err_code":1}}`), evidence.Unknown, "", 0},
		{"no sequence", answer(`{"stream":"custody"}`), evidence.Unknown, "", 0},
		{"no JSON", answer(`yes`), evidence.Unknown, "", 0},
		{"empty", answer(``), evidence.Unknown, "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := receiptOf(c.msg, evidence.HeldByStore)
			if r.Acceptance != c.want || r.MessageID != c.id || r.HeldBy != c.held {
				t.Errorf("got %+v", r)
			}
			if (r.ClientResult == "ok") != (c.want == evidence.Accepted) || r.ClientResult == "" {
				t.Errorf("the application is told %q", r.ClientResult)
			}
			if (r.Cause != evidence.NoCause) != (r.Acceptance == evidence.Declined) {
				t.Errorf("%v for the cause %q", r.Acceptance, r.Cause)
			}
		})
	}
}

func answer(body string) *client.Msg { return &client.Msg{Data: []byte(body)} }

func TestPublishesThatTheClientDidNotTake(t *testing.T) {
	for err, want := range map[error]evidence.Acceptance{
		client.ErrConnectionClosed:                evidence.Rejected,
		client.ErrMaxPayload:                      evidence.Declined,
		errors.New("write tcp: connection reset"): evidence.Unknown,
	} {
		if r := notPublished(err); r.Acceptance != want || r.ClientResult != err.Error() || (r.Cause != evidence.NoCause) != (want == evidence.Declined) {
			t.Errorf("%v: got %+v, want %v", err, r, want)
		}
	}
}
