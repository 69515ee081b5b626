package amqp_test

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/amqp"
	"github.com/custodymq/custody/links/linktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func protocol() links.Protocol { return amqp.Protocol{} }

// The dialogue of a real client with a real server, as carried by a link: see
// TestServer.
const dialogueFile = "testdata/dialogue.capture"

func item(n, try string) evidence.FrameItem {
	return evidence.FrameItem{BusinessID: "order-" + n, PublishID: "p1-" + n + "-" + try, MessageID: "m-" + n}
}

// understood lists the messages of each frame kind in the dialogue (see
// server_test.go), in order.
var understood = map[string][]evidence.FrameItem{
	links.FramePublish: {item("0", "1"), item("1", "1"), item("2", "1"), item("3", "1"), item("4", "1"), item("5", "1"), item("6", "1"), item("7", "1")},
	// Without order-0, published before confirm.select, and order-7, whose
	// channel the server closed.
	links.FrameAccept:  {item("1", "1"), item("2", "1"), item("3", "1"), item("4", "1"), item("5", "1"), item("6", "1")},
	amqp.FrameReturn:   {item("5", "1")},
	links.FrameDeliver: {item("0", "1"), item("1", "1"), item("2", "1"), item("3", "1"), item("4", "1"), item("0", "1"), item("3", "1")},
	links.FrameNack:    {item("0", "1"), item("3", "1")},
	links.FrameAck:     {item("1", "1"), item("2", "1"), item("4", "1"), item("0", "1"), item("3", "1")},
}

func check(t *testing.T, list []links.Frame) {
	t.Helper()
	got, count, says := map[string][]evidence.FrameItem{}, map[string]int{}, map[string][]string{}
	for _, f := range list {
		count[f.Kind]++
		got[f.Kind] = append(got[f.Kind], f.Items...)
		for _, i := range f.Items {
			if f.Status != "" {
				says[f.Status] = append(says[f.Status], i.BusinessID)
			}
		}
	}
	for kind, want := range understood {
		have := got[kind]
		if kind == links.FrameAccept { // the server chooses their order
			slices.SortFunc(have, func(a, b evidence.FrameItem) int { return strings.Compare(a.BusinessID, b.BusinessID) })
		}
		if !slices.Equal(have, want) {
			t.Errorf("%s: %+v, want %+v", kind, have, want)
		}
	}
	if !slices.Equal(says["nack"], []string{"order-6"}) || len(says) != 2 || len(says[links.Yes]) == 0 {
		t.Errorf("confirms say %v", says)
	}
	for kind, want := range map[string]int{
		links.FrameSubscribe: 2, links.FrameSubscribed: 2, amqp.FrameGet: 2, links.FrameUnsubscribe: 1, amqp.FrameCancel: 1, links.FrameError: 1,
	} {
		if count[kind] != want {
			t.Errorf("%d frames of %s, want %d", count[kind], kind, want)
		}
	}
}

func TestCapturedDialogueIsUnderstood(t *testing.T) {
	check(t, linktest.Read(t, dialogueFile).Understood(t, protocol()))
}

func TestSplittingChangesNothing(t *testing.T) {
	linktest.Splitting(t, protocol, linktest.Read(t, dialogueFile))
}

// Hand-made frames.

func wire(kind byte, channel uint16, payload ...byte) []byte {
	b := binary.BigEndian.AppendUint16([]byte{kind}, channel)
	b = binary.BigEndian.AppendUint32(b, uint32(len(payload))) //nolint:gosec // short
	return append(append(b, payload...), 0xCE)
}

func method(channel uint16, class, id byte, arguments ...byte) []byte {
	return wire(1, channel, append([]byte{0, class, 0, id}, arguments...)...)
}

func tag(n byte, bits ...byte) []byte { return append([]byte{0, 0, 0, 0, 0, 0, 0, n}, bits...) }

