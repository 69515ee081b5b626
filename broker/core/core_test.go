package core

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/wire"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func config() Config {
	return Config{
		Name: "b", IDPrefix: "m-", Start: epoch, HasStore: true, MaxAttempts: 3, Visibility: 10 * time.Second,
		Backoff: Backoff{time.Second, 4 * time.Second}, DefaultTTL: time.Hour, MaxTTL: 1000 * time.Hour,
		ExpiryEvery: time.Minute, StoreRetry: time.Second, Settled: time.Hour, Heartbeat: time.Second,
		Limits: Limits{Sessions: 8, Subscriptions: 8, InFlight: 100, InFlightBytes: 1 << 20, PublishWindow: 50, Messages: 1000, Topics: 100, SettledIDs: 1000, Errors: 4, Listeners: 100, FanOut: 100},
	}
}

// world carries out a Core's effects in memory and checks the broker's promises
// at each of them.
type world struct {
	fatalf   func(string, ...any)
	cfg      Config
	core     *Core
	now      Instant
	timer    time.Duration
	rows     map[string]store.Row
	inserted int
	queue    []Effect // Persist effects not yet carried out
	reads    []Effect // Fetch effects not yet carried out
	slow     bool     // carry out reads only when the test says so
	unstored bool     // at-most-once messages are in flight, for which nothing is promised

	sent     map[Session][]wire.Message
	accepted map[string]bool
	ended    map[string]bool   // acknowledged, dead, expired
	holder   map[string]holder // whose delivery is open
	attempts map[string]int
	expires  map[string]time.Time
	history  []step
}

type holder struct {
	session Session
	attempt int
	until   time.Duration
}

type step struct {
	in      Input
	now     Instant
	effects []Effect
}

func newWorld(fatalf func(string, ...any), cfg Config) *world {
	w := &world{
		fatalf: fatalf, cfg: cfg, rows: map[string]store.Row{}, accepted: map[string]bool{}, ended: map[string]bool{},
		attempts: map[string]int{}, expires: map[string]time.Time{}, now: Instant{Wall: epoch},
	}
	w.start()
	return w
}

// start restarts the broker: operations not yet stored are lost.
func (w *world) start() {
	w.cfg.Start = w.now.Wall
	w.cfg.IDPrefix += "r"
	w.now.Elapsed = 0
	w.core, w.queue, w.reads, w.history = New(w.cfg), nil, nil, nil
	w.sent, w.holder = map[Session][]wire.Message{}, map[string]holder{}
	rows := slices.SortedFunc(maps.Values(w.rows), func(a, b store.Row) int { return cmp.Compare(a.Order, b.Order) })
	for _, row := range rows {
		if row.State == store.Pending { // an end that was not stored did not happen
			delete(w.ended, row.MessageID)
		}
		row.Size, row.Payload, row.Headers = len(row.Payload), nil, nil
		w.step(Input{Kind: Recovered, Row: store.Refuse(row)})
	}
	w.step(Input{Kind: Tick})
}

func (w *world) step(in Input) {
	effects := w.core.Step(&in, w.now, nil)
	w.history = append(w.history, step{in, w.now, effects})
	for _, e := range effects {
		switch e.Kind {
		case Persist:
			w.queue = append(w.queue, e)
		case Fetch:
			w.reads = append(w.reads, e)
			if !w.slow {
				defer w.read(nil)
			}
		case Arm:
			w.timer = e.Elapsed
		case Send:
			w.sent[e.Session] = append(w.sent[e.Session], e.Message)
			w.check(e.Session, &e.Message)
		case Purge:
			var gone []string
			for id, row := range w.rows {
				if row.State == store.Pending && !row.ExpiresAt.After(e.Wall) {
					gone = append(gone, id)
					row.Reason = store.EndExpired
					w.rows[id] = row.Marker(e.Wall.Add(w.cfg.Settled))
				}
			}
			slices.Sort(gone)
			defer w.step(Input{Kind: Purged, IDs: gone})
		}
	}
}

// read carries out the oldest read.
func (w *world) read(err error) {
	e := w.reads[0]
	w.reads = w.reads[1:]
	row := w.rows[e.ID]
	row.MessageID = e.ID
	w.step(Input{Kind: Fetched, Row: row, Size: e.Size, Err: err})
}

func (w *world) check(to Session, m *wire.Message) {
	if w.unstored {
		return
	}
	switch m.Kind {
	case wire.PublishReply:
		if m.Answer == wire.Accepted && m.MessageID != "" && !m.Again {
			if _, stored := w.rows[m.MessageID]; !stored {
				w.fatalf("%s was accepted and is not stored", m.MessageID)
			}
			w.accepted[m.MessageID] = true
		}
	case wire.Deliver:
		w.checkDelivery(to, m)
	}
}

