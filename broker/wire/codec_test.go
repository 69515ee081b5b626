package wire

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// full returns a message with every field set; only keeps the fields that kind
// may carry.
func full() Message {
	return Message{
		Client: "c1", Token: "secret", Topic: "orders/eu", Group: "g", Mode: AtLeastOnce,
		BusinessID: "order-1", MessageID: "m-1", Key: "k", Headers: map[string]string{"a": "1", "b": ""},
		TTL: -3 * time.Second, Attempt: 2, Again: true, Credit: 64, Delay: time.Second, DeadLetter: true,
		Answer: Refused, Reason: "why", Payload: []byte("payload"),
	}
}

func only(m Message, kind Kind) Message {
	may := allowed[kind]
	v := reflect.ValueOf(&m).Elem()
	for name, tag := range map[string]int{
		"Client": tagClient, "Token": tagToken, "Topic": tagTopic, "Group": tagGroup, "Mode": tagMode,
		"BusinessID": tagBusinessID, "MessageID": tagMessageID, "Key": tagKey, "Headers": tagHeaders, "TTL": tagTTL,
		"Attempt": tagAttempt, "Again": tagAgain, "Credit": tagCredit, "Delay": tagDelay, "DeadLetter": tagDeadLetter,
		"Answer": tagAnswer, "Reason": tagReason, "Payload": tagPayload,
	} {
		if !may.has(tag) {
			v.FieldByName(name).SetZero()
		}
	}
	m.Version, m.Kind = Version, kind
	return m
}

func mustEncode(t testing.TB, m Message) [][]byte {
	t.Helper()
	parts, err := Encode(nil, &m)
	if err != nil {
		t.Fatalf("encode %+v: %v", m, err)
	}
	return parts
}

func TestEveryKindSurvivesTheWire(t *testing.T) {
	for kind := Hello; kind.valid(); kind++ {
		m := only(full(), kind)
		m.Request = 1 << 40
		got, err := Decode(mustEncode(t, m))
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("kind %d: got %+v, %v, want %+v", kind, got, err, m)
		}
	}
}

// TestTheDocumentedExample checks the example in PROTOCOL.md, from which clients
// in other languages are written.
func TestTheDocumentedExample(t *testing.T) {
	parts := mustEncode(t, Message{Kind: Publish, Request: 3, Topic: "orders", Mode: AtLeastOnce, BusinessID: "order-1", Payload: []byte("hi")})
	const head = "\xC5\x02\x03\x03\x03\x06orders\x05\x01\x02\x06\x07order-1"
	if string(parts[0]) != head || string(parts[1]) != "hi" {
		t.Fatalf("got %q %q", parts[0], parts[1])
	}
}

func TestFieldsOfOtherKindsAreRefused(t *testing.T) {
	for kind := Hello; kind.valid(); kind++ {
		m := full()
		m.Kind = kind
		if _, err := Encode(nil, &m); !errors.Is(err, ErrField) {
			t.Errorf("kind %d with every field: %v, want ErrField", kind, err)
		}
	}
}

func TestAnyMessageSurvivesTheWire(t *testing.T) {
	text := func(limit int) *rapid.Generator[string] { return rapid.StringN(0, limit/4, limit) }
	rapid.Check(t, func(t *rapid.T) {
		m := Message{
			Client: text(MaxID).Draw(t, "client"), Topic: text(MaxTopic).Draw(t, "topic"),
			Group: text(MaxID).Draw(t, "group"), BusinessID: text(MaxID).Draw(t, "business"),
			MessageID: text(MaxID).Draw(t, "id"), Key: text(MaxID).Draw(t, "key"), Reason: text(MaxReason).Draw(t, "reason"),
			Mode: Mode(rapid.IntRange(0, 2).Draw(t, "mode")), Answer: Answer(rapid.IntRange(0, int(Forgotten)).Draw(t, "answer")),
			Headers: rapid.MapOfN(rapid.StringN(1, 8, 32), text(64), 0, 5).Draw(t, "headers"),
			TTL:     time.Duration(rapid.Int64Range(-maxDurationMS, maxDurationMS).Draw(t, "ttl")) * time.Millisecond,
			Delay:   time.Duration(rapid.Int64Range(0, maxDurationMS).Draw(t, "delay")) * time.Millisecond,
			Attempt: rapid.IntRange(0, 1<<31-1).Draw(t, "attempt"), Credit: rapid.IntRange(0, MaxCredit).Draw(t, "credit"),
			Again: rapid.Bool().Draw(t, "again"), DeadLetter: rapid.Bool().Draw(t, "dead"),
			Payload: rapid.SliceOf(rapid.Byte()).Draw(t, "payload"),
		}
		m = only(m, Kind(rapid.IntRange(int(Hello), int(Error)).Draw(t, "kind")))
		m.Request = rapid.Uint64().Draw(t, "request")
		if len(m.Headers) == 0 {
			m.Headers = nil
		}
		if len(m.Payload) == 0 {
			m.Payload = nil
		}
		parts, err := Encode(nil, &m)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Decode(parts)
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Fatalf("got %+v, %v, want %+v", got, err, m)
		}
	})
}