// head is a content header of the given body size, with a message-id after
// every property that may precede it.
func head(channel uint16, size byte, id string) []byte {
	properties := []byte("\x01a\x01b\x00\x00\x00\x03xyz\x02\x00\x01c\x01d\x031000")
	properties[len(properties)-5] = 4
	properties = append(append(properties, byte(len(id))), id...)
	return wire(2, channel, append(append([]byte{0, 60, 0, 0}, append(tag(size), 0xFF, 0x80)...), properties...)...)
}

func publish(channel uint16, n string) []byte {
	payload := []byte("custody/1 p1-" + n + "-1 order-" + n + "\n")
	return slices.Concat(method(channel, 60, 40, 0, 0, 0, 1, 'q', 0), head(channel, byte(len(payload)), "m-"+n), wire(3, channel, payload...))
}

func deliver(channel uint16, number byte, n string) []byte {
	payload := []byte("custody/1 p1-" + n + "-1 order-" + n + "\n")
	arguments := slices.Concat([]byte("\x03ctg"), tag(number, 0), []byte("\x00\x01q"))
	// In two bodies, with a heartbeat in between.
	return slices.Concat(method(channel, 60, 60, arguments...), head(channel, byte(len(payload)), "m-"+n), wire(3, channel, payload[:4]...), wire(8, 0), wire(3, channel, payload[4:]...))
}