func (w *world) checkDelivery(to Session, m *wire.Message) {
	id := m.MessageID
	if h, held := w.holder[id]; held && h.until > w.now.Elapsed {
		w.fatalf("%s was delivered to %d while %d holds it", id, to, h.session)
	}
	if w.ended[id] {
		w.fatalf("%s was delivered after its end", id)
	}
	if m.Again != (m.Attempt > 1) || m.Attempt <= w.attempts[id] {
		w.fatalf("%s: attempt %d, again %v, after attempt %d", id, m.Attempt, m.Again, w.attempts[id])
	}
	if m.Attempt > w.cfg.MaxAttempts {
		w.fatalf("%s was attempted %d times", id, m.Attempt)
	}
	if row := w.rows[id]; row.State != store.Pending || row.Attempts < m.Attempt {
		w.fatalf("%s: attempt %d was made before it was stored (%+v)", id, m.Attempt, row)
	}
	if !w.now.Wall.Before(w.expires[id]) {
		w.fatalf("%s was delivered after it had expired", id)
	}
	if !bytes.Equal(m.Payload, w.rows[id].Payload) {
		w.fatalf("%s was delivered with %d bytes, and is stored with %d", id, len(m.Payload), len(w.rows[id].Payload))
	}
	w.attempts[id] = m.Attempt
	w.holder[id] = holder{to, m.Attempt, w.now.Elapsed + w.cfg.Visibility}
}

// commit carries out the first n operations. With err they all fail, and written
// says whether they took effect nevertheless.
func (w *world) commit(n int, err error, written bool) {
	batch := slices.Clone(w.queue[:n])
	w.queue = w.queue[n:]
	for _, e := range batch {
		if err == nil || written {
			w.apply(e.Operation)
		}
	}
	for _, e := range batch {
		w.step(Input{Kind: Stored, Ticket: e.Ticket, Err: err})
	}
}

func (w *world) apply(op store.Operation) {
	id := op.Row.MessageID
	row, exists := w.rows[id]
	switch op.Kind {
	case store.Insert:
		if exists {
			w.fatalf("%s was inserted twice", id)
		}
		w.inserted++
		op.Row.Order = uint64(w.inserted)
		w.rows[id] = op.Row
		w.expires[id] = op.Row.ExpiresAt
		return
	case store.Redrive:
		if row.State == store.Dead {
			row.State, row.Attempts, row.ExpiresAt = store.Pending, 0, op.Row.ExpiresAt
			w.rows[id], w.expires[id], w.attempts[id] = row, row.ExpiresAt, 0
			delete(w.ended, id)
		}
		return
	case store.Discard:
		w.rows[id] = *op.Change(&row, false)
		return
	}
	if row.State != store.Pending {
		return
	}
	switch op.Kind {
	case store.Attempt:
		row.Attempts = op.Row.Attempts
	case store.Settle:
		row.State, row.Reason, row.KeepUntil = store.Processed, op.Row.Reason, op.Row.KeepUntil
	case store.DeadLetter:
		row.State, row.Reason = store.Dead, op.Row.Reason
		w.ended[id] = true
	case store.Delete:
		row.Reason = op.Row.Reason
		row = row.Marker(op.Row.KeepUntil)
		if op.Row.KeepUntil.IsZero() {
			delete(w.rows, id)
			return
		}
	}
	w.rows[id] = row
}

func (w *world) say(from Session, m wire.Message) {
	w.step(Input{Kind: Received, Session: from, Message: m})
}

func (w *world) enter(s Session) {
	w.step(Input{Kind: Opened, Session: s, Message: wire.Message{Kind: wire.Hello, Client: fmt.Sprint("client-", s)}})
}

func (w *world) leave(s Session) {
	for id, h := range w.holder {
		if h.session == s {
			delete(w.holder, id)
		}
	}
	w.step(Input{Kind: Closed, Session: s})
}

func (w *world) settle(s Session, id string, attempt int) {
	h := w.holder[id]
	held := h.session == s && h.attempt == attempt && h.until > w.now.Elapsed
	if held {
		delete(w.holder, id)
		w.ended[id] = true
	}
	w.say(s, wire.Message{Kind: wire.Ack, Request: 1, MessageID: id, Attempt: attempt})
}

func (w *world) pass(d time.Duration) {
	w.now.Elapsed += d
	w.now.Wall = w.now.Wall.Add(d)
	if w.now.Elapsed >= w.timer {
		w.step(Input{Kind: Tick})
	}
}

func (w *world) last(s Session) wire.Message {
	if n := len(w.sent[s]); n > 0 {
		return w.sent[s][n-1]
	}
	return wire.Message{}
}

