package evidence

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// fullEvent has a value in every field (checked by TestEncoderWritesWhatEncodingJSONWrites).
func fullEvent() Event {
	return Event{
		Seq: 7, At: 12345678 * time.Nanosecond, Kind: Delivered,
		Actor: "c1", Session: "c1#2", Subscription: "orders", Destination: "orders",
		BusinessID: "order-1", PublishID: "p1-1-1", MessageID: "m-ü-1",
		Acceptance: Accepted, HeldBy: HeldByStore, Ack: AckConfirmed, Mark: MarkRedelivered, Attempt: 2,
		ClientResult: `ok "quoted" <&> \ back`, Key: "k", Digest: "00ff00ff00ff00ff", Size: 120, TTL: time.Second,
		Link: "c1", Conn: 1, Frame: "ack", To: ToBroker,
		Items: []FrameItem{{BusinessID: "order-1", PublishID: "p1-1-1"}, {}, {MessageID: "m2"}},
		Fault: "lost", Struck: "drop", Incarnation: 3, Phase: Act,
		Exit:  &ExitInfo{Code: -1, Signal: "killed", Ordered: true, Waited: time.Second},
		Cause: CauseExpired, Standing: Dead, Duplicate: true, Negative: true, Window: 20, Command: CommandRewind, Checkpoint: "cut",
		Offset: -time.Hour, Drain: DrainQuiet, Partitions: []string{"custody/host-1", `quoted "x"`},
		Call: 9, OK: true, Line: 12, Left: 3, Probe: "wrong-token", Wanted: ProbeEnded, Got: ProbeAccepted, WantedCause: CausePermission, Reason: "line\u2028sep\ttab\x01\x7f\xffbroken 日本",
	}
}

