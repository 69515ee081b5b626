package resp_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/custodymq/custody/containers"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/resp"
)

var record = flag.Bool("record", false, "record the dialogue with a real server in testdata anew")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

// sink keeps events in memory.
type sink struct {
	mu     sync.Mutex
	events []evidence.Event
}

func (s *sink) Record(e evidence.Event) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
	return uint64(len(s.events))
}

// rig is a real server with a link before it.
type rig struct {
	t    *testing.T
	ctx  context.Context
	link *links.Link
	sink *sink
}

func newRig(t *testing.T, protocol links.Protocol) *rig {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	r := &rig{t: t, ctx: ctx, sink: &sink{}}
	var err error
	r.link, err = links.Open(ctx, links.Options{Name: "c1", Upstream: serve(ctx, t), Protocol: protocol, Index: links.NewIndex(), Sink: r.sink})
	must(t, err)
	t.Cleanup(func() { r.link.Close() })
	return r
}

// serve runs a real server that stores nothing, and gives its address.
func serve(ctx context.Context, t *testing.T) string {
	t.Helper()
	program, err := exec.LookPath("redis-server")
	if err != nil {
		if os.Getenv("CUSTODY_REQUIRE") != "" {
			t.Fatal("redis-server is required and not installed: apt-get install redis-server")
		}
		t.Skip("redis-server is not installed: apt-get install redis-server")
	}
	port, err := containers.FreePort()
	must(t, err)
	t.Cleanup(func() { port.Close() })
	server := exec.CommandContext(ctx, program, "--bind", "127.0.0.1", "--port", port.Number(), "--save", "", "--dir", t.TempDir())
	must(t, server.Start())
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", port.Address); err == nil {
			conn.Close()
			return port.Address
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("the server is not ready")
		}
	}
}

