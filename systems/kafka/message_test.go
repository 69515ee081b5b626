package kafka

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

func TestNames(t *testing.T) {
	n := names("custody-x")
	for destination, legal := range map[string]bool{
		"orders": true, "orders.eu_1-a": true, "": false, "orders/eu": false, "orders eu": false, "ordres-é": false, strings.Repeat("a", 250): false,
	} {
		topic, err := n.topic(destination)
		if (err == nil) != legal {
			t.Errorf("%.20q: %v", destination, err)
		}
		if legal && (n.destination(topic) != destination || !n.has(topic)) {
			t.Errorf("%q became topic %q and destination %q", destination, topic, n.destination(topic))
		}
	}
	subscription, destination, ok := n.subscriber(n.group("bill@ing", "orders"))
	if !ok || subscription != "bill@ing" || destination != "orders" {
		t.Errorf("subscriber %q of %q, %v", subscription, destination, ok)
	}
	if _, _, ok := n.subscriber(names("custody-y").group("billing", "orders")); ok || n.has("custody-y.orders") {
		t.Error("a name of another run is taken for this one's")
	}
}

func TestEncodeAndDecodeAreInverse(t *testing.T) {
	n := names("custody-x")
	for _, m := range []systems.Message{
		{Destination: "orders", Payload: []byte("p")},
		{Destination: "orders", Payload: []byte{}, Key: "k", Headers: map[string]string{"a": "1", "b": ""}},
	} {
		topic, err := n.topic(m.Destination)
		if err != nil {
			t.Fatal(err)
		}
		r, err := encode(topic, m)
		if err != nil {
			t.Fatal(err)
		}
		r.Partition, r.Offset = 2, 7
		m.MessageID = "custody-x.orders-2@7"
		if got := n.decode(r); !reflect.DeepEqual(got, m) {
			t.Errorf("%+v became %+v", m, got)
		}
	}
	for _, m := range []systems.Message{{MessageID: "chosen"}, {TTL: time.Second}} {
		if _, err := encode("t", m); err == nil {
			t.Errorf("%+v was taken, and Kafka cannot carry it", m)
		}
	}
}

// TestReceipts checks which outcomes prove that a record was not stored.
func TestReceipts(t *testing.T) {
	broken := errors.New("broken pipe")
	for _, c := range []struct {
		profile Profile
		err     error
		written int64
		want    evidence.Acceptance
	}{
		{Profile{acks: acksAll}, nil, 1, evidence.Accepted},
		{Profile{acks: acksNone}, nil, 1, evidence.Unknown},
		{Profile{acks: acksAll}, broken, 0, evidence.Rejected},
		{Profile{acks: acksAll}, broken, 1, evidence.Unknown},
		{Profile{acks: acksAll}, kerr.MessageTooLarge, 1, evidence.Declined},
		{Profile{acks: acksAll}, fmt.Errorf("partition: %w", kerr.NotEnoughReplicas), 1, evidence.Rejected},
		{Profile{acks: acksAll}, kerr.NotEnoughReplicasAfterAppend, 1, evidence.Unknown},
		{Profile{acks: acksAll}, kerr.RequestTimedOut, 1, evidence.Unknown},
		{Profile{acks: acksAll, retries: true}, kerr.NotLeaderForPartition, 2, evidence.Unknown},
		{Profile{acks: acksAll, retries: true}, broken, 0, evidence.Rejected},
	} {
		p := &producer{session: newSession(c.profile, "", false)}
		got := p.receipt(&kgo.Record{Topic: "t"}, c.err, c.written)
		if got.Acceptance != c.want || got.ClientResult == "" || (c.err == nil) != (got.ClientResult == "ok") || (got.Cause != evidence.NoCause) != (c.want == evidence.Declined) {
			t.Errorf("%v after %d writes: %+v, want %v", c.err, c.written, got, c.want)
		}
	}
}

// TestReceiptsOfTransactions checks which outcomes prove that a transaction was
// not committed.
func TestReceiptsOfTransactions(t *testing.T) {
	broken := errors.New("broken pipe")
	for _, c := range []struct {
		err     error
		written int64
		want    evidence.Acceptance
	}{
		{nil, 1, evidence.Accepted},
		{broken, 0, evidence.Rejected},
		{broken, 1, evidence.Unknown},
		{kerr.InvalidTxnState, 1, evidence.Rejected},
		{fmt.Errorf("commit: %w", kerr.ProducerFenced), 1, evidence.Rejected},
		{kerr.InvalidTxnState, 2, evidence.Unknown}, // the first request may have committed
		{kerr.UnknownServerError, 1, evidence.Unknown},
	} {
		txns := &transactions{producer: &producer{session: newSession(Profile{}, "", false)}}
		got := txns.committed(&kgo.Record{Topic: "t"}, c.err, c.written)
		if got.Acceptance != c.want || got.ClientResult == "" || (c.err == nil) != (got.ClientResult == "ok") {
			t.Errorf("%v after %d writes: %+v, want %v", c.err, c.written, got, c.want)
		}
	}
	for err, want := range map[error]evidence.Acceptance{broken: evidence.Rejected, kerr.MessageTooLarge: evidence.Declined, kerr.ConcurrentTransactions: evidence.Rejected} {
		if got := notStored(err); got.Acceptance != want || got.ClientResult == "" {
			t.Errorf("not stored for %v: %+v, want %v", err, got, want)
		}
	}
}

func TestPositions(t *testing.T) {
	const text = "0:12,1:9,2:0"
	offsets, err := parsePosition("orders", text)
	if err != nil || position(offsets["orders"]) != text {
		t.Errorf("%s became %v (%v)", text, offsets, err)
	}
	for _, bad := range []string{"", "12", "0:", ":1", "0:1,", "0:-1", "-1:0", "4294967296:0", "0:1:2"} {
		if offsets, err := parsePosition("orders", bad); err == nil {
			t.Errorf("%q became %v", bad, offsets)
		}
	}
}

func TestPartitionsAreTakenInTurnAndByKey(t *testing.T) {
	pick := partition("t")
	for i := range 6 {
		if got := pick(&kgo.Record{}, 3); got != i%3 {
			t.Errorf("message %d goes to partition %d", i, got)
		}
	}
	first := pick(&kgo.Record{Key: []byte("customer-7")}, 3)
	pick(&kgo.Record{}, 3)
	if again := pick(&kgo.Record{Key: []byte("customer-7")}, 3); again != first {
		t.Errorf("one key goes to partitions %d and %d", first, again)
	}
}

func TestProfilesSayWhatTheyAre(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range Profiles(1) {
		d := s.Describe()
		if seen[d.Profile.Name] || d.Profile.Summary == "" {
			t.Errorf("profile %q stands twice or has no summary", d.Profile.Name)
		}
		seen[d.Profile.Name] = true
		if d.Profile.Limits.RedeliveryPeriod == 0 {
			t.Errorf("%s has no redelivery period", d.Profile.Name)
		}
	}
}
