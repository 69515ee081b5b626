package resp_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"go.uber.org/goleak"

	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/linktest"
	"github.com/custodymq/custody/links/resp"
	adapter "github.com/custodymq/custody/systems/redis"
	"github.com/custodymq/custody/systems/systemtest"
)

var record = flag.Bool("record", false, "record the dialogue with a real server in testdata anew")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func protocol() links.Protocol { return resp.Protocol{} }

// rig is a link to a real server.
type rig struct{ *linktest.Rig }

func newRig(t *testing.T, p links.Protocol) rig {
	return rig{linktest.Open(t, systemtest.Serve(t, adapter.Profiles(1)[0]), p)}
}

// connect returns a client with one connection, without reconnects.
func (r rig) connect(version int) *redis.Client {
	r.T.Helper()
	c := redis.NewClient(&redis.Options{
		Addr: r.Link.Addr(), Protocol: version, MaxRetries: -1, DialerRetries: 1, PoolSize: 1, PipelinePoolSize: -1, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	r.T.Cleanup(func() { c.Close() })
	return c
}

func entry(n string) *redis.XAddArgs {
	return &redis.XAddArgs{Stream: "orders", ID: n + "-0", Values: []any{"key", "k", "payload", linktest.Payload(n, "body\r\n")}}
}

// dialogue does one of everything with the real client.
func (r rig) dialogue(version int) {
	t, c := r.T, r.connect(version)
	t.Helper()
	r.Must(c.XGroupCreateMkStream(r.Ctx, "orders", "billing", "0").Err())
	if err := c.XGroupCreateMkStream(r.Ctx, "orders", "billing", "0").Err(); err == nil {
		t.Fatal("a group was created twice")
	}
	_, err := c.Pipelined(r.Ctx, func(p redis.Pipeliner) error {
		for _, n := range []string{"1", "2", "3"} {
			p.XAdd(r.Ctx, entry(n))
		}
		return nil
	})
	r.Must(err)
	if err := c.XAdd(r.Ctx, entry("2")).Err(); err == nil {
		t.Fatal("an entry below the newest was stored")
	}
	read := func(id string, count int64) []redis.XMessage {
		t.Helper()
		streams, err := c.XReadGroup(r.Ctx, &redis.XReadGroupArgs{Group: "billing", Consumer: "c1", Streams: []string{"orders", id}, Count: count, Block: -1}).Result()
		if errors.Is(err, redis.Nil) {
			return nil
		}
		r.Must(err)
		return streams[0].Messages
	}
	if got := read(">", 2); len(got) != 2 {
		t.Fatalf("%d entries, want 2", len(got))
	}
	r.Must(c.XAck(r.Ctx, "orders", "billing", "1-0", "9-0").Err()) // one of two was pending
	r.Must(c.XDel(r.Ctx, "orders", "2-0").Err())
	read("0", 10) // 2-0 is pending without its fields
	claim := &redis.XAutoClaimArgs{Stream: "orders", Group: "billing", Consumer: "c2", Start: "0", Count: 5}
	read(">", 2)
	read(">", 2) // nothing
	messages, _, err := c.XAutoClaim(r.Ctx, claim).Result()
	if err != nil || len(messages) != 1 {
		t.Fatalf("claimed %v, %v", messages, err)
	}
	r.Must(c.XAutoClaimJustID(r.Ctx, claim).Err())
	r.Must(c.XClaim(r.Ctx, &redis.XClaimArgs{Stream: "orders", Group: "billing", Consumer: "c1", Messages: []string{"3-0"}}).Err())
	r.Must(c.XAck(r.Ctx, "orders", "billing", "3-0").Err())
	if err := c.XReadGroup(r.Ctx, &redis.XReadGroupArgs{Group: "nobody", Consumer: "c1", Streams: []string{"orders", ">"}, Block: -1}).Err(); err == nil {
		t.Fatal("read for a group that is not there")
	}
	_, err = c.TxPipelined(r.Ctx, func(p redis.Pipeliner) error {
		p.XAdd(r.Ctx, entry("4"))
		return nil
	})
	r.Must(err)
	r.Must(c.Publish(r.Ctx, "events", linktest.Payload("5", "x")).Err()) // no subscriber
	sub := c.Subscribe(r.Ctx, "events")
	_, err = sub.Receive(r.Ctx)
	r.Must(err)
	r.Must(c.Publish(r.Ctx, "events", linktest.Payload("6", "x")).Err())
	_, err = sub.ReceiveMessage(r.Ctx)
	r.Must(err)
	r.Must(sub.Unsubscribe(r.Ctx, "events"))
	_, err = sub.Receive(r.Ctx)
	r.Must(err)
	r.Must(sub.Close())
}

// captured is the dialogue in one protocol version: a connection with commands,
// and a subscriber's.
func captured(t testing.TB, version int) linktest.Capture {
	t.Helper()
	return linktest.Read(t, file(version))
}

func file(version int) string { return fmt.Sprintf("testdata/resp%d.capture", version) }

// TestRecord records the dialogue with a real server.
func TestRecord(t *testing.T) {
	if !*record {
		t.Skip("with -record")
	}
	for _, version := range []int{2, 3} {
		recorder := &linktest.Recorder{Protocol: protocol()}
		r := newRig(t, recorder)
		r.dialogue(version)
		r.Must(r.Link.Close())
		recorder.Carried().Write(t, file(version))
	}
}

func TestRealClientIsUnderstood(t *testing.T) {
	const one, two, three = "order-1/p1-1-1/orders:1-0", "order-2/p1-2-1/orders:2-0", "order-3/p1-3-1/orders:3-0"
	for conn, want := range map[int][]string{1: {
		"subscribe", "subscribed says accepted", "subscribe", "subscribed says BUSYGROUP",
		"publish order-1/p1-1-1/", "publish order-2/p1-2-1/", "publish order-3/p1-3-1/",
		"accept " + one + " says accepted", "accept " + two + " says accepted", "accept " + three + " says accepted",
		"publish order-2/p1-2-1/", "accept order-2/p1-2-1/ says ERR",
		"read", "deliver " + one + " " + two,
		"ack " + one + " //orders:9-0", "ack-confirm " + one + " //orders:9-0 says 1",
		"read", "read", "deliver " + three, "read",
		"claim", "deliver " + three, "claim", "claim", "deliver " + three,
		"ack " + three, "ack-confirm " + three + " says accepted",
		"read",
		"publish order-4/p1-4-1/", "accept order-4/p1-4-1/ says QUEUED",
		"publish order-5/p1-5-1/", "accept order-5/p1-5-1/ says 0",
		"publish order-6/p1-6-1/", "accept order-6/p1-6-1/ says accepted",
	}, 2: {
		"subscribe", "subscribed", "deliver order-6/p1-6-1/", "unsubscribe", "unsubscribed",
	}} {
		for _, version := range []int{2, 3} {
			c := slices.DeleteFunc(captured(t, version), func(x linktest.Chunk) bool { return x.Conn != conn })
			var got []string
			for _, f := range c.Understood(t, protocol()) {
				if f.Kind != "" {
					got = append(got, linktest.Summary(f))
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("RESP%d, connection %d:\n%s\nwant\n%s", version, conn, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
	}
}

func TestEveryKindIsSeen(t *testing.T) {
	linktest.EveryKind(t, protocol, captured(t, 3))
}

func TestAnAckNamesWhatWasDelivered(t *testing.T) {
	b, s := resp.Protocol{}.NewConn(links.NewIndex())
	next := func(f links.Framer, raw string) string {
		t.Helper()
		frame, n, err := f.Next([]byte(raw))
		if err != nil || n != len(raw) {
			t.Fatal(raw, n, err)
		}
		return linktest.Summary(frame)
	}
	next(b, "*7\r\n$10\r\nXREADGROUP\r\n$5\r\nGROUP\r\n$1\r\ng\r\n$1\r\nc\r\n$7\r\nSTREAMS\r\n$6\r\norders\r\n$1\r\n>\r\n")
	next(s, "*1\r\n*2\r\n$6\r\norders\r\n*1\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\np\r\n$25\r\ncustody/1 p1-1-1 order-1\n\r\n")
	if got, want := next(b, "*4\r\n$4\r\nxack\r\n$6\r\norders\r\n$1\r\ng\r\n$3\r\n1-0\r\n"), "ack order-1/p1-1-1/orders:1-0"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestSplittingChangesNothing(t *testing.T) {
	for _, version := range []int{2, 3} {
		linktest.Splitting(t, protocol, captured(t, version))
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
	if err != nil || n != len(raw) || f.Kind != links.FrameAccept || f.Status != links.Yes {
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
		linktest.Legal(t, c.protocol, c.kind, c.action, c.legal)
	}
}

func TestCorruptKeepsFramesWellFormed(t *testing.T) {
	var corrupted int
	for _, version := range []int{2, 3} {
		for _, f := range captured(t, version).Understood(t, protocol()) {
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
	if corrupted < 16 { // seven publishes and a message, twice
		t.Errorf("%d frames could be corrupted", corrupted)
	}
	if _, err := (resp.Protocol{}).Corrupt(links.Frame{Raw: []byte("*1\r\n$4\r\nPING\r\n")}); err == nil {
		t.Error("corrupted a frame without a payload")
	}
}

func TestADroppedAcceptTakesAllBehindItAlong(t *testing.T) {
	r := newRig(t, protocol())
	c := r.connect(3)
	a := r.Arm(links.Strike{Action: links.Drop, Kind: links.FrameAccept, Of: "order-2"})
	var answers [3]*redis.StringCmd
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = c.Pipelined(r.Ctx, func(p redis.Pipeliner) error {
			for i, n := range []string{"1", "2", "3"} {
				answers[i] = p.XAdd(r.Ctx, entry(n))
			}
			return nil
		})
	}()
	r.Fired(a)
	if a.Action != links.Withhold {
		t.Errorf("a drop became %q", a.Action)
	}
	r.Must(a.Heal(r.Ctx)) // cuts the connection, which lost bytes
	<-done
	// The client returns the connection's error for every command.
	for i, want := range []string{"1-0", "", ""} {
		if answers[i].Val() != want || answers[i].Err() == nil {
			t.Errorf("order-%d was answered %q, %v; want %q", i+1, answers[i].Val(), answers[i].Err(), want)
		}
	}
	// All three are stored: only the replies were lost.
	if n, err := r.connect(3).XLen(r.Ctx, "orders").Result(); err != nil || n != 3 {
		t.Errorf("%d entries, %v", n, err)
	}
}

func TestStrikesOnMessagesOfAChannel(t *testing.T) {
	linktest.StrikeDeliveries(t, func(t *testing.T) linktest.Dialogue {
		r := newRig(t, resp.Protocol{PubSub: true})
		publisher := r.connect(3)
		sub := publisher.Subscribe(r.Ctx, "events")
		t.Cleanup(func() { sub.Close() })
		_, err := sub.Receive(r.Ctx)
		r.Must(err)
		return linktest.Dialogue{
			Rig:     r.Rig,
			Publish: func(n, body string) { r.Must(publisher.Publish(r.Ctx, "events", linktest.Payload(n, body)).Err()) },
			Receive: func() []byte {
				m, err := sub.ReceiveMessage(r.Ctx)
				r.Must(err)
				return []byte(m.Payload)
			},
		}
	})
}

func FuzzFramer(f *testing.F) {
	linktest.Fuzz(f, protocol, captured(f, 2), captured(f, 3),
		linktest.Streams([]byte("*1\r\n$4\r\nPING\r\n"), []byte("|1\r\n+a\r\n%1\r\n#t\r\n_\r\n=6\r\ntxt:ab\r\n")))
}