func TestNumbersAreOfTheirChannel(t *testing.T) {
	toBroker := func(b []byte) linktest.Chunk { return linktest.Chunk{Conn: 1, To: evidence.ToBroker, Bytes: b} }
	toClient := func(b []byte) linktest.Chunk { return linktest.Chunk{Conn: 1, To: evidence.ToClient, Bytes: b} }
	dialogue := linktest.Capture{
		toBroker(method(1, 85, 10, 0)), toBroker(method(2, 85, 10, 0)),
		toBroker(publish(1, "1")), toBroker(publish(2, "2")), toBroker(publish(1, "3")), toBroker(publish(1, "4")), toBroker(publish(3, "5")),
		toClient(method(1, 60, 80, tag(2, 0)...)),  // ack of order-3
		toClient(method(1, 60, 80, tag(3, 1)...)),  // all up to order-4: order-1 too, but not order-3 again
		toClient(method(2, 60, 120, tag(1, 0)...)), // nack of order-2
		toClient(method(3, 60, 80, tag(1, 0)...)),  // not in confirm mode
		toClient(deliver(1, 1, "1")), toClient(deliver(1, 2, "3")), toClient(deliver(1, 3, "4")), toClient(deliver(2, 1, "2")),
		toBroker(method(1, 60, 90, tag(2, 1)...)), // reject of order-3: the bit is requeue
		toBroker(method(1, 60, 80, tag(0, 1)...)), // all
		toBroker(method(2, 20, 10, 0)),            // the channel is reopened: numbering starts over
		toBroker(method(2, 60, 80, tag(1, 0)...)),
	}
	var got []string
	for _, f := range dialogue.Understood(t, protocol()) {
		if f.Kind != "" && f.Kind != links.FramePublish && f.Kind != links.FrameDeliver {
			got = append(got, linktest.Summary(f))
		}
	}
	const one, two, three, four = "order-1/p1-1-1/m-1", "order-2/p1-2-1/m-2", "order-3/p1-3-1/m-3", "order-4/p1-4-1/m-4"
	want := []string{
		"accept " + three + " says accepted", "accept " + one + " " + four + " says accepted", "accept " + two + " says nack", "accept says accepted",
		"nack " + three, "ack " + one + " " + four, "ack",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestBadStreamsAreRefused(t *testing.T) {
	content := method(1, 60, 40, 0, 0, 0, 0, 0)
	large := append([]byte{0, 60, 0, 0}, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0)
	for name, stream := range map[string][]byte{
		"HTTP":                       []byte("GET / HTTP/1.1"),
		"TLS":                        []byte("\x16\x03\x01\x00"),
		"half a protocol header":     []byte("AMQX"),
		"a frame over the limit":     {1, 0, 1, 0xFF, 0xFF, 0xFF, 0xFF},
		"no frame-end":               append(wire(8, 0)[:7], 0),
		"a body without a method":    wire(3, 1, 'x'),
		"a header without a method":  head(1, 1, "m"),
		"a method of two bytes":      wire(1, 1, 0, 60),
		"a method instead of a head": slices.Concat(content, content),
		"a body instead of a head":   slices.Concat(content, wire(3, 1, 'x')),
		"a second head":              slices.Concat(content, head(1, 1, "m"), head(1, 1, "m")),
		"a head that is too short":   slices.Concat(content, wire(2, 1, 0, 60)),
		"a body that is too long":    slices.Concat(content, head(1, 1, "m"), wire(3, 1, 'x', 'y')),
		"a message over the limit":   slices.Concat(content, wire(2, 1, large...)),
		"interleaved channels":       slices.Concat(content, head(2, 1, "m")),
	} {
		for _, pieces := range []int{1, len(stream)} {
			if list, refused := linktest.Streams(stream, nil).InPieces(pieces).Frames(t, protocol()); refused == nil {
				t.Errorf("%s in pieces of %d: no error, %d frames", name, pieces, len(list))
			}
		}
	}
}

func TestABrokenHeadHasNoMessageID(t *testing.T) {
	whole := head(1, 0, "m-1")
	payload := whole[7 : len(whole)-1]
	for end := 14; end < len(payload); end++ {
		stream := slices.Concat(method(1, 60, 40, 0, 0, 0, 0, 0), wire(2, 1, payload[:end]...))
		list, refused := linktest.Streams(stream, nil).Frames(t, protocol())
		if refused != nil || len(list) != 1 || len(list[0].Items) != 0 {
			t.Errorf("a head cut to %d bytes: %+v, %v", end, list, refused)
		}
	}
}

func TestLegal(t *testing.T) {
	for _, c := range []struct {
		kind   string
		action links.Action
		legal  bool
	}{
		{links.FramePublish, links.Drop, false},
		{links.FramePublish, links.Duplicate, false},
		{links.FramePublish, links.Withhold, true},
		{links.FramePublish, links.Corrupt, true},
		{links.FrameAccept, links.Drop, true},
		{links.FrameAccept, links.Corrupt, false},
		{links.FrameDeliver, links.Duplicate, true},
		{links.FrameAck, links.Drop, true},
		{links.FrameSubscribed, links.Drop, false},
		{links.FrameSubscribed, links.Hold, true},
	} {
		linktest.Legal(t, protocol(), c.kind, c.action, c.legal)
	}
}

func TestCorruptKeepsFramesWellFormed(t *testing.T) {
	for _, f := range linktest.Read(t, dialogueFile).Understood(t, protocol()) {
		corrupted, err := amqp.Protocol{}.Corrupt(f)
		if f.Kind != links.FramePublish && f.Kind != links.FrameDeliver && f.Kind != amqp.FrameReturn {
			if err == nil {
				t.Errorf("a %q frame was corrupted", f.Kind)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		different := 0
		for i := range f.Raw {
			if corrupted[i] != f.Raw[i] {
				different++
			}
		}
		again, refused := linktest.Streams(nil, corrupted).Frames(t, protocol())
		if refused != nil || len(again) != 1 || different != 1 || len(corrupted) != len(f.Raw) {
			t.Errorf("%s of %v: %d bytes differ, %d frames, %v", f.Kind, f.Items, different, len(again), refused)
		}
	}
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func FuzzFramer(f *testing.F) {
	linktest.Fuzz(f, protocol, linktest.Read(f, dialogueFile), linktest.Streams(
		slices.Concat(method(1, 85, 10, 0), publish(1, "1"), method(1, 60, 80, tag(1, 0)...)),
		slices.Concat(deliver(1, 1, "1"), method(1, 60, 80, tag(0, 1)...)),
	))
}
