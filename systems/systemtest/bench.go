package systemtest

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems"
)

// bench is one instance of the system with its sessions, for one subtest. Its
// methods end the subtest when the system does not do what is asked.
type bench struct {
	t        *testing.T
	ctx      context.Context // bounds everything the subtest waits for
	system   systems.System
	instance systems.Instance
	sink     *sink
	address  string // of the server, empty if not Networked

	stopped  bool
	cleanups []func() // run in reverse order by stop
	sessions int
	sent     int
	settled  map[string]bool  // business IDs that were acknowledged
	fired    []evidence.Class // faults that struck a session which had settled something
}

// within bounds one subtest; only a broken adapter comes near it.
const within = time.Minute

const (
	destination  = "orders"
	subscription = "billing"
)

func start(t *testing.T, s systems.System, servers *process.Pool) *bench {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	b := &bench{t: t, ctx: ctx, system: s, sink: &sink{}, settled: make(map[string]bool)}
	var pipes sync.WaitGroup // the event pipes of the instance's children
	b.onStop(cancel)
	b.onStop(pipes.Wait)
	env := Env(t, b.sink, servers)
	// Evidence of children is the bench's to judge; here it is only drained.
	env.Adopt = func(events io.Reader, _ string) { pipes.Go(func() { _, _ = io.Copy(io.Discard, events) }) }
	instance, err := s.Start(ctx, env)
	if err != nil {
		cancel()
		t.Fatalf("start: %v", err)
	}
	b.instance = instance
	if networked, ok := instance.(systems.Networked); ok {
		b.address = networked.Address()
	}
	b.onStop(func() {
		stop, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		if err := instance.Stop(stop); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	t.Cleanup(b.stop)
	return b
}

// Discard is a sink for tests that look at no event.
type Discard struct{}

func (Discard) Record(evidence.Event) uint64 { return 0 }

// Env of one instance, in a folder of its own. servers may be nil: then no
// server is handed on.
func Env(t *testing.T, s evidence.Sink, servers *process.Pool) systems.Env {
	t.Helper()
	dir := t.TempDir()
	return systems.Env{
		Dir:     dir,
		Log:     func(name string) (io.WriteCloser, error) { return os.Create(filepath.Join(dir, name+".log")) },
		Sink:    s,
		Scale:   1,
		Seed:    1,
		Servers: servers,
	}
}

func (b *bench) onStop(f func()) { b.cleanups = append(b.cleanups, f) }

// stop closes the sessions and stops the instance, once.
func (b *bench) stop() {
	if b.stopped {
		return
	}
	b.stopped = true
	for i := len(b.cleanups) - 1; i >= 0; i-- {
		b.cleanups[i]()
	}
}

// needs skips the subtest if the system says that it lacks this.
func (b *bench) needs(n systems.Need) {
	b.t.Helper()
	if reason, lacks := b.system.Describe().Lacks[n]; lacks {
		b.t.Skipf("lacks %s: %s", n, reason)
	}
}

// ability of v that the subtest needs: skipped if the profile lacks it, even
// where the adapter implements it for others; absent without a reason it fails.
func ability[A any](b *bench, v any, n systems.Need) A {
	b.t.Helper()
	b.needs(n)
	a, ok := v.(A)
	if !ok {
		b.t.Fatalf("%s is not implemented, and Lacks does not say why", n)
	}
	return a
}

func (b *bench) process() systems.Process {
	b.t.Helper()
	return ability[systems.Process](b, b.instance, systems.NeedProcess)
}

// forgets says whether the profile makes no promise to keep what it accepted.
func (b *bench) forgets() bool {
	for _, c := range b.system.Describe().Claims {
		if c.Guarantee == evidence.NoAcceptedLoss {
			return false
		}
	}
	return true
}

// declines says whether the system refuses what nobody is there to receive.
func (b *bench) declines() bool {
	_, lacks := b.system.Describe().Lacks[systems.NeedDecline]
	return !lacks
}

// link to the system, for the sessions of one subtest.
func (b *bench) link() *links.Link {
	b.t.Helper()
	networked := ability[systems.Networked](b, b.instance, systems.NeedFrames)
	if networked.Protocol() == nil {
		b.t.Fatal("the instance has no protocol, and Lacks does not name frames")
	}
	link, err := links.Open(b.ctx, links.Options{
		Name: "p1", Upstream: networked.Address(), Protocol: networked.Protocol(),
		Index: links.NewIndex(), Sink: b.sink,
	})
	b.must("open a link", err)
	b.onStop(func() {
		if err := link.Close(); err != nil {
			b.t.Errorf("close the link: %v", err)
		}
	})
	return link
}

func (b *bench) claims(guarantee string, fired ...evidence.Class) bool {
	for _, c := range b.system.Describe().Claims {
		if c.Guarantee == guarantee && c.Covers(fired) {
			return true
		}
	}
	return false
}

func (b *bench) must(what string, err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatalf("%s: %v", what, err)
	}
}

func (b *bench) session(actor string) string {
	b.sessions++
	return actor + "#" + strconv.Itoa(b.sessions)
}

func (b *bench) producer() systems.Producer {
	b.t.Helper()
	return b.producerAt(b.address)
}

func (b *bench) producerAt(address string) systems.Producer {
	b.t.Helper()
	p, err := b.instance.Producer(b.ctx, systems.ProducerOptions{Name: "p1", Session: b.session("p1"), Address: address})
	b.must("open a producer's session", err)
	b.onStop(func() { b.close(p) })
	return p
}

// credit of a consumer that acknowledges nothing: more than any subtest sends.
// There its place comes back by itself, at a time that no call tells, and a
// window of one could decline the next message.
const credit = 128

func (b *bench) consumerOptions(session, address string, window int) systems.ConsumerOptions {
	if b.system.Describe().Profile.AckCounting == "automatic" {
		window = max(window, credit)
	}
	return systems.ConsumerOptions{
		Name: "c1", Session: session, Address: address,
		Destination: destination, Subscription: subscription, Window: window,
	}
}

func (b *bench) consumer(window int) systems.Consumer {
	b.t.Helper()
	return b.consumerAt(b.address, window)
}

func (b *bench) consumerAt(address string, window int) systems.Consumer {
	b.t.Helper()
	return b.open(b.consumerOptions(b.session("c1"), address, window))
}

// competitor is another consumer of the same logical subscriber: one that opens
// a session under the first one's name would be the same consumer again.
func (b *bench) competitor(window int) systems.Consumer {
	b.t.Helper()
	o := b.consumerOptions(b.session("c2"), b.address, window)
	o.Name, o.Seat = "c2", 1
	return b.open(o)
}

func (b *bench) open(o systems.ConsumerOptions) systems.Consumer {
	b.t.Helper()
	c, err := b.instance.Consumer(b.ctx, o)
	b.must("open a consumer's session", err)
	b.onStop(func() { b.close(c) })
	return c
}

// subscribe makes the logical subscriber known. Its consumer stays, without
// receiving, until leave is called where the system declines what nobody is
// there to receive; anywhere else nobody is online on return.
func (b *bench) subscribe() (leave func()) {
	b.t.Helper()
	c := b.consumer(1)
	leave = func() { b.close(c) }
	if !b.declines() {
		leave()
	}
	return leave
}

// close ends a session. Doing so twice is allowed.
func (b *bench) close(s interface{ Close(context.Context) error }) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		b.t.Errorf("close a session: %v", err)
	}
}

