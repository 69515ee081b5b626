package kafka_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/kafka"
)

// chunk is one frame as it passed a link: the lines of testdata/*.jsonl, whose
// meaning is in testdata/*.txt. The
// connections of a client are in one file, in the order in which frames passed.
type chunk struct {
	Conn  int                `json:"conn"`
	To    evidence.Direction `json:"to"`
	Bytes []byte             `json:"bytes"`
}

// recorder is a protocol that keeps what every connection carried.
type recorder struct {
	kafka.Protocol
	mu     sync.Mutex
	conns  int
	chunks []chunk
}

func (r *recorder) NewConn(ix *links.Index) (toBroker, toClient links.Framer) {
	b, c := r.Protocol.NewConn(ix)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conns++
	return &recorded{b, r, r.conns, evidence.ToBroker}, &recorded{c, r, r.conns, evidence.ToClient}
}

type recorded struct {
	links.Framer
	recorder *recorder
	conn     int
	to       evidence.Direction
}

func (r *recorded) Next(buf []byte) (links.Frame, int, error) {
	f, n, err := r.Framer.Next(buf)
	if n > 0 {
		r.recorder.mu.Lock()
		defer r.recorder.mu.Unlock()
		r.recorder.chunks = append(r.recorder.chunks, chunk{r.conn, r.to, bytes.Clone(buf[:n])})
	}
	return f, n, err
}

// captures are the names of the recorded dialogues.
func captures(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.jsonl")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	return files
}

func readCapture(t testing.TB, file string) (chunks []chunk) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, links.MaxFrame)
	for lines.Scan() {
		var c chunk
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		chunks = append(chunks, c)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return chunks
}

func writeCapture(t testing.TB, name string, chunks []chunk) {
	t.Helper()
	var out bytes.Buffer
	for _, c := range chunks {
		line, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(append(line, '\n'))
	}
	must(t, os.WriteFile("testdata/"+name+".jsonl", out.Bytes(), 0o600))
	must(t, os.WriteFile("testdata/"+name+".txt", []byte(told(replay(t, chunks, links.MaxFrame))), 0o600))
}

// replay cuts a capture anew, with one framer for each direction of each
// connection, and every chunk in pieces of at most this many bytes.
func replay(t testing.TB, chunks []chunk, piece int) (frames []links.Frame) {
	t.Helper()
	protocol, index := kafka.New(), links.NewIndex()
	type way struct {
		conn int
		to   evidence.Direction
	}
	framers := map[way]links.Framer{}
	for _, c := range chunks {
		if framers[way{c.Conn, c.To}] == nil {
			b, cl := protocol.NewConn(index)
			framers[way{c.Conn, evidence.ToBroker}], framers[way{c.Conn, evidence.ToClient}] = b, cl
		}
		framer := framers[way{c.Conn, c.To}]
		for have := min(piece, len(c.Bytes)); ; have = min(have+piece, len(c.Bytes)) {
			f, n, err := framer.Next(c.Bytes[:have:have])
			if err != nil {
				t.Fatal(err)
			}
			if n != 0 {
				if n != len(c.Bytes) || have != n || !bytes.Equal(f.Raw, c.Bytes) {
					t.Fatalf("a frame of %d bytes is cut to %d with %d there", len(c.Bytes), n, have)
				}
				frames = append(frames, f)
				break
			}
			if have == len(c.Bytes) {
				t.Fatalf("a frame of %d bytes is never complete", have)
			}
		}
	}
	return frames
}

// told is what the frames of a capture mean, a line for each that has a kind.
func told(frames []links.Frame) string {
	var out strings.Builder
	for _, f := range frames {
		if f.Kind == "" {
			continue
		}
		out.WriteString(f.Kind)
		for _, i := range f.Items {
			fmt.Fprintf(&out, " %s(%s,%s)", i.BusinessID, i.PublishID, i.MessageID)
		}
		if f.Says != "" {
			fmt.Fprintf(&out, " says %s", f.Says)
		}
		out.WriteString("\n")
	}
	return out.String()
}