var (
	errNotWritten = &store.Failure{NotWritten: true, Err: errors.New("disk full")}
	errUncertain  = &store.Failure{Err: errors.New("sync failed")}
)

// TestAnyHistoryKeepsThePromises checks random histories: nothing accepted is
// lost, only one competitor holds a message at a time, attempts are stored before
// they are made, counted across restarts and bounded, nothing is delivered after
// its end, what is declined is not stored, and the same inputs have the same
// effects.
func TestAnyHistoryKeepsThePromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := config()
		cfg.Limits.Memory = rapid.SampledFrom([]int64{0, 1 << 20, 20_000}).Draw(t, "memory")
		w := newWorld(t.Fatalf, cfg)
		w.slow = true
		next, request := Session(0), uint64(100)
		var alive []Session
		enter := func() {
			next++
			w.enter(next)
			alive = append(alive, next)
		}
		enter()
		someone := func() Session { return rapid.SampledFrom(alive).Draw(t, "session") }
		business := 0
		actions := []func(){
			func() { // publish
				request++
				business++
				rowsBefore, queued := len(w.rows), len(w.queue)
				from := someone()
				w.say(from, wire.Message{
					Kind: wire.Publish, Request: request, Topic: rapid.SampledFrom([]string{"a", "a/b"}).Draw(t, "topic"), Mode: wire.AtLeastOnce,
					BusinessID: fmt.Sprint("order-", business), TTL: rapid.SampledFrom([]time.Duration{0, 20 * time.Second}).Draw(t, "ttl"),
					Payload: make([]byte, rapid.SampledFrom([]int{0, 10, 3000}).Draw(t, "size")),
				})
				if reply := w.last(from); reply.Request == request && reply.Answer == wire.Declined && (len(w.rows) != rowsBefore || len(w.queue) != queued) {
					t.Fatalf("a declined publish was stored")
				}
			},
			func() { // subscribe
				request++
				w.say(someone(), wire.Message{
					Kind: wire.Subscribe, Request: request, Topic: rapid.SampledFrom([]string{"a", "#", "a/+"}).Draw(t, "filter"),
					Mode: wire.AtLeastOnce, Credit: rapid.IntRange(0, 3).Draw(t, "credit"),
				})
			},
			func() { // acknowledge what is held, in order, or answer late
				for _, id := range slices.Sorted(maps.Keys(w.holder)) {
					h := w.holder[id]
					w.settle(h.session, id, h.attempt)
					return
				}
			},
			func() { // give back
				for _, id := range slices.Sorted(maps.Keys(w.holder)) {
					h := w.holder[id]
					delete(w.holder, id)
					w.say(h.session, wire.Message{
						Kind: wire.Nack, Request: 1, MessageID: id, Attempt: h.attempt,
						DeadLetter: rapid.IntRange(0, 3).Draw(t, "dead") == 0, Reason: "no",
					})
					return
				}
			},
			func() {
				if len(w.queue) > 0 {
					w.commit(rapid.IntRange(1, len(w.queue)).Draw(t, "batch"), nil, false)
				}
			},
			func() {
				if len(w.queue) == 0 {
					return
				}
				n := rapid.IntRange(1, len(w.queue)).Draw(t, "batch")
				if rapid.Bool().Draw(t, "certain") {
					w.commit(n, errNotWritten, false)
				} else {
					w.commit(n, errUncertain, rapid.Bool().Draw(t, "written"))
				}
			},
			func() {
				w.pass(time.Duration(rapid.IntRange(1, 15).Draw(t, "seconds")) * time.Second)
			},
			func() {
				if len(w.reads) > 0 {
					w.read(rapid.SampledFrom([]error{nil, nil, nil, errUncertain}).Draw(t, "unread"))
				}
			},
			func() { // lose a session, or gain one
				if len(alive) > 1 && rapid.Bool().Draw(t, "leave") {
					s := someone()
					alive = slices.DeleteFunc(alive, func(x Session) bool { return x == s })
					w.leave(s)
				} else if len(alive) < 4 {
					enter()
				}
			},
			func() { // restart
				if rapid.IntRange(0, 4).Draw(t, "restart") == 0 {
					replay(t, w)
					w.start()
					alive = nil
					enter()
				}
			},
		}
		for range rapid.IntRange(10, 80).Draw(t, "steps") {
			rapid.SampledFrom(actions).Draw(t, "action")()
		}
		replay(t, w)
		w.drain(t, &next)
	})
}