// message is the next one of producer p1.
func (b *bench) message(businessID, body string) systems.Message {
	b.sent++
	e := evidence.Envelope{PublishID: evidence.PublishID("p1", b.sent, 1), BusinessID: businessID, Body: []byte(body)}
	return systems.Message{Destination: destination, Payload: e.Encode()}
}

func (b *bench) send(p systems.Producer, m systems.Message) systems.Pending {
	b.t.Helper()
	pending, err := p.Send(b.ctx, m)
	b.must("send", err)
	return pending
}

// accepted waits for the answer of a healthy system. One that does not promise
// to keep messages may leave it Unknown, with "ok" told to the application.
func (b *bench) accepted(p systems.Pending) systems.Receipt {
	b.t.Helper()
	r := p.Receipt(b.ctx)
	switch {
	case r.ClientResult != "ok":
		b.t.Fatalf("a healthy system answered %+v, want told ok", r)
	case r.Acceptance == evidence.Unknown && b.forgets():
	case r.Acceptance != evidence.Accepted || r.HeldBy == evidence.HeldByNobody:
		b.t.Fatalf("a healthy system answered %+v, want accepted, and held by somebody", r)
	}
	return r
}

func (b *bench) receive(c systems.Consumer) systems.Delivery {
	b.t.Helper()
	d, err := c.Receive(b.ctx)
	b.must("receive", err)
	return d
}

