package broker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/custodymq/custody/broker"
	"github.com/custodymq/custody/broker/attack"
	"github.com/custodymq/custody/broker/client"
	"github.com/custodymq/custody/broker/core"
	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/memory"
	"github.com/custodymq/custody/broker/store/sqlite"
	"github.com/custodymq/custody/broker/wire"
)

// broken is a store whose Apply and Content run hooks first, so that a test can
// make them fail.
type broken struct {
	store.Store
	apply   func([]store.Operation) error
	content func()
}

func (b *broken) Apply(ctx context.Context, batch []store.Operation) error {
	if b.apply != nil {
		if err := b.apply(batch); err != nil {
			return err
		}
	}
	return b.Store.Apply(ctx, batch)
}

func (b *broken) Content(ctx context.Context, ids []string, fn func(store.Row) error) error {
	if b.content != nil {
		b.content()
	}
	return b.Store.Content(ctx, ids, fn)
}

// machine is a state machine that panics on the topic "panic".
type machine struct{ core.Machine }

func (m machine) Step(in *core.Input, now core.Instant, out []core.Effect) []core.Effect {
	if in.Message.Topic == "panic" {
		panic("told to")
	}
	return m.Machine.Step(in, now, out)
}

// TestTheServerEndsWithANamedErrorWhenItCannotGoOn checks that a server which
// cannot continue answers what it can and ends with an error that names the
// cause, and never hangs.
func TestTheServerEndsWithANamedErrorWhenItCannotGoOn(t *testing.T) {
	for name, c := range map[string]struct {
		apply  func([]store.Operation) error
		topic  string
		answer wire.Answer
		want   string
		is     error
	}{
		"a panic of the store":         {apply: func([]store.Operation) error { panic("out of memory") }, answer: wire.Unknown, want: "the store panicked: out of memory"},
		"a panic of the state machine": {topic: "panic", want: "the state machine panicked: told to"},
		"fenced": {
			apply:  func([]store.Operation) error { return &store.Failure{NotWritten: true, Err: store.ErrFenced} },
			answer: wire.Rejected, want: "another broker", is: store.ErrFenced,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := broker.Open(within(t), broker.Config{
				Store: &broken{Store: newStore(), apply: c.apply},
				Seams: broker.Seams{Machine: func(m core.Machine) core.Machine { return machine{m} }},
			})
			if err != nil {
				t.Fatal(err)
			}
			p := dial(t, s, "p")
			subscribe(t, p, "#", wire.AtLeastOnce, 1)
			m := order("order-1")
			if c.topic != "" {
				m.Topic = c.topic
			}
			call, err := p.Publish(within(t), m)
			if err != nil {
				t.Fatal(err)
			}
			reply, err := call.Wait(within(t))
			if c.answer != 0 && (err != nil || reply.Answer != c.answer) || c.answer == 0 && err == nil {
				t.Errorf("the publish was answered %+v, %v; want %d", reply, err, c.answer)
			}
			select {
			case <-s.Done():
			case <-within(t).Done():
				t.Fatal("the server hangs")
			}
			if err := s.Wait(); err == nil || !strings.Contains(err.Error(), c.want) || c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("it ended with %v, want %q", err, c.want)
			}
		})
	}
}

func TestAStoreWhoseFilesWereMovedAcceptsNothing(t *testing.T) {
	moved := false
	s := start(t, broker.Config{Store: &broken{Store: newStore(), apply: func([]store.Operation) error {
		if moved {
			return &store.Failure{NotWritten: true, Err: fmt.Errorf("%w: x.db", store.ErrMoved)}
		}
		return nil
	}}})
	p := dial(t, s, "p")
	subscribe(t, p, "orders", wire.AtLeastOnce, 0)
	if reply := publish(t, p, order("order-1")); reply.Answer != wire.Accepted {
		t.Fatalf("before: %+v", reply)
	}
	moved = true // moved after the answer, before the next publish
	for range 3 {
		if reply := publish(t, p, order("order-2")); reply.Answer != wire.Rejected || !strings.Contains(reply.Reason, "moved or deleted") {
			t.Fatalf("after: %+v", reply)
		}
	}
}