// drain lets a healthy consumer take everything that is left.
func (w *world) drain(t *rapid.T, next *Session) {
	*next++
	for s := range w.core.sessions {
		w.leave(s)
	}
	w.enter(*next)
	w.say(*next, wire.Message{Kind: wire.Subscribe, Request: 1, Topic: "#", Mode: wire.AtLeastOnce, Credit: 50})
	w.slow = false
	for range 200 {
		for len(w.reads) > 0 {
			w.read(nil)
		}
		if len(w.queue) > 0 {
			w.commit(len(w.queue), nil, false)
		}
		for _, id := range slices.Sorted(maps.Keys(w.holder)) {
			w.settle(*next, id, w.holder[id].attempt)
		}
		w.pass(time.Second)
	}
	if w.core.unsettled != 0 || len(w.queue) != 0 {
		t.Fatalf("%d messages and %d operations are left: %+v", w.core.unsettled, len(w.queue), w.rows)
	}
	for id := range w.accepted {
		expired := !w.now.Wall.Before(w.expires[id])
		if !w.ended[id] && !expired {
			t.Fatalf("%s was accepted and lost: %+v", id, w.rows[id])
		}
	}
	for id, row := range w.rows {
		if row.State == store.Pending {
			t.Fatalf("%s is pending in the store and forgotten here: %+v", id, row)
		}
	}
}

// replay checks that the same inputs have the same effects.
func replay(t *rapid.T, w *world) {
	c := New(w.cfg)
	for i, s := range w.history {
		in := s.in
		if got := c.Step(&in, s.now, nil); !reflect.DeepEqual(got, s.effects) {
			t.Fatalf("step %d (%+v) had other effects the second time:\n%+v\n%+v", i, s.in, got, s.effects)
		}
	}
}

// scene returns a world with a producer (1) and a consumer (2) of "orders".
func scene(t *testing.T, cfg Config, credit int) *world {
	t.Helper()
	w := newWorld(t.Fatalf, cfg)
	w.enter(1)
	w.enter(2)
	if credit >= 0 {
		w.say(2, wire.Message{Kind: wire.Subscribe, Request: 1, Topic: "orders", Mode: wire.AtLeastOnce, Credit: credit})
	}
	return w
}

func offer(id string) wire.Message {
	return wire.Message{Kind: wire.Publish, Request: 9, Topic: "orders", Mode: wire.AtLeastOnce, BusinessID: id}
}

func (w *world) commitAll() {
	for len(w.queue) > 0 {
		w.commit(len(w.queue), nil, false)
	}
}

func TestAcceptance(t *testing.T) {
	for name, c := range map[string]struct {
		subscribed wire.Mode
		credit     int
		publish    func(*wire.Message)
		change     func(*Config)
		answer     wire.Answer
		rows       int
		delivered  int
	}{
		"at-least-once":            {subscribed: wire.AtLeastOnce, credit: 1, answer: wire.Accepted, rows: 1, delivered: 1},
		"at-least-once, no credit": {subscribed: wire.AtLeastOnce, answer: wire.Accepted, rows: 1},
		"nobody":                   {answer: wire.Declined},
		"other mode":               {subscribed: wire.AtMostOnce, credit: 1, answer: wire.Declined},
		"other topic":              {subscribed: wire.AtLeastOnce, credit: 1, publish: func(m *wire.Message) { m.Topic = "bills" }, answer: wire.Declined},
		"at-most-once":             {subscribed: wire.AtMostOnce, credit: 1, publish: func(m *wire.Message) { m.Mode = wire.AtMostOnce }, answer: wire.Accepted, delivered: 1},
		"at-most-once, no credit":  {subscribed: wire.AtMostOnce, publish: func(m *wire.Message) { m.Mode = wire.AtMostOnce }, answer: wire.Declined},
		"at-most-once, other mode": {subscribed: wire.AtLeastOnce, credit: 1, publish: func(m *wire.Message) { m.Mode = wire.AtMostOnce }, answer: wire.Declined},
		"no mode":                  {subscribed: wire.AtLeastOnce, credit: 1, publish: func(m *wire.Message) { m.Mode = 0 }, answer: wire.Declined},
		"wildcard":                 {subscribed: wire.AtLeastOnce, credit: 1, publish: func(m *wire.Message) { m.Topic = "+" }, answer: wire.Declined},
		"negative TTL":             {subscribed: wire.AtLeastOnce, credit: 1, publish: func(m *wire.Message) { m.TTL = -1 }, answer: wire.Declined},
		"absurd TTL":               {subscribed: wire.AtLeastOnce, credit: 1, publish: func(m *wire.Message) { m.TTL = 1e6 * time.Hour }, answer: wire.Declined},
		"no store":                 {credit: 1, change: func(c *Config) { c.HasStore = false }, answer: wire.Declined},
		"too many":                 {subscribed: wire.AtLeastOnce, change: func(c *Config) { c.Limits.Messages = 0 }, answer: wire.Declined},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config()
			if c.change != nil {
				c.change(&cfg)
			}
			w := scene(t, cfg, -1)
			w.unstored = c.subscribed == wire.AtMostOnce
			if c.subscribed != 0 {
				w.say(2, wire.Message{Kind: wire.Subscribe, Request: 1, Topic: "orders", Mode: c.subscribed, Credit: c.credit})
			}
			m := offer("order-1")
			if c.publish != nil {
				c.publish(&m)
			}
			w.say(1, m)
			w.commitAll()
			reply := w.last(1)
			if reply.Kind != wire.PublishReply || reply.Answer != c.answer || (c.answer == wire.Declined) != (reply.Reason != "") {
				t.Errorf("reply %+v, want answer %d", reply, c.answer)
			}
			delivered := 0
			for _, m := range w.sent[2] {
				if m.Kind == wire.Deliver {
					delivered++
				}
			}
			if len(w.rows) != c.rows || delivered != c.delivered {
				t.Errorf("%d rows, %d delivered, want %d, %d", len(w.rows), delivered, c.rows, c.delivered)
			}
		})
	}
}