// settle acknowledges a delivery, with the outcome that the profile announces.
func (b *bench) settle(d systems.Delivery) {
	b.t.Helper()
	want := evidence.AckSent
	if b.system.Describe().Profile.AckConfirms {
		want = evidence.AckConfirmed
	}
	if outcome, err := d.Ack(b.ctx); outcome != want {
		b.t.Fatalf("acknowledge: %v (%v), want %v", outcome, err, want)
	}
	b.settled[businessOf(d.Message())] = true
}

// marked checks what a delivery says of itself; n is the least its count can be.
func (b *bench) marked(d systems.Delivery, n int) {
	b.t.Helper()
	if attempt, known := d.Attempt(); known && attempt < n {
		b.t.Errorf("delivery %d of a message counts itself as attempt %d", n, attempt)
	}
	want := evidence.MarkNone
	if b.system.Describe().Profile.MarksAgain {
		want = evidence.MarkFirst
		if n > 1 {
			want = evidence.MarkRedelivered
		}
	}
	if d.Mark() != want {
		b.t.Errorf("delivery %d of a message is marked %q, want %q", n, d.Mark(), want)
	}
}

func (b *bench) sameAgain(first, second systems.Delivery) {
	b.t.Helper()
	b.marked(first, 1)
	b.marked(second, 2)
	one, two := first.Message(), second.Message()
	if one.MessageID != two.MessageID {
		b.t.Errorf("delivered as %q, then again as %q", one.MessageID, two.MessageID)
	}
	if digestOf(one) != digestOf(two) {
		b.t.Error("the redelivery differs from the first delivery")
	}
}

// unreachable publishes on a new session where nothing can be reached. The
// session may fail to open, or open and refuse; it is one try either way.
func (b *bench) unreachable(where, address string) {
	b.t.Helper()
	p, err := b.instance.Producer(b.ctx, systems.ProducerOptions{Name: "p9", Session: b.session("p9"), Address: address})
	if err != nil {
		if !errors.Is(err, systems.ErrUnavailable) {
			b.t.Errorf("open a session to %s: %v, want ErrUnavailable", where, err)
		}
		return
	}
	defer b.close(p)
	if r := b.send(p, b.message("order-9", "to nobody")).Receipt(b.ctx); r.Acceptance != evidence.Rejected {
		b.t.Errorf("publish to %s: %+v, want rejected", where, r)
	}
}

// next is the delivery of one business ID, with nothing ahead of it: what was
// settled does not come again, unless a fault struck under which the profile
// does not claim that an acknowledgement is final. again, if not nil, publishes
// once more what may have been lost.
func (b *bench) next(c systems.Consumer, businessID string, again func()) systems.Delivery {
	b.t.Helper()
	for {
		d := b.receiveOr(c, again)
		id := businessOf(d.Message())
		if id == businessID {
			return d
		}
		if !b.settled[id] || len(b.fired) == 0 || b.claims(evidence.AckIsFinal, b.fired...) {
			b.t.Fatalf("received %s ahead of %s: it was settled, refused or never sent", id, businessID)
		}
		if b.claims(evidence.StableRedeliveryID, b.fired...) {
			b.marked(d, 2)
		}
		b.settle(d)
	}
}