// connect gives a client with one connection, which is never made again.
func (r *rig) connect(version int) *redis.Client {
	r.t.Helper()
	c := redis.NewClient(&redis.Options{
		Addr: r.link.Addr(), Protocol: version, MaxRetries: -1, DialerRetries: 1, PoolSize: 1, PipelinePoolSize: -1, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	r.t.Cleanup(func() { c.Close() })
	return c
}

func payload(n, body string) []byte {
	return evidence.Envelope{PublishID: "p1-" + n + "-1", BusinessID: "order-" + n, Body: []byte(body)}.Encode()
}

func entry(n string) *redis.XAddArgs {
	return &redis.XAddArgs{Stream: "orders", ID: n + "-0", Values: []any{"key", "k", "payload", payload(n, "body\r\n")}}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// dialogue does one of everything with the real client.
func (r *rig) dialogue(version int) {
	t, c := r.t, r.connect(version)
	t.Helper()
	must(t, c.XGroupCreateMkStream(r.ctx, "orders", "billing", "0").Err())
	if err := c.XGroupCreateMkStream(r.ctx, "orders", "billing", "0").Err(); err == nil {
		t.Fatal("a group was created twice")
	}
	_, err := c.Pipelined(r.ctx, func(p redis.Pipeliner) error {
		for _, n := range []string{"1", "2", "3"} {
			p.XAdd(r.ctx, entry(n))
		}
		return nil
	})
	must(t, err)
	if err := c.XAdd(r.ctx, entry("2")).Err(); err == nil {
		t.Fatal("an entry below the newest was stored")
	}
	read := func(id string, count int64) []redis.XMessage {
		t.Helper()
		streams, err := c.XReadGroup(r.ctx, &redis.XReadGroupArgs{Group: "billing", Consumer: "c1", Streams: []string{"orders", id}, Count: count, Block: -1}).Result()
		if errors.Is(err, redis.Nil) {
			return nil
		}
		must(t, err)
		return streams[0].Messages
	}
	if got := read(">", 2); len(got) != 2 {
		t.Fatalf("%d entries, want 2", len(got))
	}
	must(t, c.XAck(r.ctx, "orders", "billing", "1-0", "9-0").Err()) // one of two was pending
	must(t, c.XDel(r.ctx, "orders", "2-0").Err())
	read("0", 10) // 2-0 is pending without its fields
	claim := &redis.XAutoClaimArgs{Stream: "orders", Group: "billing", Consumer: "c2", Start: "0", Count: 5}
	read(">", 2)
	read(">", 2) // nothing
	messages, _, err := c.XAutoClaim(r.ctx, claim).Result()
	if err != nil || len(messages) != 1 {
		t.Fatalf("claimed %v, %v", messages, err)
	}
	must(t, c.XAutoClaimJustID(r.ctx, claim).Err())
	must(t, c.XClaim(r.ctx, &redis.XClaimArgs{Stream: "orders", Group: "billing", Consumer: "c1", Messages: []string{"3-0"}}).Err())
	must(t, c.XAck(r.ctx, "orders", "billing", "3-0").Err())
	if err := c.XReadGroup(r.ctx, &redis.XReadGroupArgs{Group: "nobody", Consumer: "c1", Streams: []string{"orders", ">"}, Block: -1}).Err(); err == nil {
		t.Fatal("read for a group that is not there")
	}
	_, err = c.TxPipelined(r.ctx, func(p redis.Pipeliner) error {
		p.XAdd(r.ctx, entry("4"))
		return nil
	})
	must(t, err)
	must(t, c.Publish(r.ctx, "events", payload("5", "x")).Err()) // nobody listens
	sub := c.Subscribe(r.ctx, "events")
	_, err = sub.Receive(r.ctx)
	must(t, err)
	must(t, c.Publish(r.ctx, "events", payload("6", "x")).Err())
	_, err = sub.ReceiveMessage(r.ctx)
	must(t, err)
	must(t, sub.Unsubscribe(r.ctx, "events"))
	_, err = sub.Receive(r.ctx)
	must(t, err)
	must(t, sub.Close())
}

// Each stream of the dialogue, in the order of its connections.
func captures(version, conn int) [2]string {
	name := filepath.Join("testdata", fmt.Sprintf("resp%d.%d.", version, conn))
	return [2]string{name + "to-broker", name + "to-client"}
}

// TestRecord holds the dialogue with a real server and writes it down.
func TestRecord(t *testing.T) {
	if !*record {
		t.Skip("with -record")
	}
	for _, version := range []int{2, 3} {
		p := &tap{}
		r := newRig(t, p)
		r.dialogue(version)
		must(t, r.link.Close())
		for i, pair := range p.pairs {
			for way, name := range captures(version, i+1) {
				must(t, os.WriteFile(name, pair[way].bytes, 0o600))
			}
		}
	}
}

// tap is the protocol, and keeps what every connection carried.
type tap struct {
	resp.Protocol
	mu    sync.Mutex
	pairs [][2]*stream
}

// stream is written by one pump of its link, and read once that is closed.
type stream struct {
	links.Framer
	bytes []byte
}

func (s *stream) Next(buf []byte) (links.Frame, int, error) {
	f, n, err := s.Framer.Next(buf)
	s.bytes = append(s.bytes, buf[:n]...)
	return f, n, err
}

func (p *tap) NewConn(ix *links.Index) (toBroker, toClient links.Framer) {
	b, c := p.Protocol.NewConn(ix)
	p.mu.Lock()
	defer p.mu.Unlock()
	pair := [2]*stream{{Framer: b}, {Framer: c}}
	p.pairs = append(p.pairs, pair)
	return pair[0], pair[1]
}

// conversation is a recorded connection.
type conversation struct{ toBroker, toClient []byte }

// recorded gives both connections of a dialogue: commands, and a subscriber's.
func recorded(t testing.TB, version int) (list []conversation) {
	t.Helper()
	for conn := range 2 {
		var ways [2][]byte
		for i, name := range captures(version, conn+1) {
			var err error
			if ways[i], err = os.ReadFile(name); err != nil {
				t.Fatal(err)
			}
		}
		list = append(list, conversation{ways[0], ways[1]})
	}
	return list
}

// cut both streams, which come in pieces of these lengths.
func (c conversation) cut(pieces ...int) (list []links.Frame, err error) {
	b, s := resp.Protocol{}.NewConn(links.NewIndex())
	for _, way := range []struct {
		framer links.Framer
		stream []byte
	}{{b, c.toBroker}, {s, c.toClient}} {
		begin, have := 0, 0
	pieces:
		for _, piece := range append(slices.Clone(pieces), len(way.stream)) {
			have = min(have+piece, len(way.stream))
			for begin < have {
				f, n, bad := way.framer.Next(way.stream[begin:have:have])
				if bad != nil {
					err = errors.Join(err, bad)
					break pieces
				}
				if n == 0 {
					break
				}
				if n < 0 || begin+n > have || !bytes.Equal(f.Raw, way.stream[begin:begin+n]) {
					return nil, errors.New("a framer read over the end")
				}
				f.Raw = bytes.Clone(f.Raw)
				list = append(list, f)
				begin += n
			}
		}
	}
	return list, err
}

func sameFrames(a, b []links.Frame) bool {
	return slices.EqualFunc(a, b, func(x, y links.Frame) bool {
		return x.Kind == y.Kind && x.Says == y.Says && slices.Equal(x.Items, y.Items) && bytes.Equal(x.Raw, y.Raw)
	})
}

// told writes a frame as one line.
func told(f links.Frame) string {
	words := []string{f.Kind}
	for _, i := range f.Items {
		words = append(words, strings.Join([]string{i.BusinessID, i.PublishID, i.MessageID}, "/"))
	}
	if f.Says != "" {
		words = append(words, "says "+f.Says)
	}
	return strings.Join(words, " ")
}

func TestRealClientIsUnderstood(t *testing.T) {
	const one, two, three = "order-1/p1-1-1/orders:1-0", "order-2/p1-2-1/orders:2-0", "order-3/p1-3-1/orders:3-0"
	want := [][]string{{
		"subscribe", "subscribe",
		"publish order-1/p1-1-1/", "publish order-2/p1-2-1/", "publish order-3/p1-3-1/", "publish order-2/p1-2-1/",
		"read", "ack //orders:1-0 //orders:9-0", "read", "read", "read",
		"claim", "claim", "claim", "ack //orders:3-0", "read",
		"publish order-4/p1-4-1/", "publish order-5/p1-5-1/", "publish order-6/p1-6-1/",
		"subscribed says accepted", "subscribed says BUSYGROUP",
		"accept " + one + " says accepted", "accept " + two + " says accepted", "accept " + three + " says accepted", "accept order-2/p1-2-1/ says ERR",
		"deliver " + one + " " + two, "ack-confirm //orders:1-0 //orders:9-0 says 1", "deliver " + three,
		"deliver " + three, "deliver " + three, "ack-confirm //orders:3-0 says accepted",
		"accept order-4/p1-4-1/ says QUEUED", "accept order-5/p1-5-1/ says 0", "accept order-6/p1-6-1/ says accepted",
	}, {
		"subscribe", "unsubscribe", "subscribed", "deliver order-6/p1-6-1/", "unsubscribed",
	}}
	for _, version := range []int{2, 3} {
		for i, c := range recorded(t, version) {
			frames, err := c.cut()
			must(t, err)
			var got []string
			for _, f := range frames {
				if f.Kind != "" {
					got = append(got, told(f))
				}
			}
			if !slices.Equal(got, want[i]) {
				t.Errorf("RESP%d, connection %d:\n%s\nwant\n%s", version, i+1, strings.Join(got, "\n"), strings.Join(want[i], "\n"))
			}
		}
	}
}

func TestEveryKindIsSeen(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range recorded(t, 3) {
		frames, err := c.cut()
		must(t, err)
		for _, f := range frames {
			seen[f.Kind] = true
		}
	}
	for _, k := range (resp.Protocol{}).Kinds() {
		if !seen[k.Name] {
			t.Errorf("no %s in the captures", k.Name)
		}
	}
}

func TestAnAckNamesWhatWasDelivered(t *testing.T) {
	b, s := resp.Protocol{}.NewConn(links.NewIndex())
	next := func(f links.Framer, raw string) string {
		t.Helper()
		frame, n, err := f.Next([]byte(raw))
		if err != nil || n != len(raw) {
			t.Fatal(raw, n, err)
		}
		return told(frame)
	}
	next(b, "*7\r\n$10\r\nXREADGROUP\r\n$5\r\nGROUP\r\n$1\r\ng\r\n$1\r\nc\r\n$7\r\nSTREAMS\r\n$6\r\norders\r\n$1\r\n>\r\n")
	next(s, "*1\r\n*2\r\n$6\r\norders\r\n*1\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\np\r\n$25\r\ncustody/1 p1-1-1 order-1\n\r\n")
	if got, want := next(b, "*4\r\n$4\r\nxack\r\n$6\r\norders\r\n$1\r\ng\r\n$3\r\n1-0\r\n"), "ack order-1/p1-1-1/orders:1-0"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestSplittingChangesNothing(t *testing.T) {
	for _, version := range []int{2, 3} {
		for i, c := range recorded(t, version) {
			whole, err := c.cut()
			must(t, err)
			for size := 1; size < 64; size++ {
				split, err := c.cut(slices.Repeat([]int{size}, max(len(c.toBroker), len(c.toClient))/size)...)
				if err != nil || !sameFrames(split, whole) {
					t.Fatalf("RESP%d, connection %d, in pieces of %d: %d frames (%v), want %d", version, i+1, size, len(split), err, len(whole))
				}
			}
			rapid.Check(t, func(rt *rapid.T) {
				pieces := rapid.SliceOfN(rapid.IntRange(1, 90), 0, 120).Draw(rt, "pieces")
				split, err := c.cut(pieces...)
				if err != nil || !sameFrames(split, whole) {
					rt.Fatalf("%d frames (%v), want %d", len(split), err, len(whole))
				}
			})
		}
	}
}

func TestBadStreamsAreRefused(t *testing.T) {
	for _, raw := range []string{
		"GET / HTTP/1.1\r\n", "\x16\x03\x01\x00", "PING\r\n", "*1\r\n+PING\r\n", "*1\r\n$-1\r\n", "*x\r\n", "*-2\r\n",
		"*1\r\n$8388609\r\n", "*131073\r\n", "*1\r\n$1\r\nabc", "*3\r\n$6\r\nCLIENT\r\n$5\r\nreply\r\n$4\r\nSKIP\r\n",
		"*" + strings.Repeat("1", 1<<16), strings.Repeat("*1\r\n", 20),
	} {
		b, _ := resp.Protocol{}.NewConn(links.NewIndex())
		if _, _, err := b.Next([]byte(raw)); err == nil {
			t.Errorf("a request %.40q: no error", raw)
		}
	}
	_, s := resp.Protocol{}.NewConn(links.NewIndex())
	if _, _, err := s.Next([]byte("+OK\r\n")); err == nil {
		t.Error("a reply without a request: no error")
	}
}

func TestManyValuesInOneFrameAreRefused(t *testing.T) {
	deep := "*2\r\n*65536\r\n" + strings.Repeat("_\r\n", 65536) + "*65536\r\n" + strings.Repeat("_\r\n", 65536)
	_, s := resp.Protocol{}.NewConn(links.NewIndex())
	if _, _, err := s.Next([]byte(deep)); err == nil {
		t.Error("no error")
	}
}

func TestAnAttributeStandsBeforeItsReply(t *testing.T) {
	b, s := resp.Protocol{}.NewConn(links.NewIndex())
	if _, _, err := b.Next([]byte("*3\r\n$7\r\nPUBLISH\r\n$1\r\nc\r\n$1\r\nm\r\n")); err != nil {
		t.Fatal(err)
	}
	raw := "|1\r\n+ttl\r\n:3\r\n:2\r\n"
	f, n, err := s.Next([]byte(raw))
	if err != nil || n != len(raw) || f.Kind != links.FrameAccept || f.Says != links.Yes {
		t.Errorf("%+v %d %v", f, n, err)
	}
}

func TestWhatIsLegal(t *testing.T) {
	streams, channels := resp.Protocol{}, resp.Protocol{PubSub: true}
	for _, c := range []struct {
		protocol resp.Protocol
		kind     string
		action   links.Action
		legal    bool
	}{
		{streams, links.FrameAccept, links.Drop, false},
		{streams, links.FrameAccept, links.Withhold, true},
		{streams, links.FramePublish, links.Drop, false},
		{streams, links.FramePublish, links.Duplicate, false},
		{streams, links.FramePublish, links.Corrupt, true},
		{streams, links.FrameDeliver, links.Corrupt, false},
		{streams, links.FrameDeliver, links.Duplicate, false},
		{streams, links.FrameAck, links.Hold, true},
		{streams, links.FrameAckConfirm, links.CutAfter, true},
		{channels, links.FrameDeliver, links.Duplicate, true},
		{channels, links.FrameDeliver, links.Drop, true},
		{channels, links.FrameDeliver, links.Corrupt, true},
		{channels, links.FrameAccept, links.Drop, false},
	} {
		err := c.protocol.Legal(c.kind, c.action)
		var illegal *links.ErrIllegal
		if (err == nil) != c.legal || err != nil && !errors.As(err, &illegal) {
			t.Errorf("%s %s (pub/sub %v): %v", c.action, c.kind, c.protocol.PubSub, err)
		}
	}
}

func TestCorruptKeepsFramesWellFormed(t *testing.T) {
	var corrupted int
	for _, version := range []int{2, 3} {
		for _, c := range recorded(t, version) {
			frames, err := c.cut()
			must(t, err)
			for _, f := range frames {
				if (resp.Protocol{PubSub: true}).Legal(f.Kind, links.Corrupt) != nil {
					continue
				}
				got, err := resp.Protocol{}.Corrupt(f)
				if err != nil {
					continue // entries are nested, and never to be corrupted
				}
				corrupted++
				if len(got) != len(f.Raw) || bytes.Equal(got, f.Raw) || bytes.Count(got, []byte("\r\n")) < bytes.Count(f.Raw, []byte("\r\n"))-1 {
					t.Errorf("%q became %q", f.Raw, got)
				}
			}
		}
	}
	if corrupted < 16 { // seven publishes and a message, twice
		t.Errorf("%d frames could be corrupted", corrupted)
	}
	if _, err := (resp.Protocol{}).Corrupt(links.Frame{Raw: []byte("*1\r\n$4\r\nPING\r\n")}); err == nil {
		t.Error("corrupted a frame without a payload")
	}
}

func (r *rig) arm(s links.Strike) *links.Armed {
	r.t.Helper()
	s.Label = "f"
	a, err := r.link.Arm(s)
	must(r.t, err)
	return a
}

func (r *rig) fired(a *links.Armed) {
	r.t.Helper()
	select {
	case <-a.Fired():
	case <-r.ctx.Done():
		r.t.Fatal("never fired")
	}
}

func TestADroppedAcceptTakesAllBehindItAlong(t *testing.T) {
	r := newRig(t, resp.Protocol{})
	c := r.connect(3)
	a := r.arm(links.Strike{Action: links.Drop, Kind: links.FrameAccept, Of: "order-2"})
	var answers [3]*redis.StringCmd
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = c.Pipelined(r.ctx, func(p redis.Pipeliner) error {
			for i, n := range []string{"1", "2", "3"} {
				answers[i] = p.XAdd(r.ctx, entry(n))
			}
			return nil
		})
	}()
	r.fired(a)
	if a.Action() != links.Withhold {
		t.Errorf("a drop became %q", a.Action())
	}
	must(t, a.Heal(r.ctx)) // cuts the connection, which has lost bytes
	<-done
	// The client gives the error of the connection to every command.
	for i, want := range []string{"1-0", "", ""} {
		if answers[i].Val() != want || answers[i].Err() == nil {
			t.Errorf("order-%d was answered %q, %v; want %q", i+1, answers[i].Val(), answers[i].Err(), want)
		}
	}
	// All three are stored: only the answers were lost.
	if n, err := r.connect(3).XLen(r.ctx, "orders").Result(); err != nil || n != 3 {
		t.Errorf("%d entries, %v", n, err)
	}
}

func TestStrikesOnMessagesOfAChannel(t *testing.T) {
	for _, c := range []struct {
		action links.Action
		bodies []string
	}{
		{links.Duplicate, []string{"body", "body", "last"}},
		{links.Corrupt, []string{"bodx", "last"}},
		{links.Drop, []string{"last"}},
	} {
		t.Run(string(c.action), func(t *testing.T) {
			r := newRig(t, resp.Protocol{PubSub: true})
			publisher := r.connect(3)
			sub := publisher.Subscribe(r.ctx, "events")
			defer sub.Close()
			_, err := sub.Receive(r.ctx)
			must(t, err)
			a := r.arm(links.Strike{Action: c.action, Kind: links.FrameDeliver})
			must(t, publisher.Publish(r.ctx, "events", payload("1", "body")).Err())
			must(t, publisher.Publish(r.ctx, "events", payload("2", "last")).Err())
			for _, want := range c.bodies {
				m, err := sub.ReceiveMessage(r.ctx)
				must(t, err)
				if e, err := evidence.ParseEnvelope([]byte(m.Payload)); err != nil || string(e.Body) != want {
					t.Errorf("got %q (%v), want %q", e.Body, err, want)
				}
			}
			r.fired(a)
		})
	}
}

func FuzzFramer(f *testing.F) {
	for _, version := range []int{2, 3} {
		for _, c := range recorded(f, version) {
			f.Add(c.toBroker, c.toClient, uint(3))
		}
	}
	f.Add([]byte("*1\r\n$4\r\nPING\r\n"), []byte("|1\r\n+a\r\n%1\r\n#t\r\n_\r\n=6\r\ntxt:ab\r\n"), uint(1))
	f.Fuzz(func(t *testing.T, toBroker, toClient []byte, piece uint) {
		c := conversation{toBroker, toClient}
		whole, err1 := c.cut()
		size := int(piece%64) + 1
		split, err2 := c.cut(slices.Repeat([]int{size}, max(len(toBroker), len(toClient))/size)...)
		if !sameFrames(whole, split) || (err1 == nil) != (err2 == nil) {
			t.Fatalf("whole: %d frames, %v; in pieces: %d frames, %v", len(whole), err1, len(split), err2)
		}
		for _, fr := range whole {
			if corrupted, err := (resp.Protocol{}).Corrupt(fr); err == nil && len(corrupted) != len(fr.Raw) {
				t.Fatal("corrupt changed the length")
			}
		}
	})
}
