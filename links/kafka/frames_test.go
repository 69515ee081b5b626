package kafka_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/kafka"
)

// The captures hold every kind; testdata/*.txt says what each frame means.
func TestCapturesAreUnderstood(t *testing.T) {
	seen := map[string]bool{}
	for _, file := range captures(t) {
		frames := replay(t, readCapture(t, file), links.MaxFrame)
		for _, f := range frames {
			seen[f.Kind] = true
		}
		want, err := os.ReadFile(strings.TrimSuffix(file, ".jsonl") + ".txt")
		must(t, err)
		if got := told(frames); got != string(want) {
			t.Errorf("%s: got\n%s", file, got)
		}
	}
	for _, k := range kafka.New().Kinds() {
		if !seen[k.Name] {
			t.Errorf("no capture has a frame %q", k.Name)
		}
	}
}

func TestSplittingChangesNothing(t *testing.T) {
	for _, file := range captures(t) {
		chunks := readCapture(t, file)
		whole := told(replay(t, chunks, links.MaxFrame))
		for _, piece := range []int{1, 2, 3, 64} { // 1: at every byte
			if split := told(replay(t, chunks, piece)); split != whole {
				t.Errorf("%s in pieces of %d:\n%s", file, piece, split)
			}
		}
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
			err := p.Legal(k.Name, action)
			var illegal *links.ErrIllegal
			if (err == nil) != legal || err != nil && !errors.As(err, &illegal) {
				t.Errorf("%s %s: %v", action, k.Name, err)
			}
		}
	}
}

func TestCorruptKeepsFramesWellFormed(t *testing.T) {
	for _, file := range captures(t) {
		chunks := readCapture(t, file)
		corrupted := 0
		for i, f := range replay(t, chunks, links.MaxFrame) {
			if f.Kind != links.FramePublish && f.Kind != links.FrameDeliver {
				continue
			}
			raw, err := kafka.New().Corrupt(f)
			if err != nil || len(raw) != len(f.Raw) || bytes.Equal(raw, f.Raw) {
				t.Fatalf("%s: %v", f.Kind, err)
			}
			// The same messages are in it, for the body was altered only.
			chunks[i].Bytes = raw
			corrupted++
		}
		want, err := os.ReadFile(strings.TrimSuffix(file, ".jsonl") + ".txt")
		must(t, err)
		// Order 3 has no body, so that its business ID was altered.
		if got := told(replay(t, chunks, links.MaxFrame)); corrupted == 0 || strings.ReplaceAll(got, "order-x(p1-3-1", "order-3(p1-3-1") != string(want) {
			t.Errorf("%s: got\n%s", file, got)
		}
	}
	if _, err := kafka.New().Corrupt(links.Frame{Raw: make([]byte, 200)}); err == nil {
		t.Error("corrupted a frame without a batch")
	}
}

// frame is a request with its header and its length.
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

// A peer that announces as many elements as it may makes no more room than a
// small multiple of what it sent.
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
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 64*size {
		t.Errorf("%d bytes allocated for %d (n %d, %v)", grown, len(b), n, err)
	}
}

// A commit acknowledges what its own session was given, whoever else was given
// the same.
func TestCommitIsOfItsSession(t *testing.T) {
	chunks := readCapture(t, "testdata/classic.jsonl")
	acks := map[string]int{}
	for _, f := range replay(t, chunks, links.MaxFrame) {
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
	for _, file := range captures(f) {
		byConn := map[int]*[3][]byte{}
		for _, c := range readCapture(f, file) {
			if byConn[c.Conn] == nil {
				byConn[c.Conn] = &[3][]byte{}
			}
			byConn[c.Conn][c.To] = append(byConn[c.Conn][c.To], c.Bytes...)
		}
		for _, c := range byConn {
			f.Add(c[evidence.ToBroker], c[evidence.ToClient])
		}
	}
	f.Fuzz(func(t *testing.T, toBroker, toClient []byte) {
		protocol := kafka.New()
		b, c := protocol.NewConn(links.NewIndex())
		for _, way := range []struct {
			framer links.Framer
			stream []byte
		}{{b, toBroker}, {c, toClient}} {
			for rest := way.stream; ; {
				f, n, err := way.framer.Next(rest)
				if err != nil || n == 0 {
					break
				}
				if n < 0 || n > len(rest) || !bytes.Equal(f.Raw, rest[:n]) {
					t.Fatalf("a frame of %d bytes in %d", n, len(rest))
				}
				if raw, err := protocol.Corrupt(f); err == nil && len(raw) != n {
					t.Fatal("corrupt changed the length")
				}
				rest = rest[n:]
			}
		}
	})
}