// receiveOr receives; until something comes it calls again every second.
func (b *bench) receiveOr(c systems.Consumer, again func()) systems.Delivery {
	b.t.Helper()
	if again == nil {
		return b.receive(c)
	}
	for {
		ctx, cancel := context.WithTimeout(b.ctx, time.Second)
		d, err := c.Receive(ctx)
		cancel()
		if err == nil {
			return d
		}
		if !errors.Is(err, context.DeadlineExceeded) || b.ctx.Err() != nil {
			b.t.Fatalf("receive: %v", err)
		}
		again()
	}
}

// onlySentinel publishes one message more and checks that it is all there is:
// what was settled does not come again, and what was refused was never stored.
// A profile that forgets may spend it on a session that is gone unnoticed, and
// then gets another; so it comes last in a subtest.
func (b *bench) onlySentinel(p systems.Producer, c systems.Consumer) {
	b.t.Helper()
	publish := func() { b.accepted(b.send(p, b.message("sentinel", ""))) }
	publish()
	var again func()
	if b.forgets() {
		again = publish
	}
	b.settle(b.next(c, "sentinel", again))
}

// onlySentinelAmong is onlySentinel for consumers of which one is given it.
func (b *bench) onlySentinelAmong(p systems.Producer, consumers ...systems.Consumer) {
	b.t.Helper()
	b.accepted(b.send(p, b.message("sentinel", "")))
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	type result struct {
		id  string
		err error
	}
	results := make(chan result, len(consumers))
	for _, c := range consumers {
		go func() {
			id, err := receiveAndAck(ctx, c)
			results <- result{id, err}
		}()
	}
	if first := <-results; first.err != nil || first.id != "sentinel" {
		b.t.Errorf("received %q (%v), want the sentinel and nothing ahead of it", first.id, first.err)
	}
	cancel()
	for range len(consumers) - 1 {
		if other := <-results; other.id != "" || !errors.Is(other.err, context.Canceled) {
			b.t.Errorf("received %q (%v) beside the sentinel", other.id, other.err)
		}
	}
}

func (b *bench) rows(i systems.Inspector) evidence.Snapshot {
	b.t.Helper()
	s, err := i.Rows(b.ctx)
	b.must("read the stored rows", err)
	if s.Trust != evidence.CountsOnly && s.Count != len(s.Rows) {
		b.t.Fatalf("the snapshot counts %d rows and shows %d", s.Count, len(s.Rows))
	}
	return s
}

// await waits for an error that must be want.
func (b *bench) await(what string, result <-chan error, want error) {
	b.t.Helper()
	select {
	case err := <-result:
		if !errors.Is(err, want) {
			b.t.Errorf("%s: %v, want %v", what, err, want)
		}
	case <-b.ctx.Done():
		b.t.Fatalf("%s: nothing within %v", what, within)
	}
}

// eventually looks again and again: not every store tells when it has changed.
func (b *bench) eventually(what string, holds func() bool) {
	b.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-b.ctx.Done():
			b.t.Fatalf("not within %v: %s", within, what)
		}
	}
}

func businessOf(m systems.Message) string {
	e, err := evidence.ParseEnvelope(m.Payload)
	if err != nil {
		return "a payload that is not ours"
	}
	return e.BusinessID
}

func digestOf(m systems.Message) string { return evidence.Digest(m.Payload, m.Key, m.Headers) }

// sink counts what is recorded.
type sink struct {
	mu    sync.Mutex
	seq   uint64
	kinds map[evidence.Kind]int
}

func (s *sink) Record(e evidence.Event) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kinds == nil {
		s.kinds = make(map[evidence.Kind]int)
	}
	s.kinds[e.Kind]++
	s.seq++
	return s.seq
}

func (s *sink) count(k evidence.Kind) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kinds[k]
}
