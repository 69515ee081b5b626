package broker_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/custodymq/custody/broker"
	"github.com/custodymq/custody/broker/core"
	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/memory"
	"github.com/custodymq/custody/broker/wire"
)

// outlet records what an engine sends.
type outlet struct{ sent []wire.Kind }

func (o *outlet) Send(_ core.Session, m *wire.Message) { o.sent = append(o.sent, m.Kind) }
func (o *outlet) CloseSession(core.Session, string)    {}
func (o *outlet) Arm(time.Duration)                    {}
func (o *outlet) take() (kinds []wire.Kind)            { kinds, o.sent = o.sent, nil; return kinds }
func instant(elapsed time.Duration) (now core.Instant) {
	return core.Instant{Wall: time.Unix(1, 0), Elapsed: elapsed}
}
func received(s core.Session, m wire.Message) core.Input {
	return core.Input{Kind: core.Received, Session: s, Message: m}
}

// TestEngine drives an engine by hand: nothing is answered before its turn at the
// store.
func TestEngine(t *testing.T) {
	held := memory.New(store.Partition{Connection: "c", Identity: "i"}, memory.Options{})
	e, err := broker.NewEngine(broker.Config{Store: held}, "m-")
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Recover(context.Background(), func() core.Instant { return instant(0) }); err != nil {
		t.Fatal(err)
	}
	var out outlet
	for _, in := range []core.Input{
		{Kind: core.Opened, Session: 1, Message: wire.Message{Kind: wire.Hello, Request: 1, Client: "c1"}},
		received(1, wire.Message{Kind: wire.Subscribe, Request: 2, Topic: "orders", Mode: wire.AtLeastOnce, Credit: 1}),
		received(1, wire.Message{Kind: wire.Publish, Request: 3, Topic: "orders", Mode: wire.AtLeastOnce, Payload: []byte("x")}),
	} {
		e.Step(&in, instant(time.Second))
	}
	e.Execute(&out)
	if sent := out.take(); len(sent) != 2 || sent[1] != wire.SubscribeReply {
		t.Fatalf("before its turn it sent %v", sent)
	}
	turn := e.Begin()
	if turn == nil || e.Begin() != nil || !e.Busy() {
		t.Fatal("one turn, and one only, should be under way")
	}
	e.Work(context.Background(), turn)
	e.End(turn, instant(2*time.Second))
	e.Execute(&out)
	if sent := out.take(); len(sent) != 2 || sent[0] != wire.PublishReply || sent[1] != wire.Deliver {
		t.Fatalf("after it it sent %v", sent)
	}
	if e.Busy() || e.Begin() != nil {
		t.Error("nothing is left to do")
	}
}

// TestAShortTurnForThoseWhoWantLittle checks that light sessions do not wait for
// a long turn of others, and do not starve them either.
func TestAShortTurnForThoseWhoWantLittle(t *testing.T) {
	e, err := broker.NewEngine(broker.Config{Store: memory.New(partition, memory.Options{})}, "m-")
	if err != nil {
		t.Fatal(err)
	}
	var out outlet
	publish := func(s core.Session, n, size int) {
		for range n {
			in := received(s, wire.Message{Kind: wire.Publish, Request: 9, Topic: "orders", Mode: wire.AtLeastOnce, Payload: make([]byte, size)})
			e.Step(&in, instant(0))
		}
		e.Execute(&out)
	}
	for s := core.Session(1); s <= 3; s++ {
		in := core.Input{Kind: core.Opened, Session: s, Message: wire.Message{Kind: wire.Hello, Request: 1, Client: "c"}}
		e.Step(&in, instant(0))
		in = received(s, wire.Message{Kind: wire.Subscribe, Request: 2, Topic: "orders", Mode: wire.AtLeastOnce})
		e.Step(&in, instant(0))
	}
	answered := func(turn *broker.Turn) int {
		e.Work(context.Background(), turn)
		e.End(turn, instant(0))
		out.take()
		e.Execute(&out)
		return len(out.take())
	}
	e.Limit(64, true)
	publish(1, 1000, 1)
	var got []int
	for range 6 {
		publish(2, 1, 1) // each time again
		publish(3, 2, 1)
		got = append(got, answered(e.Begin()))
	}
	if want := []int{3, 3, 64, 3, 3, 64}; !slices.Equal(got, want) {
		t.Errorf("the turns held %v, want %v", got, want)
	}
	for turn := e.Begin(); turn != nil; turn = e.Begin() {
		got = append(got, answered(turn))
	}
	sum := 0
	for _, n := range got {
		sum += n
	}
	if want := 1000 + 6*3; sum != want {
		t.Errorf("%d were answered of %d", sum, want)
	}
	publish(1, 1, 4<<20) // one, but large
	publish(2, 1, 1)
	if n := answered(e.Begin()); n != 1 {
		t.Errorf("a small message was answered among %d, beside a large one", n)
	}
}
