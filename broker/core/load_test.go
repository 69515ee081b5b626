package core

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/wire"
)

func TestTheTrieFindsWhatMatches(t *testing.T) {
	level := rapid.SampledFrom([]string{"a", "b", "", "$s"})
	rapid.Check(t, func(t *rapid.T) {
		var f filters
		nodes := map[string]*filterNode{}
		for range rapid.IntRange(0, 30).Draw(t, "filters") {
			levels := rapid.SliceOfN(rapid.OneOf(level, rapid.Just("+")), 0, 4).Draw(t, "levels")
			if rapid.Bool().Draw(t, "all") || len(levels) == 0 {
				levels = append(levels, "#")
			}
			filter := strings.Join(levels, "/")
			if !ValidFilter(filter) {
				continue
			}
			n := f.find(filter)
			n.copies = &audience{node: n}
			nodes[filter] = n
		}
		for filter, n := range nodes {
			if rapid.IntRange(0, 2).Draw(t, "remove") == 0 {
				n.copies = nil
				f.prune(n)
				delete(nodes, filter)
			}
		}
		name := strings.Join(rapid.SliceOfN(level, 1, 4).Draw(t, "name"), "/")
		var got, want []string
		f.match(name, func(n *filterNode) {
			for filter, other := range nodes {
				if n == other {
					got = append(got, filter)
				}
			}
		})
		for filter := range nodes {
			if Matches(filter, name) {
				want = append(want, filter)
			}
			if !f.has(filter) {
				t.Fatalf("%q is not there", filter)
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Fatalf("%q is matched by %q, want %q", name, got, want)
		}
		for _, n := range nodes {
			n.copies = nil
			f.prune(n)
		}
		if len(f.root.below) > 0 {
			t.Fatalf("nodes are left: %v", f.root.below)
		}
	})
}

// TestALateWildcardKnowsAllTopicsBeforeItIsServed checks that a wildcard
// subscribed later is served in publish order, across more topics than one step
// scans.
func TestALateWildcardKnowsAllTopicsBeforeItIsServed(t *testing.T) {
	const topics = 4 * tickBudget
	cfg := config()
	cfg.Limits.Topics, cfg.Limits.Messages, cfg.Limits.PublishWindow, cfg.Limits.InFlight = topics, topics, topics, topics
	w := scene(t, cfg, -1)
	w.say(2, wire.Message{Kind: wire.Subscribe, Request: 1, Topic: "t/#", Mode: wire.AtLeastOnce})
	var want []string
	for i := range topics {
		m := offer(fmt.Sprint(i))
		m.Topic = fmt.Sprint("t/", i)
		w.say(1, m)
		want = append(want, m.BusinessID)
	}
	w.commitAll()
	w.enter(3)
	w.say(3, wire.Message{Kind: wire.Subscribe, Request: 1, Topic: "+/+", Mode: wire.AtLeastOnce, Credit: topics})
	steps := 0
	for ; w.timer <= w.now.Elapsed; steps++ {
		w.step(Input{Kind: Tick})
		w.commitAll()
	}
	if got := w.delivered(3); !slices.Equal(got, want) {
		t.Fatalf("%d delivered after %d steps, want %d in order: %v", len(got), steps, len(want), got[:min(len(got), 20)])
	}
	if steps < topics/tickBudget {
		t.Errorf("all was done in %d steps", steps)
	}
}

// TestNoStepDoesMoreThanItsBudget checks that the work triggered by one input is
// done in parts.
func TestNoStepDoesMoreThanItsBudget(t *testing.T) {
	const n = 3000
	cfg := config()
	cfg.MaxAttempts = 100
	cfg.Limits.Messages, cfg.Limits.PublishWindow, cfg.Limits.InFlight, cfg.Limits.InFlightBytes = n, n, n, 1<<30
	w := scene(t, cfg, n)
	for i := range n {
		m := offer(fmt.Sprint(i))
		m.TTL = time.Minute
		w.say(1, m)
	}
	w.commitAll()
	if got := len(w.delivered(2)); got != n {
		t.Fatalf("%d delivered", got)
	}
	for _, c := range []struct {
		name  string
		begin func()
	}{
		{"the consumer leaves, and another takes all", func() {
			w.enter(3)
			w.say(3, wire.Message{Kind: wire.Subscribe, Request: 1, Topic: "orders", Mode: wire.AtLeastOnce, Credit: n})
			w.leave(2)
		}},
		{"every delivery times out", func() { w.pass(cfg.Visibility) }},
		{"all expires", func() { w.pass(2 * time.Minute) }},
	} {
		from := len(w.history)
		clear(w.holder)
		c.begin()
		for range 10 * n {
			if w.timer > w.now.Elapsed && len(w.queue) == 0 {
				break
			}
			if len(w.queue) > 0 {
				w.commit(min(len(w.queue), 100), nil, false)
			}
			w.step(Input{Kind: Tick})
		}
		for _, s := range w.history[from:] {
			budget := stepBudget
			if s.in.Kind == Tick {
				budget = tickBudget
			}
			// An attempt is recorded and a message sent for each.
			if len(s.effects) > 3*budget+10 {
				t.Errorf("%s: %d effects of one input (%d)", c.name, len(s.effects), s.in.Kind)
			}
		}
	}
	if w.core.unsettled != 0 || len(w.core.messages) != 0 {
		t.Errorf("%d messages are left", w.core.unsettled)
	}
}

// TestMemoryIsBounded checks that above the limit a publish is declined with the
// reason, and below it accepted again; durable content is dropped and still
// delivered intact.
func TestMemoryIsBounded(t *testing.T) {
	cfg := config()
	cfg.Limits.Memory, cfg.Limits.InFlightBytes = 100<<10, 10<<10
	w := scene(t, cfg, 0)
	payload := func(i int) []byte { return []byte(strings.Repeat(fmt.Sprint(i%10), 10<<10)) }
	n := 0
	publish := func() wire.Message {
		n++
		m := offer(fmt.Sprint(n))
		m.Payload = payload(n)
		w.say(1, m)
		return w.last(1)
	}
	declined := false
	for range 20 { // not yet stored
		if reply := publish(); reply.Kind == wire.PublishReply {
			declined = reply.Answer == wire.Declined && reply.Cause == wire.Limit && strings.Contains(reply.Reason, "may hold")
			break
		}
	}
	if !declined {
		t.Fatalf("%d times 10 KiB on their way to the store within 100 KiB: %+v", n, w.last(1))
	}
	w.commitAll()
	for range 50 { // durable
		publish()
		w.commitAll()
		if reply := w.last(1); reply.Answer != wire.Accepted {
			t.Fatalf("content is durable, and the next is answered %+v (held %d)", reply, w.core.held)
		}
	}
	small := 0
	for ; small < 1000; small++ {
		m := offer("small")
		w.say(1, m)
		w.commitAll()
		if w.last(1).Answer == wire.Declined {
			break
		}
	}
	if small == 1000 || w.core.held > cfg.Limits.Memory {
		t.Fatalf("%d messages without content were accepted, %d bytes held", small, w.core.held)
	}
	w.say(2, wire.Message{Kind: wire.Credit, Request: 1, Credit: 10})
	for range 2000 { // world.check compares deliveries with the store
		w.commitAll()
		for id, h := range w.holder {
			w.settle(h.session, id, h.attempt)
		}
	}
	if w.core.unsettled != 0 || len(w.accepted) < 50+small {
		t.Fatalf("%d unsettled, %d accepted", w.core.unsettled, len(w.accepted))
	}
	w.say(1, offer("again"))
	if w.commitAll(); w.last(1).Answer != wire.Accepted {
		t.Errorf("there is room again: %+v, %d held, %d messages", w.last(1), w.core.held, len(w.core.messages))
	}
}

func TestContentThatIsDamagedOrGoneIsNotDelivered(t *testing.T) {
	for _, c := range []struct {
		row    store.Row
		err    error
		lookup wire.Answer
		again  bool // asked for again later
	}{
		{store.Row{State: store.Damaged}, nil, wire.Stored, false},
		{store.Row{}, nil, wire.Stored, true},
		{store.Row{}, errUncertain, wire.Stored, true},
	} {
		w := scene(t, config(), 1)
		w.slow = true
		w.say(1, offer("order-1"))
		w.say(2, wire.Message{Kind: wire.Unsubscribe, Request: 2, Topic: "orders", Mode: wire.AtLeastOnce})
		w.commitAll()
		w.start()
		w.enter(2)
		w.say(2, wire.Message{Kind: wire.Subscribe, Request: 1, Topic: "orders", Mode: wire.AtLeastOnce, Credit: 1})
		w.commitAll()
		read := w.reads[0]
		w.reads = nil
		c.row.MessageID = read.ID
		w.step(Input{Kind: Fetched, Row: c.row, Size: read.Size, Err: c.err})
		w.pass(w.cfg.StoreRetry)
		if got := w.delivered(2); len(got) > 0 || (len(w.reads) > 0) != c.again {
			t.Errorf("%+v, %v: delivered %v, asked again %v", c.row, c.err, got, len(w.reads) > 0)
		}
		w.say(2, wire.Message{Kind: wire.Lookup, Request: 3, BusinessID: "order-1"})
		if got := w.last(2); got.Answer != c.lookup {
			t.Errorf("%+v, %v: looked up %+v", c.row, c.err, got)
		}
	}
}

// Who waits behind a message that turns out to be damaged is served at once.
func TestDamageHoldsUpNobody(t *testing.T) {
	w := scene(t, config(), 1)
	w.slow = true
	w.say(1, offer("order-1"))
	w.say(1, offer("order-2"))
	w.commitAll()
	w.start()
	w.enter(2)
	w.say(2, wire.Message{Kind: wire.Subscribe, Request: 1, Topic: "orders", Mode: wire.AtLeastOnce, Credit: 2})
	w.commitAll()
	if len(w.reads) != 2 {
		t.Fatalf("%d messages are read, want 2", len(w.reads))
	}
	first, second := w.reads[0], w.reads[1]
	w.reads = nil
	w.step(Input{Kind: Fetched, Row: w.rows[second.ID], Size: second.Size})
	if got := w.delivered(2); len(got) > 0 {
		t.Fatalf("delivered %v before its turn", got)
	}
	w.step(Input{Kind: Fetched, Row: store.Row{MessageID: first.ID, State: store.Damaged}, Size: first.Size})
	if got := w.delivered(2); len(got) != 1 {
		t.Errorf("delivered %v, want the second", got)
	}
}

func TestAFilterHasABoundedNumberOfSubscriptions(t *testing.T) {
	for _, mode := range []wire.Mode{wire.AtMostOnce, wire.AtLeastOnce} {
		cfg := config()
		cfg.Limits.Listeners = 3
		w := scene(t, cfg, -1)
		for i := range 4 {
			w.say(2, wire.Message{Kind: wire.Subscribe, Request: uint64(i + 1), Topic: "many", Group: fmt.Sprint(i), Mode: mode})
			if got := w.last(2); (got.Answer == wire.Declined) != (i == 3) || i == 3 && !strings.Contains(got.Reason, "limit of 3") {
				t.Errorf("subscription %d: %+v", i+1, got)
			}
		}
		w.say(2, wire.Message{Kind: wire.Unsubscribe, Request: 9, Topic: "many", Group: "1", Mode: mode})
		w.say(2, wire.Message{Kind: wire.Subscribe, Request: 10, Topic: "many", Group: "x", Mode: mode})
		if got := w.last(2); got.Answer != wire.Accepted {
			t.Errorf("after one has left: %+v", got)
		}
	}
}

// TestATopicThatIsSubscribedToByNameHasAPlace checks that filling up the topics
// cannot shut out those who subscribe to a topic by name.
func TestATopicThatIsSubscribedToByNameHasAPlace(t *testing.T) {
	cfg := config()
	cfg.Limits.Topics = 10
	w := scene(t, cfg, 1)
	w.say(2, wire.Message{Kind: wire.Subscribe, Request: 2, Topic: "t/#", Mode: wire.AtLeastOnce})
	for i := range 12 {
		m := offer(fmt.Sprint(i))
		m.Topic = fmt.Sprint("t/", i)
		w.say(1, m)
		w.commitAll()
	}
	if got := w.last(1); got.Answer != wire.Declined || !strings.Contains(got.Reason, "limit of 10 topics") {
		t.Fatalf("the twelfth topic: %+v", got)
	}
	w.say(1, offer("mine"))
	w.commitAll()
	if got := w.last(1); got.Answer != wire.Accepted {
		t.Fatalf("a topic with a subscription of its own: %+v", got)
	}
}

// TestTheWeightiestOfABusinessIDAnswers checks that the messages' states decide
// which one answers for a business ID, however many share it.
func TestTheWeightiestOfABusinessIDAnswers(t *testing.T) {
	w := scene(t, config(), 10)
	ask := func(want wire.Answer) {
		t.Helper()
		w.say(1, wire.Message{Kind: wire.Lookup, Request: 3, BusinessID: "same", TTL: time.Second})
		if got := w.last(1); got.Answer != want {
			t.Errorf("looked up %+v, want %d", got, want)
		}
	}
	for range 3 {
		w.say(1, offer("same"))
	}
	ask(wire.Unknown)
	w.commitAll()
	ask(wire.Stored)
	var ids []string
	for _, m := range w.sent[2] {
		if m.Kind == wire.Deliver {
			ids = append(ids, m.MessageID)
		}
	}
	w.settle(2, ids[1], 1)
	ask(wire.Stored)
	for _, id := range []string{ids[0], ids[2]} {
		delete(w.holder, id)
		w.say(2, wire.Message{Kind: wire.Nack, Request: 5, MessageID: id, DeadLetter: true})
	}
	w.commitAll()
	ask(wire.Settled)
}