func TestLimitsAreCheckedWhenEncoding(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n) }
	many := map[string]string{}
	for len(many) <= MaxHeaders {
		many[long(len(many)+1)] = ""
	}
	for name, m := range map[string]Message{
		"topic":        {Kind: Publish, Topic: long(MaxTopic + 1)},
		"id":           {Kind: Publish, MessageID: long(MaxID + 1)},
		"reason":       {Kind: Error, Reason: long(MaxReason + 1)},
		"headers":      {Kind: Publish, Headers: many},
		"header":       {Kind: Publish, Headers: map[string]string{"h": long(MaxHeader)}},
		"no name":      {Kind: Publish, Headers: map[string]string{"": "v"}},
		"payload":      {Kind: Publish, Payload: make([]byte, MaxPayload+1)},
		"attempt":      {Kind: Ack, Attempt: -1},
		"credit":       {Kind: Credit, Credit: MaxCredit + 1},
		"mode":         {Kind: Publish, Mode: AtLeastOnce + 1},
		"answer":       {Kind: AckReply, Answer: Forgotten + 1},
		"microseconds": {Kind: Publish, TTL: time.Microsecond},
		"not UTF-8":    {Kind: Publish, Topic: "\xff"},
		"kind":         {Kind: Error + 1},
		"no kind":      {},
	} {
		if _, err := Encode(nil, &m); !errors.Is(err, ErrField) {
			t.Errorf("%s: %v, want ErrField", name, err)
		}
	}
}

func TestDecodingIsStrict(t *testing.T) {
	head := mustEncode(t, Message{Kind: Ack, Request: 1, MessageID: "m", Attempt: 1})[0]
	with := func(change func(b []byte) []byte) [][]byte {
		return [][]byte{change(bytes.Clone(head)), {}}
	}
	for name, c := range map[string]struct {
		parts [][]byte
		want  error
	}{
		"no parts":        {nil, ErrMalformed},
		"one part":        {[][]byte{head}, ErrMalformed},
		"three parts":     {[][]byte{head, {}, {}}, ErrMalformed},
		"empty head":      {[][]byte{{}, {}}, ErrMalformed},
		"wrong magic":     {with(func(b []byte) []byte { b[0] = 'C'; return b }), ErrMalformed},
		"older":           {with(func(b []byte) []byte { b[1] = OldestVersion - 1; return b }), ErrVersion},
		"newer":           {with(func(b []byte) []byte { b[1] = Version + 1; return b }), ErrVersion},
		"kind":            {with(func(b []byte) []byte { b[2] = 200; return b }), ErrMalformed},
		"trailing byte":   {with(func(b []byte) []byte { return append(b, 0) }), ErrMalformed},
		"cut":             {with(func(b []byte) []byte { return b[:len(b)-1] }), ErrMalformed},
		"unknown field":   {with(func(b []byte) []byte { return append(b, 99, 1, 1) }), ErrField},
		"foreign field":   {with(func(b []byte) []byte { return append(b, tagReason, 1, 'x') }), ErrField},
		"repeated field":  {with(func(b []byte) []byte { return append(b, tagAttempt, 1, 1) }), ErrMalformed},
		"field backwards": {with(func(b []byte) []byte { return append(b, tagMessageID, 1, 'x') }), ErrMalformed},
		"long number":     {[][]byte{{magic, Version, byte(Ping), 0x80, 0x00}, {}}, ErrMalformed},
		"zero field":      {[][]byte{{magic, Version, byte(Credit), 1, tagCredit, 1, 0}, {}}, ErrField},
		"empty text":      {[][]byte{{magic, Version, byte(Ack), 1, tagMessageID, 0}, {}}, ErrMalformed},
		"payload of none": {[][]byte{{magic, Version, byte(Ping), 1}, {1}}, ErrField},
		"huge length":     {[][]byte{{magic, Version, byte(Ack), 1, tagMessageID, 0xff, 0xff, 0xff, 0xff, 0x0f}, {}}, ErrField},
		"headers swapped": {[][]byte{{magic, Version, byte(Publish), 1, tagHeaders, 6, 1, 'b', 0, 1, 'a', 0}, {}}, ErrMalformed},
	} {
		if m, err := Decode(c.parts); !errors.Is(err, c.want) {
			t.Errorf("%s: %+v, %v, want %v", name, m, err, c.want)
		}
	}
}

func TestARefusedMessageStillNamesItsRequest(t *testing.T) {
	m, err := Decode([][]byte{{magic, Version, byte(Ack), 7, 99}, {}})
	if err == nil || m.Request != 7 || m.Kind != Ack {
		t.Fatalf("got %+v, %v; want request 7 of an Ack, and an error", m, err)
	}
}

// FuzzDecode checks that whatever decodes re-encodes to the same bytes, and that
// no input makes the decoder panic.
func FuzzDecode(f *testing.F) {
	for kind := Hello; kind.valid(); kind++ {
		parts := mustEncode(f, only(full(), kind))
		f.Add(parts[0], parts[1])
	}
	f.Add([]byte{magic, Version, byte(Publish), 0x80}, []byte{})
	f.Fuzz(func(t *testing.T, head, payload []byte) {
		m, err := Decode([][]byte{head, payload})
		if err != nil {
			return
		}
		parts := mustEncode(t, m)
		if !bytes.Equal(parts[0], head) || !bytes.Equal(parts[1], payload) {
			t.Fatalf("decoded and encoded again:\n got %x\nwant %x", parts[0], head)
		}
	})
}

func BenchmarkPublishOnTheWire(b *testing.B) {
	m := Message{Kind: Publish, Request: 12345, Topic: "orders", Mode: AtLeastOnce, BusinessID: "order-12345", Payload: make([]byte, 256)}
	var head []byte
	b.ReportAllocs()
	for b.Loop() {
		head, _ = AppendHead(head[:0], &m)
		if _, err := DecodeParts(head, m.Payload); err != nil {
			b.Fatal(err)
		}
	}
}