func jsonLine(t interface {
	Helper()
	Fatalf(string, ...any)
}, e *Event) []byte {
	t.Helper()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(e); err != nil {
		t.Fatalf("encoding/json: %v", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

func TestEncoderWritesWhatEncodingJSONWrites(t *testing.T) {
	full := fullEvent()
	for v, i := reflect.ValueOf(full), 0; i < v.NumField(); i++ {
		if v.Field(i).IsZero() {
			t.Errorf("the test's full event has no %s", v.Type().Field(i).Name)
		}
	}
	for _, e := range []Event{{}, full, {Kind: Noted, Items: []FrameItem{}}, {Exit: &ExitInfo{}}} {
		if got, want := AppendJSON(nil, &e), jsonLine(t, &e); !bytes.Equal(got, want) {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func genEvent(t *rapid.T) Event {
	text := rapid.OneOf(rapid.Just(""), rapid.StringMatching(`[a-z0-9#-]{1,12}`), rapid.String(),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 8), func(b []byte) string { return string(b) }))
	var e Event
	v := reflect.ValueOf(&e).Elem()
	limits := map[reflect.Type]int{
		reflect.TypeFor[Kind](): len(kindNames), reflect.TypeFor[Acceptance](): len(acceptanceNames),
		reflect.TypeFor[HeldBy](): len(heldByNames), reflect.TypeFor[AckOutcome](): len(ackOutcomeNames),
		reflect.TypeFor[Mark](): len(markNames), reflect.TypeFor[Direction](): len(directionNames),
		reflect.TypeFor[Phase](): len(phaseNames), reflect.TypeFor[Cause](): len(causeNames),
		reflect.TypeFor[Standing](): len(standingNames), reflect.TypeFor[Command](): len(commandNames),
		reflect.TypeFor[DrainReason](): len(drainReasonNames), reflect.TypeFor[ProbeOutcome](): len(probeOutcomeNames),
	}
	for i := range v.NumField() {
		f, label := v.Field(i), v.Type().Field(i).Name
		switch f.Kind() {
		case reflect.String:
			f.SetString(text.Draw(t, label))
		case reflect.Uint8:
			f.SetUint(uint64(rapid.IntRange(0, limits[f.Type()]-1).Draw(t, label)))
		case reflect.Uint64:
			f.SetUint(rapid.Uint64().Draw(t, label))
		case reflect.Int, reflect.Int64:
			f.SetInt(rapid.Int64().Draw(t, label))
		case reflect.Bool:
			f.SetBool(rapid.Bool().Draw(t, label))
		case reflect.Slice:
			for range rapid.IntRange(0, 3).Draw(t, label) {
				if f.Type() == reflect.TypeFor[[]string]() {
					e.Partitions = append(e.Partitions, text.Draw(t, "partition"))
					continue
				}
				e.Items = append(e.Items, FrameItem{text.Draw(t, "b"), text.Draw(t, "p"), text.Draw(t, "m")})
			}
		case reflect.Pointer:
			if rapid.Bool().Draw(t, label) {
				e.Exit = &ExitInfo{rapid.Int().Draw(t, "code"), text.Draw(t, "signal"), rapid.Bool().Draw(t, "ordered"), time.Duration(rapid.Int64().Draw(t, "waited"))}
			}
		default:
			t.Fatalf("field %s has a type that this generator does not know", label)
		}
	}
	return e
}

func TestCodecAgreesWithEncodingJSON(t *testing.T) {
	var d Decoder
	rapid.Check(t, func(t *rapid.T) {
		e := genEvent(t)
		line := AppendJSON(nil, &e)
		if want := jsonLine(t, &e); !bytes.Equal(line, want) {
			t.Fatalf("encoded\n%s\nencoding/json\n%s", line, want)
		}
		var got, want Event
		if err := json.Unmarshal(line, &want); err != nil {
			t.Fatalf("encoding/json: %v", err)
		}
		if err := d.Decode(line, &got); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	})
}

var decodeCases = []struct {
	line string
	ok   bool
}{
	{`{}`, true},
	{" { \"seq\" : 1 , \"at\":-5,\"kind\":\"noted\"}\r\n", true},
	{`{"kind":""}`, true},
	{`{"later":{"a":[1,2.5e3,{"b":null}]},"seq":3,"and":"\"more\\"}`, true},
	{`{"items":[],"exit":{}}`, true},
	{`{"items":null,"exit":null,"ok":null,"seq":null,"at":null,"kind":null,"actor":null,"acceptance":null}`, true},
	{`{"items":[null,{"publish":"p","x":1}],"exit":{"code":-1,"y":[]}}`, true},
	{`{"exit":{"code":1},"exit":{"signal":"killed"}}`, true},
	{`{"actor":"a","actor":"b"}`, true},
	{`{"\u0061ctor":"\u00e9\ud83d\ude00\ud800","kind":"\u006eoted"}`, true},
	{"{\"actor\":\"\xff\"}", true},
	{`{"seq":18446744073709551615,"at":-9223372036854775808}`, true},
	{`{"seq":18446744073709551616}`, false},
	{`{"at":9223372036854775808}`, false},
	{`{"seq":-1}`, false},
	{`{"seq":01}`, false},
	{`{"seq":1.0}`, false},
	{`{"seq":1e3}`, false},
	{`{"seq":"1"}`, false},
	{`{"at":-}`, false},
	{`{"actor":1}`, false},
	{`{"ok":1}`, false},
	{`{"ok":tru}`, false},
	{`{"kind":"no such kind"}`, false},
	{`{"acceptance":"perhaps"}`, false},
	{`{"acceptance":1}`, false},
	{`{"items":{}}`, false},
	{`{"items":[1]}`, false},
	{`{"exit":[]}`, false},
	{"{\"actor\":\"a\nb\"}", false},
	{`{"actor":"\x"}`, false},
	{`{"actor":"a`, false},
	{`{"actor":"a\`, false},
	{`{"actor":"a",}`, false},
	{`{"actor" "a"}`, false},
	{`{actor:"a"}`, false},
	{`{} {}`, false},
	{`{"x":}`, false},
	{`[]`, false},
	{``, false},
}

func TestDecodeAcceptsAndRefusesAsEncodingJSONDoes(t *testing.T) {
	for _, c := range decodeCases {
		var d Decoder
		got, want := fullEvent(), Event{}
		err, ref := d.Decode([]byte(c.line), &got), json.Unmarshal([]byte(c.line), &want)
		if (err == nil) != c.ok || (ref == nil) != c.ok {
			t.Errorf("%s: accepted wrongly or refused: %v (encoding/json: %v)", c.line, err, ref)
		}
		if c.ok && !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", c.line, got, want)
		}
	}
}

func TestDecoderInternsAndLeavesStringsAlone(t *testing.T) {
	var d Decoder
	var a, b Event
	line := []byte(`{"seq":1,"kind":"delivered","actor":"c1","publish":"p1-1-1"}`)
	if err := d.Decode(line, &a); err != nil {
		t.Fatal(err)
	}
	allocs := testing.AllocsPerRun(100, func() { _ = d.Decode(line, &b) })
	if allocs != 0 {
		t.Errorf("a line of known strings costs %v allocations", allocs)
	}
	copy(line, bytes.Repeat([]byte("x"), len(line)))
	if a.Actor != "c1" || a.PublishID != "p1-1-1" {
		t.Errorf("an event's strings changed with the line: %+v", a)
	}
}

// FuzzDecodeEvent checks that encoding/json accepts whatever the Decoder
// accepts, with the same result, and that whatever encoding/json decodes from
// a line, AppendJSON can encode and both decoders read back alike.
func FuzzDecodeEvent(f *testing.F) {
	full := fullEvent()
	f.Add(AppendJSON(nil, &full))
	for _, c := range decodeCases {
		f.Add([]byte(c.line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		if foldedNames(line) {
			t.Skip("encoding/json also takes names in another case")
		}
		var d Decoder
		var got, want Event
		err, ref := d.Decode(line, &got), json.Unmarshal(line, &want)
		if err == nil && (ref != nil || !reflect.DeepEqual(got, want)) {
			t.Fatalf("%q: got %+v, encoding/json %+v, %v", line, got, want, ref)
		}
		if ref != nil {
			return
		}
		if want.Items == nil || len(want.Items) > 0 { // AppendJSON omits an empty list
			again := AppendJSON(nil, &want)
			if b := jsonLine(t, &want); !bytes.Equal(again, b) {
				t.Fatalf("encoded %q, encoding/json %q", again, b)
			}
			if err := d.Decode(again, &got); err != nil || !reflect.DeepEqual(got, want) {
				t.Fatalf("%q: got %+v, want %+v, %v", again, got, want, err)
			}
		}
	})
}

// foldedNames reports whether some object has a field name that differs from
// one of ours only in case.
func foldedNames(line []byte) bool {
	known := map[string]bool{}
	for _, t := range []reflect.Type{reflect.TypeFor[Event](), reflect.TypeFor[FrameItem](), reflect.TypeFor[ExitInfo]()} {
		for i := range t.NumField() {
			n, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
			known[n] = true
		}
	}
	dec := json.NewDecoder(bytes.NewReader(line))
	for {
		tok, err := dec.Token()
		if err != nil {
			return false
		}
		if s, ok := tok.(string); ok && !known[s] {
			for n := range known {
				if strings.EqualFold(n, s) {
					return true
				}
			}
		}
	}
}

func BenchmarkDecodeMemory(b *testing.B) {
	lines := make([][]byte, 4096)
	for i := range lines {
		e := benchEvent(i)
		lines[i] = AppendJSON(nil, &e)
	}
	var d Decoder
	var e Event
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if err := d.Decode(lines[i%len(lines)], &e); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

// benchEvent returns the i-th event of a typical history, which has four
// events per message.
func benchEvent(i int) Event {
	id := PublishID("p1", i/4+1, 1)
	e := Event{
		Seq: uint64(i + 1), At: time.Duration(i) * 1234, Actor: "c1", Session: "c1#1", Subscription: "orders",
		Destination: "orders", BusinessID: "order-" + id[3:], PublishID: id, Size: 128, Digest: "0011223344556677",
	}
	switch i % 4 {
	case 0:
		e.Kind, e.Actor, e.Session, e.Subscription, e.Call = PublishCalled, "p1", "p1#1", "", uint64(i)
	case 1:
		e.Kind, e.Actor, e.Session, e.Subscription, e.Call = PublishReturned, "p1", "p1#1", "", uint64(i)
		e.Acceptance, e.HeldBy, e.ClientResult = Accepted, HeldByStore, "ok"
	case 2:
		e.Kind, e.Mark, e.Attempt, e.MessageID = Delivered, MarkFirst, 1, "m-"+id
	case 3:
		e.Kind, e.Ack, e.MessageID, e.Call = AckReturned, AckConfirmed, "m-"+id, uint64(i)
	}
	return e
}