func TestAPanicWhileReadingFailsThatReadingOnly(t *testing.T) {
	held := newStore()
	s := start(t, broker.Config{Store: held})
	p := dial(t, s, "p")
	subscribe(t, p, "orders", wire.AtLeastOnce, 0)
	publish(t, p, order("order-1"))
	stop(t, s)
	panics := 2
	s = start(t, broker.Config{StoreRetry: time.Millisecond, Store: &broken{Store: held, content: func() {
		if panics--; panics >= 0 {
			panic("out of memory")
		}
	}}})
	sub := subscribe(t, dial(t, s, "c"), "orders", wire.AtLeastOnce, 1)
	if d := receive(t, sub); string(d.Payload) != "payload of order-1" || d.Attempt != 1 {
		t.Errorf("delivered %+v", d.Message)
	}
}

// TestTakenIDsCostOnlyThemselves checks that an insert whose ID the store knows
// and the broker does not fails alone.
func TestTakenIDsCostOnlyThemselves(t *testing.T) {
	held := memory.New(partition, memory.Options{})
	e, err := broker.NewEngine(broker.Config{Store: held}, "m-")
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"2", "3", "6"} { // behind the broker's back
		err := held.Apply(context.Background(), []store.Operation{{Kind: store.Insert, Row: store.Row{MessageID: id, Topic: "orders", Version: wire.Version}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	in := core.Input{Kind: core.Opened, Session: 1, Message: wire.Message{Kind: wire.Hello, Client: "c"}}
	e.Step(&in, instant(0))
	in = received(1, wire.Message{Kind: wire.Subscribe, Request: 1, Topic: "orders", Mode: wire.AtLeastOnce})
	e.Step(&in, instant(0))
	for i := range 6 {
		in := received(1, wire.Message{Kind: wire.Publish, Request: uint64(i + 2), Topic: "orders", Mode: wire.AtLeastOnce, MessageID: fmt.Sprint(i + 1)})
		e.Step(&in, instant(0))
	}
	var out replies
	e.Execute(&out)
	turn := e.Begin()
	e.Work(context.Background(), turn)
	if err := e.End(turn, instant(0)); err != nil {
		t.Fatal(err)
	}
	e.Execute(&out)
	var got []string
	for _, m := range out.sent {
		if m.Kind == wire.PublishReply {
			got = append(got, fmt.Sprint(m.MessageID, " ", m.Answer == wire.Accepted, " ", m.Again))
		}
	}
	want := []string{"1 true false", "2 true true", "3 true true", "4 true false", "5 true false", "6 true true"}
	if !slices.Equal(got, want) {
		t.Errorf("answered %v, want %v", got, want)
	}
}

// replies records what an engine sends.
type replies struct {
	sent []wire.Message
	at   time.Duration
}

func (r *replies) Send(_ core.Session, m *wire.Message) { r.sent = append(r.sent, *m) }
func (r *replies) CloseSession(core.Session, string)    {}
func (r *replies) Arm(at time.Duration)                 { r.at = at }

// TestEveryValidPublishIsAnswered checks that for valid messages in any order,
// within the protocol's limits, every publish is answered exactly once, as soon
// as the store has had its turns.
func TestEveryValidPublishIsAnswered(t *testing.T) {
	text := rapid.SampledFrom([]string{"", "a", "b", "a/b", strings.Repeat("x", 100), strings.Repeat("é", 50), "$a"})
	rapid.Check(t, func(t *rapid.T) {
		cfg := broker.Config{Store: memory.New(partition, memory.Options{}), Memory: 64 << 20, Limits: core.Limits{
			PublishWindow: 20, Messages: 50, Topics: 5, SettledIDs: 10, Listeners: 4, FanOut: 6, Errors: 1 << 20, Memory: 30 << 10,
		}}
		e, err := broker.NewEngine(cfg, "m-")
		if err != nil {
			t.Fatal(err)
		}
		var out replies
		now, request := time.Duration(0), uint64(0)
		asked := map[uint64]int{}
		step := func(in core.Input) { e.Step(&in, instant(now)) }
		work := func() {
			for range 1000 {
				e.Execute(&out)
				t, r := e.Begin(), e.Read()
				if t == nil && r == nil && out.at > now {
					return
				}
				if t != nil {
					e.Work(context.Background(), t)
					_ = e.End(t, instant(now))
				}
				if r != nil {
					e.Perform(context.Background(), r)
					e.Finish(r, instant(now))
				}
				if out.at <= now {
					step(core.Input{Kind: core.Tick})
				}
			}
			t.Fatal("it never comes to rest")
		}
		for s := core.Session(1); s <= 3; s++ {
			step(core.Input{Kind: core.Opened, Session: s, Message: wire.Message{Kind: wire.Hello, Client: "c"}})
		}
		for range rapid.IntRange(1, 100).Draw(t, "messages") {
			request++
			m := wire.Message{Request: request}
			mode := rapid.SampledFrom([]wire.Mode{wire.AtMostOnce, wire.AtLeastOnce}).Draw(t, "mode")
			switch rapid.IntRange(0, 9).Draw(t, "kind") {
			case 0, 1, 2, 3, 4:
				m.Kind, m.Topic, m.Mode, m.BusinessID, m.MessageID = wire.Publish, text.Draw(t, "topic"), mode, text.Draw(t, "business"), text.Draw(t, "id")
				m.TTL = rapid.SampledFrom([]time.Duration{0, 1, time.Second, 1 << 62}).Draw(t, "ttl")
				m.Payload = make([]byte, rapid.SampledFrom([]int{0, 1000, 20_000}).Draw(t, "size"))
				asked[request] = 0
			case 5:
				m.Kind, m.Topic, m.Mode, m.Group = wire.Subscribe, rapid.SampledFrom([]string{"#", "+", "a", "a/#", "b"}).Draw(t, "filter"), mode, text.Draw(t, "group")
				m.Credit = rapid.SampledFrom([]int{0, 1, 1000}).Draw(t, "credit")
			case 6:
				m.Kind, m.Topic, m.Mode, m.Group = wire.Unsubscribe, rapid.SampledFrom([]string{"#", "+", "a", "a/#", "b"}).Draw(t, "filter"), mode, text.Draw(t, "group")
			case 7:
				for _, d := range out.sent {
					if d.Kind == wire.Deliver {
						m.Kind, m.MessageID = rapid.SampledFrom([]wire.Kind{wire.Ack, wire.Nack}).Draw(t, "end"), d.MessageID
					}
				}
			case 8:
				m.Kind, m.BusinessID, m.TTL = wire.Lookup, text.Draw(t, "business"), 1<<62
			case 9:
				m.Kind, m.MessageID = wire.Admin, text.Draw(t, "id")
				m.Topic = rapid.SampledFrom([]string{"stats", "rows", "dlq.list", "dlq.show", "dlq.redrive", "dlq.discard", "no"}).Draw(t, "command")
			}
			step(core.Input{Kind: core.Received, Session: core.Session(rapid.IntRange(1, 3).Draw(t, "session")), Message: m})
			if rapid.IntRange(0, 3).Draw(t, "work") == 0 {
				now += time.Duration(rapid.IntRange(0, 40).Draw(t, "seconds")) * time.Second
				work()
			}
		}
		work()
		for _, m := range out.sent {
			if _, publish := asked[m.Request]; publish && m.Kind == wire.PublishReply {
				asked[m.Request]++
			}
		}
		for request, n := range asked {
			if n != 1 {
				t.Fatalf("publish %d was answered %d times", request, n)
			}
		}
	})
}

// TestMoreThanTheMemoryHoldsIsDeliveredWhole checks that messages beyond the
// memory limit wait in the store, across a restart too, and are delivered intact.
func TestMoreThanTheMemoryHoldsIsDeliveredWhole(t *testing.T) {
	const n, size = 80, 1 << 20
	path := filepath.Join(t.TempDir(), "broker.db")
	open := func() store.Store {
		s, err := sqlite.Open(within(t), sqlite.Options{Path: path, Partition: partition})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}

	payload := func(i int) []byte {
		b := make([]byte, size)
		for at := range b {
			b[at] = byte(i * at >> 3)
		}
		return b
	}
	held := open()
	s := start(t, broker.Config{Store: held, Memory: 64 << 20})
	p := dial(t, s, "p")
	subscribe(t, p, "orders", wire.AtLeastOnce, 0)
	for i := range n {
		m := order(fmt.Sprint(i))
		m.Payload = payload(i)
		if reply := publish(t, p, m); reply.Answer != wire.Accepted {
			t.Fatalf("publish %d: %+v", i, reply)
		}
	}
	take := func(from, to int) {
		c := dial(t, s, "c")
		sub := subscribe(t, c, "orders", wire.AtLeastOnce, 4)
		for i := from; i < to; i++ {
			d := receive(t, sub)
			if d.BusinessID != fmt.Sprint(i) || !slices.Equal(d.Payload, payload(i)) {
				t.Fatalf("%s was delivered with %d bytes, or not as it was published, when %d was due", d.BusinessID, len(d.Payload), i)
			}
			ack(t, d, wire.Accepted)
		}
		c.Close()
	}
	take(0, n/2)
	stop(t, s)
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	held = open()
	defer held.Close()
	s = start(t, broker.Config{Store: held, Memory: 64 << 20})
	take(n/2, n)
	stop(t, s)
}

func TestInspectionIsPaged(t *testing.T) {
	const n = 2300
	s := start(t, broker.Config{Store: newStore()})
	c := dial(t, s, "c")
	sub := subscribe(t, c, "orders", wire.AtLeastOnce, 8)
	big := order("big")
	big.Payload = make([]byte, wire.MaxPayload)
	for i := range n {
		m := order(fmt.Sprint(i))
		if i == 0 {
			m = big
		}
		publish(t, c, m)
		d := receive(t, sub)
		if _, err := d.Nack(within(t), client.Rejection{Reason: strings.Repeat("bad ", 200), DeadLetter: true}); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(command, object string) (broker.RowsView, wire.Message) {
		reply, err := c.Admin(within(t), command, object)
		var view broker.RowsView
		if err == nil && reply.Answer == wire.Accepted {
			err = json.Unmarshal(reply.Payload, &view)
		}
		if err != nil || len(reply.Payload) > 1<<21 {
			t.Fatalf("%s %s: %d bytes, %v", command, object, len(reply.Payload), err)
		}
		return view, reply
	}
	for _, command := range []string{"rows", "dlq.list"} {
		seen, pages := map[string]bool{}, 0
		for object := ""; ; pages++ {
			page, _ := ask(command, object)
			for _, row := range page.Rows {
				seen[row.BusinessID] = true
			}
			if page.Truncated != (page.Next != "") {
				t.Errorf("%s: truncated %v, next %q", command, page.Truncated, page.Next)
			}
			if object = page.Next; object == "" {
				break
			}
		}
		if len(seen) != n || pages < 2 {
			t.Errorf("%s: %d of %d seen on %d pages", command, len(seen), n, pages+1)
		}
	}
	if _, reply := ask("rows", "nowhere"); reply.Answer != wire.Refused || !strings.Contains(reply.Reason, "next of the page before") {
		t.Errorf("a page after nowhere: %+v", reply)
	}
	first, _ := ask("dlq.list", "")
	if view, _ := ask("dlq.show", first.Rows[0].MessageID); !view.Truncated || len(view.Rows[0].Payload) != 1<<20 || view.Rows[0].Size < wire.MaxPayload {
		t.Errorf("a letter of 4 MiB: truncated %v, %d bytes shown of %d", view.Truncated, len(view.Rows[0].Payload), view.Rows[0].Size)
	}
}

// TestPeersThatDoNotReadAreBoundedTogether checks that peers which do not read
// lose their sessions before they exceed the memory for outgoing data together,
// and that a peer which reads does not.
func TestPeersThatDoNotReadAreBoundedTogether(t *testing.T) {
	s := start(t, broker.Config{Store: newStore(), Memory: 64 << 20, WriteTimeout: time.Minute})
	for range 20 {
		nc := raw(t, s)
		nc.(*net.TCPConn).SetReadBuffer(4 << 10)
		said := join(attack.Greeting(), attack.Ready(attack.Dealer), attack.Hello(""), attack.Frames(wire.Message{Kind: wire.Subscribe, Request: 2, Topic: "deaf", Mode: wire.AtMostOnce, Credit: 1000}))
		if _, err := nc.Write(said); err != nil {
			t.Fatal(err)
		}
	}
	p := dial(t, s, "p")
	good := subscribe(t, dial(t, s, "good"), "deaf", wire.AtMostOnce, 1000)
	most := 0
	for range 300 {
		reply := publish(t, p, wire.Message{Topic: "deaf", Mode: wire.AtMostOnce, Payload: make([]byte, 256<<10)}) // less than a share, so that who reads has never the most
		if reply.Answer != wire.Accepted {
			t.Fatalf("published beside them: %+v", reply)
		}
		receive(t, good)
		st, err := s.State(within(t))
		if err != nil {
			t.Fatal(err)
		}
		most = max(most, st.OutgoingBytes)
	}
	if most > 24<<20 {
		t.Errorf("%d MiB waited for peers, of 16 that may", most>>20)
	}
}