func TestAStoreFailureIsRejectedOnlyWhenProven(t *testing.T) {
	for _, c := range []struct {
		err     error
		written bool
		answer  wire.Answer
		lookup  wire.Answer
	}{
		{errNotWritten, false, wire.Rejected, wire.NotSeen},
		{errUncertain, true, wire.Unknown, wire.Unknown},
		{errors.New("anything else"), false, wire.Unknown, wire.Unknown},
	} {
		w := scene(t, config(), 1)
		w.say(1, offer("order-1"))
		w.commit(1, c.err, c.written)
		if got := w.last(1); got.Answer != c.answer {
			t.Errorf("%v: answered %+v, want %d", c.err, got, c.answer)
		}
		ask := wire.Message{Kind: wire.Lookup, Request: 3, BusinessID: "order-1", TTL: time.Second}
		w.say(1, ask)
		if got := w.last(1); got.Answer != c.lookup {
			t.Errorf("%v: looked up %+v, want %d", c.err, got, c.lookup)
		}
		w.commitAll() // what may have been written is deleted
		w.say(1, ask)
		if got := w.last(1); got.Answer != wire.NotSeen || len(w.rows) != 0 {
			t.Errorf("%v: in the end %+v, rows %v; want NotSeen and none", c.err, got, w.rows)
		}
	}
}

func TestTheSameMessageIDHasOneResult(t *testing.T) {
	w := scene(t, config(), 1)
	m := offer("order-1")
	m.MessageID = "chosen"
	w.say(1, m)
	m.Request = 10
	w.say(1, m) // while the first is still being stored
	w.commitAll()
	m.Request = 11
	w.say(1, m)
	w.settle(2, "chosen", 1)
	w.commitAll()
	w.leave(2) // nobody listens any more
	m.Request = 12
	w.say(1, m)
	m.Request, m.BusinessID = 13, "order-2"
	w.say(1, m)
	var got []string
	for _, r := range w.sent[1][1:] {
		got = append(got, fmt.Sprint(r.Request, r.Answer, r.Again, r.MessageID))
	}
	want := []string{
		fmt.Sprint(9, wire.Accepted, false, "chosen"), fmt.Sprint(10, wire.Accepted, true, "chosen"),
		fmt.Sprint(11, wire.Accepted, true, "chosen"), fmt.Sprint(12, wire.Accepted, true, "chosen"),
		fmt.Sprint(13, wire.Declined, false, "chosen"),
	}
	if !slices.Equal(got, want) || w.inserted != 1 {
		t.Fatalf("%d rows inserted, answers\n%v, want\n%v", w.inserted, got, want)
	}
}

func TestTheAnswerToAnACK(t *testing.T) {
	for _, confirm := range []bool{false, true} {
		cfg := config()
		cfg.ConfirmAfterDelete = confirm
		w := scene(t, cfg, 1)
		w.say(1, offer("order-1"))
		w.commitAll()
		id := w.last(2).MessageID
		w.settle(2, id, 1)
		if answered := w.last(2).Kind == wire.AckReply; answered == confirm {
			t.Errorf("ConfirmAfterDelete %v: answered before the delete: %v", confirm, answered)
		}
		w.commit(1, errNotWritten, false)
		if confirm && w.last(2).Answer != wire.Unknown {
			t.Errorf("the delete failed, and the ACK was answered %+v", w.last(2))
		}
		w.pass(cfg.StoreRetry)
		w.commitAll()
		if row := w.rows[id]; row.State != store.SettledMarker {
			t.Errorf("the delete was not tried again: %+v", row)
		}
	}
}

