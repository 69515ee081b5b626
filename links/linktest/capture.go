// Package linktest helps to test framers: captures of real peers, properties
// that hold however bytes are split, and a link to a real server.
package linktest

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
)

// Capture is what a dialogue's connections carried, in order.
type Capture []Chunk

// Chunk is bytes that arrived together: a frame of a recorded capture, or a
// piece of one.
type Chunk struct {
	Conn  int // from 1, in connection order
	To    evidence.Direction
	Bytes []byte
}

// Streams returns one connection's bytes to the broker, then those to the
// client.
func Streams(toBroker, toClient []byte) Capture {
	return Capture{{1, evidence.ToBroker, toBroker}, {1, evidence.ToClient, toClient}}
}

// arrows mark the direction after a connection's number in a file: 1> "bytes".
var arrows = [...]string{evidence.ToBroker: ">", evidence.ToClient: "<"}

// Read reads a capture written by Write, one chunk a line.
func Read(t testing.TB, file string) (c Capture) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		x, arrow := Chunk{To: evidence.ToBroker}, ""
		if _, err := fmt.Sscanf(line, "%d%1s %q", &x.Conn, &arrow, &x.Bytes); err != nil {
			t.Fatalf("%s: chunk %d: %v", file, len(c)+1, err)
		}
		if arrow == arrows[evidence.ToClient] {
			x.To = evidence.ToClient
		}
		c = append(c, x)
	}
	if len(c) == 0 {
		t.Fatalf("%s holds no capture", file)
	}
	return c
}

// Write writes the capture to a file.
func (c Capture) Write(t testing.TB, file string) {
	t.Helper()
	var text bytes.Buffer
	for _, x := range c {
		fmt.Fprintf(&text, "%d%s %q\n", x.Conn, arrows[x.To], x.Bytes)
	}
	if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

// InPieces splits each chunk into pieces of these sizes in turn.
func (c Capture) InPieces(sizes ...int) (pieces Capture) {
	for _, x := range c {
		for i, rest := 0, x.Bytes; len(rest) > 0; i++ {
			n := min(sizes[i%len(sizes)], len(rest))
			pieces = append(pieces, Chunk{x.Conn, x.To, rest[:n]})
			rest = rest[n:]
		}
	}
	return pieces
}

// apart merges the chunks of each direction of each connection: first all to
// the broker, then all to the client.
func (c Capture) apart() (whole Capture) {
	for _, x := range c {
		for len(whole) < 2*x.Conn {
			conn := len(whole)/2 + 1
			whole = append(whole, Chunk{Conn: conn, To: evidence.ToBroker}, Chunk{Conn: conn, To: evidence.ToClient})
		}
		way := &whole[2*(x.Conn-1)]
		if x.To == evidence.ToClient {
			way = &whole[2*(x.Conn-1)+1]
		}
		way.Bytes = append(way.Bytes, x.Bytes...)
	}
	return whole
}

// Frames cuts the capture as links would. A direction stops at its framer's
// first error, which is returned in refused. A framer that reads past the end
// fails the test.
func (c Capture) Frames(t testing.TB, p links.Protocol) (list []links.Frame, refused []error) {
	t.Helper()
	type way struct {
		conn int
		to   evidence.Direction
	}
	index, framers, unread := links.NewIndex(), make(map[way]links.Framer), make(map[way][]byte)
	for _, x := range c {
		w := way{x.Conn, x.To}
		if _, known := framers[w]; !known {
			framers[way{x.Conn, evidence.ToBroker}], framers[way{x.Conn, evidence.ToClient}] = p.NewConn(index)
		}
		buf := append(unread[w], x.Bytes...)
		for len(buf) > 0 && framers[w] != nil {
			f, n, err := framers[w].Next(buf[:len(buf):len(buf)])
			if err != nil {
				refused = append(refused, err)
				framers[w] = nil
			}
			if err != nil || n == 0 {
				break
			}
			if n < 0 || n > len(buf) || !bytes.Equal(f.Raw, buf[:n]) {
				t.Fatalf("of %d bytes the framer took %d, and gives a frame of %d", len(buf), n, len(f.Raw))
			}
			f.Raw = bytes.Clone(f.Raw)
			list = append(list, f)
			buf = buf[n:]
		}
		unread[w] = buf
	}
	return list, refused
}

// Understood returns the frames of a capture, and fails on a framer's error.
func (c Capture) Understood(t testing.TB, p links.Protocol) []links.Frame {
	t.Helper()
	list, refused := c.Frames(t, p)
	if refused != nil {
		t.Fatal(refused)
	}
	return list
}

// Summary prints a frame on one line: kind, BUSINESS/PUBLISH/MESSAGE per item,
// status.
func Summary(f links.Frame) string {
	words := []string{f.Kind}
	for _, i := range f.Items {
		words = append(words, strings.Join([]string{i.BusinessID, i.PublishID, i.MessageID}, "/"))
	}
	if f.Status != "" {
		words = append(words, "says "+f.Status)
	}
	return strings.Join(words, " ")
}

// Recorder is a protocol that records what its connections carry.
type Recorder struct {
	links.Protocol
	mu      sync.Mutex
	conns   int
	carried Capture
}

// NewConn returns recording framers.
func (r *Recorder) NewConn(ix *links.Index) (toBroker, toClient links.Framer) {
	b, c := r.Protocol.NewConn(ix)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conns++
	return &recorded{b, r, r.conns, evidence.ToBroker}, &recorded{c, r, r.conns, evidence.ToClient}
}

// Carried returns a chunk per frame so far.
func (r *Recorder) Carried() Capture {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.carried
}

type recorded struct {
	links.Framer
	recorder *Recorder
	conn     int
	to       evidence.Direction
}

// Next holds the lock: the capture's order is that in which the framers
// interpreted it.
func (r *recorded) Next(buf []byte) (links.Frame, int, error) {
	r.recorder.mu.Lock()
	defer r.recorder.mu.Unlock()
	f, n, err := r.Framer.Next(buf)
	if n > 0 {
		r.recorder.carried = append(r.recorder.carried, Chunk{r.conn, r.to, bytes.Clone(buf[:n])})
	}
	return f, n, err
}
