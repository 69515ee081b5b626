package links_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
)

// Toxiproxy restarts the toxic before a removed one even if the connection has
// ended meanwhile; that library goroutine then blocks forever.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2/toxics.(*NoopToxic).Pipe"))
}

// patience ends a test that hangs; nothing waits that long otherwise.
const patience = 20 * time.Second

// silence is how long a test waits for bytes that must not arrive. On a slow
// machine the test can only miss them, never fail.
const silence = 30 * time.Millisecond

// lines is a test protocol: "KIND ID,ID…\n". A line without a blank has no
// kind; "reply" is matched by position; '!' is invalid.
type lines struct{}

func (lines) Name() string { return "lines" }
func (lines) Kinds() []links.KindInfo {
	return []links.KindInfo{
		{Name: "publish", To: evidence.ToBroker}, {Name: "ack", To: evidence.ToBroker},
		{Name: "deliver", To: evidence.ToClient}, {Name: "reply", To: evidence.ToClient},
	}
}
func (l lines) Legal(kind string, a links.Action) error {
	if kind == "reply" && (a == links.Drop || a == links.Duplicate) {
		return &links.ErrIllegal{Protocol: l.Name(), Kind: kind, Action: a, Why: "matched by position"}
	}
	return nil
}
func (lines) Corrupt(f links.Frame) ([]byte, error) { return bytes.ToUpper(f.Raw), nil }
func (lines) NewConn(*links.Index) (toBroker, toClient links.Framer) {
	return lineFramer{}, lineFramer{}
}

type lineFramer struct{}

func (lineFramer) Next(buf []byte) (links.Frame, int, error) {
	if buf[0] == '!' {
		return links.Frame{}, 0, errors.New("no line begins with !")
	}
	end := bytes.IndexByte(buf, '\n')
	if end < 0 {
		return links.Frame{}, 0, nil
	}
	f := links.Frame{Raw: buf[:end+1]}
	if kind, ids, named := strings.Cut(string(buf[:end]), " "); named {
		f.Kind = kind
		for id := range strings.SplitSeq(ids, ",") {
			f.Items = append(f.Items, evidence.FrameItem{BusinessID: id})
		}
	}
	return f, end + 1, nil
}

// sink keeps events in memory.
type sink struct {
	mu     sync.Mutex
	events []evidence.Event
	grown  chan struct{}
}

func newSink() *sink { return &sink{grown: make(chan struct{})} }

func (s *sink) Record(e evidence.Event) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.Seq = uint64(len(s.events) + 1)
	s.events = append(s.events, e)
	close(s.grown)
	s.grown = make(chan struct{})
	return e.Seq
}

// of returns the events of a kind, as text.
func (s *sink) of(kind evidence.Kind) (list []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		if e.Kind == kind {
			list = append(list, text(e))
		}
	}
	return list
}

func text(e evidence.Event) string {
	var b strings.Builder
	b.WriteString(e.Frame)
	for i, item := range e.Items {
		b.WriteString(map[bool]string{true: " ", false: ","}[i == 0] + item.BusinessID)
	}
	if e.Fault != "" {
		b.WriteString(" fault=" + e.Fault)
	}
	if e.Struck != "" {
		b.WriteString(" struck=" + e.Struck)
	}
	return b.String()
}

// await waits for the n-th event of a kind.
func (s *sink) await(t *testing.T, kind evidence.Kind, n int) evidence.Event {
	t.Helper()
	deadline := time.After(patience)
	for {
		s.mu.Lock()
		left := n
		for _, e := range s.events {
			if e.Kind == kind {
				if left--; left == 0 {
					s.mu.Unlock()
					return e
				}
			}
		}
		grown := s.grown
		s.mu.Unlock()
		select {
		case <-grown:
		case <-deadline:
			t.Fatalf("event %s number %d never came", kind, n)
		}
	}
}

// rig is a link whose upstream is played by the test.
type rig struct {
	t    *testing.T
	link *links.Link
	sink *sink
	up   net.Listener
}

func newRig(t *testing.T, options ...func(*links.Options)) *rig {
	t.Helper()
	up, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, sink: newSink(), up: up}
	o := links.Options{Name: "c1", Upstream: up.Addr().String(), Protocol: lines{}, Index: links.NewIndex(), Sink: r.sink}
	for _, set := range options {
		set(&o)
	}
	if r.link, err = links.Open(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.link.Close(); err != nil {
			t.Errorf("close the link: %v", err)
		}
		up.Close()
	})
	return r
}

// connect returns both ends of a relayed connection.
func (r *rig) connect() (client, broker *peer) {
	r.t.Helper()
	client = r.dial()
	return client, r.accept()
}

func (r *rig) dial() *peer {
	r.t.Helper()
	c, err := net.Dial("tcp", r.link.Addr())
	if err != nil {
		r.t.Fatal(err)
	}
	return newPeer(r.t, c)
}

func (r *rig) accept() *peer {
	r.t.Helper()
	r.up.(*net.TCPListener).SetDeadline(time.Now().Add(patience))
	c, err := r.up.Accept()
	if err != nil {
		r.t.Fatal(err)
	}
	return newPeer(r.t, c)
}

func (r *rig) arm(s links.Strike) *links.Armed {
	r.t.Helper()
	s.Label = "f"
	a, err := r.link.Arm(s)
	if err != nil {
		r.t.Fatal(err)
	}
	return a.(*links.Armed)
}

// peer is one end of a connection, with a deadline on every operation.
type peer struct {
	t *testing.T
	net.Conn
}

func newPeer(t *testing.T, c net.Conn) *peer {
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	return &peer{t, c}
}

func (p *peer) send(s string) {
	p.t.Helper()
	if _, err := io.WriteString(p.Conn, s); err != nil {
		p.t.Fatal(err)
	}
}

// gets reads exactly want.
func (p *peer) gets(want string) {
	p.t.Helper()
	got := make([]byte, len(want))
	n, err := io.ReadFull(p.Conn, got)
	if err != nil || string(got) != want {
		p.t.Fatalf("got %q (%v), want %q", got[:n], err, want)
	}
}

// getsNothing checks briefly that nothing arrives.
func (p *peer) getsNothing() {
	p.t.Helper()
	p.SetReadDeadline(time.Now().Add(silence))
	defer p.SetReadDeadline(time.Now().Add(patience))
	var b [64]byte
	n, err := p.Read(b[:])
	var timeout net.Error
	if n > 0 || !errors.As(err, &timeout) || !timeout.Timeout() {
		p.t.Fatalf("got %q (%v), want silence", b[:n], err)
	}
}

// ends reads until the stream ends, and returns how: nil for an orderly end.
func (p *peer) ends(want string) error {
	p.t.Helper()
	got, err := io.ReadAll(p.Conn)
	if string(got) != want {
		p.t.Fatalf("got %q (%v), want %q and the end", got, err, want)
	}
	if errors.Is(err, net.ErrClosed) {
		p.t.Fatal(err)
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		p.t.Fatal("the stream never ended")
	}
	return err
}

func fired(t *testing.T, a links.Injection) {
	t.Helper()
	select {
	case <-a.Fired():
	case <-time.After(patience):
		t.Fatalf("%+v never fired", a)
	}
}

func notFired(t *testing.T, a links.Injection) {
	t.Helper()
	select {
	case <-a.Fired():
		t.Fatalf("%+v fired", a)
	default:
	}
}

func heal(t *testing.T, a links.Injection) {
	t.Helper()
	if err := a.Heal(t.Context()); err != nil {
		t.Fatal(err)
	}
}
