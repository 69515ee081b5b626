package kafka_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/kafka"
	"github.com/custodymq/custody/links/linktest"
)

func protocol() links.Protocol { return kafka.New() }

// captures are dialogues of TestRecord; testdata/*.txt gives the meaning of
// each frame.
var captures = []string{"classic", "consumer", "share", "transactions"}

func captured(t testing.TB, name string) linktest.Capture {
	t.Helper()
	return linktest.Read(t, "testdata/"+name+".capture")
}

// told summarises a capture, one line per frame with a kind.
func told(t *testing.T, c linktest.Capture) string {
	t.Helper()
	var out strings.Builder
	for _, f := range c.Understood(t, protocol()) {
		if f.Kind != "" {
			out.WriteString(linktest.Summary(f) + "\n")
		}
	}
	return out.String()
}

// meant is the expected summary.
func meant(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestCapturesAreUnderstood(t *testing.T) {
	var all []linktest.Capture
	for _, name := range captures {
		c := captured(t, name)
		if got := told(t, c); got != meant(t, name) {
			t.Errorf("%s: got\n%s", name, got)
		}
		all = append(all, c)
	}
	linktest.EveryKind(t, protocol, all...)
}

func TestSplittingChangesNothing(t *testing.T) {
	for _, name := range captures {
		linktest.Splitting(t, protocol, captured(t, name))
	}
}

func TestLegal(t *testing.T) {
	p := kafka.New()
	for _, k := range p.Kinds() {
		payload := k.Name == links.FramePublish || k.Name == links.FrameDeliver
		for action, legal := range map[links.Action]bool{
			links.Drop: false, links.Duplicate: false, links.Corrupt: payload,
			links.Withhold: true, links.Hold: true, links.HoldAfter: true, links.Delay: true, links.CutBefore: true, links.CutAfter: true,
		} {
			linktest.Legal(t, p, k.Name, action, legal)
		}
	}
}

func TestCorruptKeepsFramesWellFormed(t *testing.T) {
	for _, name := range captures {
		c := captured(t, name)
		corrupted := 0
		for i, f := range c.Understood(t, protocol()) {
			if f.Kind != links.FramePublish && f.Kind != links.FrameDeliver {
				continue
			}
			raw, err := kafka.New().Corrupt(f)
			if err != nil || len(raw) != len(f.Raw) || bytes.Equal(raw, f.Raw) {
				t.Fatalf("%s: %v", f.Kind, err)
			}
			// It still lists the same messages, because only the body was
			// altered.
			c[i].Bytes = raw
			corrupted++
		}
		// Order 3 has no body, so its business ID was altered.
		if got := told(t, c); corrupted == 0 || strings.ReplaceAll(got, "order-x/p1-3-1", "order-3/p1-3-1") != meant(t, name) {
			t.Errorf("%s: got\n%s", name, got)
		}
	}
	if _, err := kafka.New().Corrupt(links.Frame{Raw: make([]byte, 200)}); err == nil {
		t.Error("corrupted a frame without a batch")
	}
}

// frame is a request with header and length.
func frame(r kmsg.Request, correlation int32) []byte {
	f := kmsg.NewRequestFormatter(kmsg.FormatterClientID("c1#1"))
	return f.AppendRequest(nil, r, correlation)
}

func TestBadStreamsAreRefused(t *testing.T) {
	newest := kmsg.NewPtrProduceRequest()
	newest.Version = newest.MaxVersion() + 1
	lies := kmsg.NewPtrShareAcknowledgeRequest()
	lies.Topics = []kmsg.ShareAcknowledgeRequestTopic{{Partitions: []kmsg.ShareAcknowledgeRequestTopicPartition{{
		AcknowledgementBatches: []kmsg.ShareAcknowledgeRequestTopicPartitionAcknowledgementBatch{{FirstOffset: 0, LastOffset: 1 << 62, AcknowledgeTypes: []int8{1}}},
	}}}}
	for name, b := range map[string][]byte{
		"HTTP":                    []byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
		"TLS":                     []byte("\x16\x03\x01\x02\x00\x01\x00"),
		"announces too much":      {0x7f, 0xff, 0xff, 0xff},
		"shorter than its header": {0, 0, 0, 2, 0, 0},
		"no such request":         {0, 0, 0, 10, 0x70, 0, 0, 0, 0, 0, 0, 1, 0xff, 0xff},
		"client ID over the end":  {0, 0, 0, 10, 0, 3, 0, 0, 0, 0, 0, 1, 0, 9},
		"newer than understood":   frame(newest, 1),
		"an endless range":        frame(lies, 1),
	} {
		b1, _ := kafka.New().NewConn(links.NewIndex())
		if _, _, err := b1.Next(b); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	_, toClient := kafka.New().NewConn(links.NewIndex())
	if _, _, err := toClient.Next([]byte{0, 0, 0, 4, 0, 0, 0, 9}); err == nil {
		t.Error("an answer to nothing: no error")
	}
}

// Announcing many elements must not allocate more than a small multiple of the
// bytes sent.
func TestHostileCountsAllocateLittle(t *testing.T) {
	const size = 1 << 20
	body := make([]byte, size)
	head := append(binary.BigEndian.AppendUint32(nil, 0), 0, 0, 0, 3, 0, 0, 0, 1, 0, 0) // Produce 3
	head = append(head, 0xff, 0xff, 0, 1, 0, 0, 0, 0)
	head = binary.BigEndian.AppendUint32(head, size/2-1)
	b := append(head, body...)
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	toBroker, _ := kafka.New().NewConn(links.NewIndex())
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, n, err := toBroker.Next(b)
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 65*size { // 128 bytes for each two-byte element, plus overhead
		t.Errorf("%d bytes allocated for %d (n %d, %v)", grown, len(b), n, err)
	}
}

// A commit acknowledges what its own session received, even if others received
// the same.
func TestCommitIsOfItsSession(t *testing.T) {
	acks := map[string]int{}
	for _, f := range captured(t, "classic").Understood(t, protocol()) {
		if f.Kind == links.FrameAck {
			for _, i := range f.Items {
				acks[i.BusinessID]++
			}
		}
	}
	for _, order := range []string{"order-1", "order-2", "order-3", "order-4", "order-6"} {
		if acks[order] != 1 {
			t.Errorf("%s acknowledged %d times", order, acks[order])
		}
	}
}

func FuzzFramer(f *testing.F) {
	linktest.Fuzz(f, protocol, captured(f, "classic"), captured(f, "consumer"), captured(f, "share"))
}