func TestALateACKIsRefused(t *testing.T) {
	w := scene(t, config(), 1)
	w.say(1, offer("order-1"))
	w.commitAll()
	id := w.last(2).MessageID
	w.pass(w.cfg.Visibility)
	w.commitAll()
	if again := w.last(2); again.Kind != wire.Deliver || again.MessageID != id || again.Attempt != 2 || !again.Again {
		t.Fatalf("after the visibility timeout: %+v", again)
	}
	w.say(2, wire.Message{Kind: wire.Ack, Request: 5, MessageID: id, Attempt: 1})
	if got := w.last(2); got.Answer != wire.Refused || got.Reason == "" {
		t.Fatalf("the first attempt's ACK: %+v", got)
	}
	w.say(1, wire.Message{Kind: wire.Ack, Request: 6, MessageID: id, Attempt: 2})
	if got := w.last(1); got.Answer != wire.Refused {
		t.Fatalf("another session's ACK: %+v", got)
	}
	w.settle(2, id, 2)
	if got := w.last(2); got.Answer != wire.Accepted {
		t.Fatalf("the second attempt's ACK: %+v", got)
	}
}

func TestDeadLettersAndRedrive(t *testing.T) {
	w := scene(t, config(), 1)
	w.say(1, offer("order-1"))
	w.commitAll()
	id := w.last(2).MessageID
	for attempt := 1; attempt <= w.cfg.MaxAttempts; attempt++ {
		if d := w.last(2); d.Kind != wire.Deliver || d.Attempt != attempt {
			t.Fatalf("attempt %d: %+v", attempt, d)
		}
		delete(w.holder, id)
		w.say(2, wire.Message{Kind: wire.Nack, Request: 5, MessageID: id, Attempt: attempt, Reason: "bad address"})
		w.pass(w.cfg.Backoff.after(attempt))
		w.commitAll()
	}
	row := w.rows[id]
	if row.State != store.Dead || row.Reason != "3 attempts without an acknowledgement: bad address" {
		t.Fatalf("row %+v", row)
	}
	w.say(1, wire.Message{Kind: wire.Lookup, Request: 7, BusinessID: "order-1"})
	if got := w.last(1); got.Answer != wire.Dead || got.Reason != row.Reason {
		t.Fatalf("lookup %+v", got)
	}
	w.start() // the queue survives a restart
	w.enter(3)
	w.say(3, wire.Message{Kind: wire.Subscribe, Request: 1, Topic: "#", Mode: wire.AtLeastOnce, Credit: 1})
	w.step(Input{Kind: Found, Session: 3, Row: row, Message: wire.Message{Kind: wire.Admin, Request: 8, Topic: "dlq.redrive", MessageID: id}})
	w.commitAll()
	if d := w.last(3); d.Kind != wire.Deliver || d.Attempt != 1 || d.MessageID != id {
		t.Fatalf("redriven: %+v", d)
	}
}

func TestFirstDeliveriesKeepTheOrderOfPublishing(t *testing.T) {
	w := scene(t, config(), 0)
	for i := range 6 {
		w.say(1, offer(fmt.Sprint(i)))
		if i == 2 { // from here on a competitor with credit is present before the insert
			w.say(2, wire.Message{Kind: wire.Credit, Request: 1, Credit: 6})
		}
	}
	w.commitAll()
	var got []string
	for _, m := range w.sent[2] {
		if m.Kind == wire.Deliver {
			got = append(got, m.BusinessID)
		}
	}
	if want := []string{"0", "1", "2", "3", "4", "5"}; !slices.Equal(got, want) {
		t.Fatalf("delivered %v, want %v", got, want)
	}
}

func (w *world) delivered(s Session) (ids []string) {
	for _, m := range w.sent[s] {
		if m.Kind == wire.Deliver {
			ids = append(ids, m.BusinessID)
		}
	}
	return ids
}

func TestADisconnectRedeliversAtOnceAndInOrder(t *testing.T) {
	w := scene(t, config(), 30)
	var want []string
	for i := range 30 {
		want = append(want, fmt.Sprint(i))
		w.say(1, offer(want[i]))
	}
	w.commitAll()
	w.enter(3)
	w.say(3, wire.Message{Kind: wire.Subscribe, Request: 1, Topic: "orders", Mode: wire.AtLeastOnce, Credit: 30})
	w.leave(2)
	w.commitAll() // no time has passed
	if got := w.delivered(3); !slices.Equal(got, want) {
		t.Fatalf("redelivered %v", got)
	}
}

func TestEachDelayEndsAtItsTime(t *testing.T) {
	w := scene(t, config(), 3)
	for _, id := range []string{"9s", "3s", "6s"} {
		w.say(1, offer(id))
	}
	w.commitAll()
	for _, d := range w.sent[2] {
		if d.Kind == wire.Deliver {
			delay, _ := time.ParseDuration(d.BusinessID)
			delete(w.holder, d.MessageID)
			w.say(2, wire.Message{Kind: wire.Nack, Request: 1, MessageID: d.MessageID, Attempt: 1, Delay: delay})
		}
	}
	w.sent[2] = nil
	for i, want := range []string{"3s", "6s", "9s"} {
		w.pass(2 * time.Second)
		w.commitAll()
		if got := w.delivered(2); len(got) != i {
			t.Fatalf("before %s: %v", want, got)
		}
		w.pass(time.Second)
		w.commitAll()
		if got := w.delivered(2); len(got) != i+1 || got[i] != want {
			t.Fatalf("at %s: %v", want, got)
		}
	}
}

func TestASessionIsGivenNoMoreBytesThanItMayHold(t *testing.T) {
	cfg := config()
	cfg.Limits.InFlightBytes = 100
	w := scene(t, cfg, 10)
	for i, size := range []int{60, 40, 60, 1000} {
		m := offer(fmt.Sprint(i))
		m.Payload = make([]byte, size)
		w.say(1, m)
	}
	w.commitAll()
	for _, want := range [][]string{{"0", "1"}, {"0", "1", "2"}, {"0", "1", "2", "3"}} {
		if got := w.delivered(2); !slices.Equal(got, want) {
			t.Fatalf("delivered %v, want %v", got, want)
		}
		for _, id := range slices.Sorted(maps.Keys(w.holder)) {
			w.settle(2, id, 1)
		}
		w.commitAll()
	}
}

func TestGroupsShareAndOthersGetACopy(t *testing.T) {
	w := scene(t, config(), -1)
	for s, group := range map[Session]string{2: "", 3: "g", 4: "g"} {
		if s > 2 {
			w.enter(s)
		}
		w.say(s, wire.Message{Kind: wire.Subscribe, Request: 1, Topic: "+", Group: group, Mode: wire.AtMostOnce, Credit: 10})
	}
	w.unstored = true
	for range 4 {
		m := offer("x")
		m.Mode = wire.AtMostOnce
		w.say(1, m)
	}
	for s, want := range map[Session]int{2: 4, 3: 2, 4: 2} {
		got := 0
		for _, m := range w.sent[s] {
			if m.Kind == wire.Deliver {
				got++
			}
		}
		if got != want {
			t.Errorf("session %d got %d copies, want %d", s, got, want)
		}
	}
}

func TestOlderRowsAreRefusedAndUntouched(t *testing.T) {
	w := newWorld(t.Fatalf, config())
	w.rows["old"] = store.Row{Order: 1, MessageID: "old", BusinessID: "order-0", State: store.Pending, Topic: "orders", Version: wire.OldestVersion - 1}
	w.rows["new"] = store.Row{Order: 2, MessageID: "new", BusinessID: "order-1", State: store.Pending, Topic: "orders", Version: wire.Version}
	w.expires["new"] = epoch.Add(time.Hour)
	w.start()
	w.enter(2)
	w.say(2, wire.Message{Kind: wire.Subscribe, Request: 1, Topic: "orders", Mode: wire.AtLeastOnce, Credit: 5})
	w.commitAll()
	if d := w.last(2); d.MessageID != "new" || len(w.sent[2]) != 3 {
		t.Fatalf("sent %+v", w.sent[2])
	}
	if w.rows["old"].Version != wire.OldestVersion-1 || w.rows["old"].State != store.Pending {
		t.Fatalf("the old row was touched: %+v", w.rows["old"])
	}
}

func TestLookupProvesAbsenceOnlyForWhatItRemembers(t *testing.T) {
	cfg := config()
	cfg.Limits.SettledIDs = 1
	w := scene(t, cfg, 5)
	w.pass(10 * time.Second)
	for _, id := range []string{"first", "second"} {
		w.say(1, offer(id))
		w.commitAll()
		w.settle(2, w.last(2).MessageID, 1)
		w.commitAll()
		w.pass(10 * time.Second)
	}
	for _, c := range []struct {
		id   string
		age  time.Duration
		want wire.Answer
	}{
		{"second", 0, wire.Settled},
		{"first", 25 * time.Second, wire.Forgotten},  // its marker was pushed out
		{"never", 25 * time.Second, wire.Forgotten},  // as old as what was forgotten
		{"never", 15 * time.Second, wire.NotSeen},    // younger
		{"never", 0, wire.Forgotten},                 // no age, no proof
		{"never", 1000 * time.Hour, wire.Forgotten},  // before this start's memory
		{"never", -15 * time.Second, wire.Forgotten}, // nonsense proves nothing
	} {
		w.say(1, wire.Message{Kind: wire.Lookup, Request: 2, BusinessID: c.id, TTL: c.age})
		if got := w.last(1); got.Answer != c.want {
			t.Errorf("%s, %v old: %+v, want %d", c.id, c.age, got, c.want)
		}
	}
}

// TestWhatEndedAMessageIsKnownAfterAKill looks messages up before and after a kill,
// which strikes before what ended them is stored, or after it.
func TestWhatEndedAMessageIsKnownAfterAKill(t *testing.T) {
	for _, c := range []struct {
		name  string
		end   func(w *world, id string)
		ttl   time.Duration
		want  wire.Answer
		cause wire.Cause
	}{
		{"acknowledged", func(w *world, id string) { w.settle(2, id, 1) }, time.Hour, wire.Settled, wire.NoCause},
		{"expired", func(w *world, _ string) { w.leave(2); w.pass(5 * time.Minute) }, 5 * time.Minute, wire.Forgotten, wire.Expired},
		{"expired, and its purge comes before its delete", func(w *world, _ string) {
			w.leave(2)
			w.pass(5 * time.Minute)
			w.queue = nil
			w.pass(w.cfg.ExpiryEvery + w.cfg.Visibility)
		}, 5 * time.Minute, wire.Forgotten, wire.Expired},
		{"discarded", func(w *world, id string) {
			w.say(2, wire.Message{Kind: wire.Nack, Request: 5, MessageID: id, Attempt: 1, DeadLetter: true})
			w.commitAll()
			w.step(Input{Kind: Found, Session: 1, Row: w.rows[id], Message: wire.Message{Kind: wire.Admin, Request: 8, Topic: "dlq.discard", MessageID: id}})
			w.commitAll()
		}, time.Hour, wire.Forgotten, wire.Discarded},
	} {
		for _, stored := range []bool{true, false} {
			w := scene(t, config(), 1)
			m := offer("order-1")
			m.TTL = c.ttl
			w.say(1, m)
			w.commitAll()
			c.end(w, w.last(2).MessageID)
			if stored {
				w.commitAll()
			}
			ask := func(when string) wire.Answer {
				w.say(1, wire.Message{Kind: wire.Lookup, Request: 7, BusinessID: "order-1", TTL: w.now.Wall.Sub(epoch)})
				got := w.last(1)
				if got.Answer == c.want && got.Cause != c.cause {
					t.Errorf("%s, stored %v, %s: looked up %+v", c.name, stored, when, got)
				}
				return got.Answer
			}
			if got := ask("before"); got != c.want {
				t.Errorf("%s: looked up %v", c.name, got)
			}
			w.start()
			w.enter(1)
			want := c.want
			if !stored && c.name == "acknowledged" { // which the kill undid
				want = wire.Stored
			}
			if got := ask("after"); got != want {
				t.Errorf("%s, stored %v: looked up %v after a kill, want %v", c.name, stored, got, want)
			}
		}
	}
}

// TestAnEndThatWasNotRecordedIsNotGuessed takes over what an older build kept of a
// message that it had settled, or that had expired.
func TestAnEndThatWasNotRecordedIsNotGuessed(t *testing.T) {
	w := newWorld(t.Fatalf, config())
	w.rows["m-1"] = store.Row{Order: 1, State: store.SettledMarker, MessageID: "m-1", BusinessID: "order-1", InsertedAt: epoch, KeepUntil: epoch.Add(time.Hour)}
	w.start()
	w.enter(1)
	w.say(1, wire.Message{Kind: wire.Lookup, Request: 7, BusinessID: "order-1", TTL: time.Second})
	if got := w.last(1); got.Answer != wire.Forgotten || got.Cause != wire.NoCause || got.MessageID != "m-1" {
		t.Errorf("looked up %+v", got)
	}
}

func TestTopics(t *testing.T) {
	for _, c := range []struct {
		filter, name string
		want         bool
	}{
		{"a", "a", true}, {"a", "b", false}, {"a", "a/b", false}, {"a/b", "a", false},
		{"+", "a", true}, {"+", "a/b", false}, {"+", "", true}, {"+/+", "/a", true}, {"a/+", "a", false}, {"a/+", "a/", true},
		{"#", "a/b/c", true}, {"a/#", "a", true}, {"a/#", "a/b/c", true}, {"a/#", "ab", false}, {"a/+/#", "a", false}, {"a/+/#", "a/b", true},
		{"+/b/#", "a/b", true}, {"#", "$SYS", false}, {"+/x", "$SYS/x", false}, {"$SYS/#", "$SYS/x", true},
	} {
		if got := Matches(c.filter, c.name); got != c.want {
			t.Errorf("Matches(%q, %q) = %v", c.filter, c.name, got)
		}
	}
	for filter, want := range map[string]bool{"": false, "#": true, "a/#": true, "#/a": false, "a#": false, "a+/b": false, "+/+": true, "/": true} {
		if got := ValidFilter(filter); got != want {
			t.Errorf("ValidFilter(%q) = %v", filter, got)
		}
	}
}
