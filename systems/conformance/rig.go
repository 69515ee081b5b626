package conformance

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/tasks"
)

// rig is an instance of the system with its sessions, for one subtest. Its
// methods fail the subtest if the system does not do what is asked.
type rig struct {
	t        T
	ctx      context.Context // bounds every wait of the subtest
	within   time.Duration   // of ctx
	system   systems.System
	instance systems.Instance
	sink     *sink
	address  string // of the server, empty unless Networked

	stopped  bool
	cleanups []func() // run in reverse order by stop
	sessions int
	sent     int
	settled  map[string]bool  // business IDs acknowledged
	fired    []evidence.Class // faults that struck a session after it acknowledged
}

const (
	destination  = "orders"
	subscription = "billing"
)

func start(t T, s systems.System, dir string, within time.Duration, servers *process.Pool) *rig {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	b := &rig{t: t, ctx: ctx, within: within, system: s, sink: &sink{}, settled: make(map[string]bool)}
	var pipes tasks.Group // event pipes of the instance's children
	b.onStop(cancel)
	b.onStop(pipes.Wait)
	env := Env(dir, b.sink, servers)
	// Children's evidence is not judged here; the pipes must be drained.
	env.Adopt = func(events io.Reader, _ string) { pipes.Go(func() { _, _ = io.Copy(io.Discard, events) }) }
	instance, err := s.Start(ctx, env)
	if err != nil {
		cancel()
		t.Fatalf("start: %v", err)
	}
	b.instance = instance
	if networked, ok := systems.As[systems.Networked](instance); ok {
		b.address = networked.Address()
	}
	b.onStop(func() {
		stop, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		if err := instance.Stop(stop); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return b
}

// Discard is a sink that ignores all events: nothing is judged.
type Discard struct{}

func (Discard) Record(evidence.Event) uint64 { return 0 }

// Env returns an instance's environment. servers may be nil, to reuse none.
func Env(dir string, s evidence.Sink, servers *process.Pool) systems.Env {
	return systems.Env{
		Dir:     dir,
		Log:     func(name string) (io.WriteCloser, error) { return os.Create(filepath.Join(dir, name+".log")) },
		Sink:    s,
		Scale:   1,
		Seed:    1,
		Servers: servers,
	}
}

func (r *rig) onStop(f func()) { r.cleanups = append(r.cleanups, f) }

// stop closes the sessions and stops the instance, once.
func (r *rig) stop() {
	if r.stopped {
		return
	}
	r.stopped = true
	for i := len(r.cleanups) - 1; i >= 0; i-- {
		r.cleanups[i]()
	}
}

// needs skips the subtest if the system lacks n.
func (r *rig) needs(n systems.Need) {
	r.t.Helper()
	if reason, lacks := r.system.Describe().Lacks[n]; lacks {
		r.t.Skipf("lacks %s: %s", n, reason)
	}
}

// ability returns v as A. The subtest is skipped if the profile lacks n, even
// where the adapter implements it for other profiles; if A is missing without a
// reason it fails.
func ability[A any](r *rig, v any, n systems.Need) A {
	r.t.Helper()
	r.needs(n)
	a, ok := systems.As[A](v)
	if !ok {
		r.t.Fatalf("%s is not implemented, and Lacks does not say why", n)
	}
	return a
}

func (r *rig) process() systems.Process {
	r.t.Helper()
	return ability[systems.Process](r, r.instance, systems.NeedProcess)
}

// forgets reports whether the profile may lose what it accepted.
func (r *rig) forgets() bool {
	for _, c := range r.system.Describe().Claims {
		if c.Guarantee == evidence.NoAcceptedLoss {
			return false
		}
	}
	return true
}

// declines reports whether the system declines a publish without a consumer
// online.
func (r *rig) declines() bool {
	_, lacks := r.system.Describe().Lacks[systems.NeedDecline]
	return !lacks
}

// link opens a link to the system, for one subtest's sessions.
func (r *rig) link() *links.Link {
	r.t.Helper()
	networked := ability[systems.Networked](r, r.instance, systems.NeedFrames)
	if networked.Protocol() == nil {
		r.t.Fatal("the instance has no protocol, and Lacks does not name frames")
	}
	link, err := links.Open(r.ctx, links.Options{
		Name: "p1", Upstream: networked.Address(), Protocol: networked.Protocol(),
		Index: links.NewIndex(), Sink: r.sink,
	})
	r.must("open a link", err)
	r.onStop(func() {
		if err := link.Close(); err != nil {
			r.t.Errorf("close the link: %v", err)
		}
	})
	return link
}

func (r *rig) claims(guarantee string, fired ...evidence.Class) bool {
	for _, c := range r.system.Describe().Claims {
		if c.Guarantee == guarantee && c.Covers(fired) {
			return true
		}
	}
	return false
}

func (r *rig) must(what string, err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatalf("%s: %v", what, err)
	}
}

func (r *rig) session(actor string) string {
	r.sessions++
	return actor + "#" + strconv.Itoa(r.sessions)
}

func (r *rig) producer() systems.Producer {
	r.t.Helper()
	return r.producerAt(r.address)
}

func (r *rig) producerAt(address string) systems.Producer {
	r.t.Helper()
	p, err := r.instance.Producer(r.ctx, systems.ProducerOptions{Name: "p1", Session: r.session("p1"), Address: address})
	r.must("open a producer's session", err)
	r.onStop(func() { r.close(p) })
	return p
}

// credit is the window of a consumer that acknowledges nothing: more than any
// subtest sends. With automatic acknowledgement, credit returns at an
// unpredictable time, and a window of one could decline the next message.
const credit = 128

func (r *rig) consumerOptions(session, address string, window int) systems.ConsumerOptions {
	if r.system.Describe().Profile.AckCounting == "automatic" {
		window = max(window, credit)
	}
	return systems.ConsumerOptions{
		Name: "c1", Session: session, Address: address,
		Destination: destination, Subscription: subscription, Window: window,
	}
}

func (r *rig) consumer(window int) systems.Consumer {
	r.t.Helper()
	return r.consumerAt(r.address, window)
}

func (r *rig) consumerAt(address string, window int) systems.Consumer {
	r.t.Helper()
	return r.open(r.consumerOptions(r.session("c1"), address, window))
}

// competitor opens another consumer of the same logical subscriber, under a
// name of its own: under the first one's it would be the same consumer again.
func (r *rig) competitor(window int) systems.Consumer {
	r.t.Helper()
	o := r.consumerOptions(r.session("c2"), r.address, window)
	o.Name, o.Seat = "c2", 1
	return r.open(o)
}

func (r *rig) open(o systems.ConsumerOptions) systems.Consumer {
	r.t.Helper()
	c, err := r.instance.Consumer(r.ctx, o)
	r.must("open a consumer's session", err)
	r.onStop(func() { r.close(c) })
	return c
}

// subscribe makes the logical subscriber known. Where the system declines
// without a consumer online, its consumer stays, without receiving, until leave
// is called; elsewhere nobody is online on return.
func (r *rig) subscribe() (leave func()) {
	r.t.Helper()
	c := r.consumer(1)
	leave = func() { r.close(c) }
	if !r.declines() {
		leave()
	}
	return leave
}

// close closes a session, once.
func (r *rig) close(s interface{ Close(context.Context) error }) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), r.within)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		r.t.Errorf("close a session: %v", err)
	}
}

// message returns the next message of producer p1.
func (r *rig) message(businessID, body string) systems.Message {
	r.sent++
	e := evidence.Envelope{PublishID: evidence.PublishID("p1", r.sent, 1), BusinessID: businessID, Body: []byte(body)}
	return systems.Message{Destination: destination, Payload: e.Encode()}
}

func (r *rig) send(p systems.Producer, m systems.Message) systems.Pending {
	r.t.Helper()
	pending, err := p.Send(r.ctx, m)
	r.must("send", err)
	return pending
}

// accepted waits for a healthy system's answer. A system that may lose messages
// may answer Unknown, reporting "ok" to the application.
func (r *rig) accepted(p systems.Pending) systems.Receipt {
	r.t.Helper()
	receipt := p.Receipt(r.ctx)
	switch {
	case receipt.ClientResult != systems.OK:
		r.t.Fatalf("a healthy system answered %+v, want ClientResult ok", receipt)
	case receipt.Acceptance == evidence.Unknown && r.forgets():
	case receipt.Acceptance != evidence.Accepted || receipt.HeldBy == evidence.HeldByNobody:
		r.t.Fatalf("a healthy system answered %+v, want accepted, and held by somebody", receipt)
	}
	return receipt
}

func (r *rig) receive(c systems.Consumer) systems.Delivery {
	r.t.Helper()
	d, err := c.Receive(r.ctx)
	r.must("receive", err)
	return d
}

// settle acknowledges a delivery, expecting the profile's outcome.
func (r *rig) settle(d systems.Delivery) {
	r.t.Helper()
	want := evidence.AckSent
	if r.system.Describe().Profile.AckConfirms {
		want = evidence.AckConfirmed
	}
	if outcome, err := d.Ack(r.ctx); outcome != want {
		r.t.Fatalf("acknowledge: %v (%v), want %v", outcome, err, want)
	}
	r.settled[businessOf(d.Message())] = true
}

// marked checks a delivery's mark and attempt; n is the least its attempt can
// be.
func (r *rig) marked(d systems.Delivery, n int) {
	r.t.Helper()
	if attempt, known := d.Attempt(); known && attempt < n {
		r.t.Errorf("delivery %d of a message counts itself as attempt %d", n, attempt)
	}
	want := evidence.MarkNone
	if r.system.Describe().Profile.MarksAgain {
		want = evidence.MarkFirst
		if n > 1 {
			want = evidence.MarkRedelivered
		}
	}
	if d.Mark() != want {
		r.t.Errorf("delivery %d of a message is marked %q, want %q", n, d.Mark(), want)
	}
}

func (r *rig) sameAgain(first, second systems.Delivery) {
	r.t.Helper()
	r.marked(first, 1)
	r.marked(second, 2)
	one, two := first.Message(), second.Message()
	if one.MessageID != two.MessageID {
		r.t.Errorf("delivered as %q, then again as %q", one.MessageID, two.MessageID)
	}
	if digestOf(one) != digestOf(two) {
		r.t.Error("the redelivery differs from the first delivery")
	}
}

// unreachable publishes on a new session where nothing can be reached. Opening
// may fail, or succeed and refuse; there is only one try either way.
func (r *rig) unreachable(where, address string) {
	r.t.Helper()
	p, err := r.instance.Producer(r.ctx, systems.ProducerOptions{Name: "p9", Session: r.session("p9"), Address: address})
	if err != nil {
		if !errors.Is(err, systems.ErrUnavailable) {
			r.t.Errorf("open a session to %s: %v, want ErrUnavailable", where, err)
		}
		return
	}
	defer r.close(p)
	if receipt := r.send(p, r.message("order-9", "to nobody")).Receipt(r.ctx); receipt.Acceptance != evidence.Rejected {
		r.t.Errorf("publish to %s: %+v, want rejected", where, receipt)
	}
}

// next returns the delivery of one business ID, and nothing may be delivered
// before it: what was settled is not redelivered, unless a fault struck under
// which the profile does not claim that acknowledgements are final. again, if not
// nil, republishes what may have been lost.
func (r *rig) next(c systems.Consumer, businessID string, again func()) systems.Delivery {
	r.t.Helper()
	for {
		d := r.receiveOr(c, again)
		id := businessOf(d.Message())
		if id == businessID {
			return d
		}
		if !r.settled[id] || len(r.fired) == 0 || r.claims(evidence.AckIsFinal, r.fired...) {
			r.t.Fatalf("received %s ahead of %s: it was settled, refused or never sent", id, businessID)
		}
		if r.claims(evidence.StableRedeliveryID, r.fired...) {
			r.marked(d, 2)
		}
		r.settle(d)
	}
}

// receiveOr receives, calling again every second until a delivery arrives.
func (r *rig) receiveOr(c systems.Consumer, again func()) systems.Delivery {
	r.t.Helper()
	if again == nil {
		return r.receive(c)
	}
	for {
		ctx, cancel := context.WithTimeout(r.ctx, time.Second)
		d, err := c.Receive(ctx)
		cancel()
		if err == nil {
			return d
		}
		if !errors.Is(err, context.DeadlineExceeded) || r.ctx.Err() != nil {
			r.t.Fatalf("receive: %v", err)
		}
		again()
	}
}

// onlySentinel publishes one more message and checks that nothing else is
// delivered: what was settled is not redelivered, and what was refused was
// never stored. A system that may lose messages may lose the sentinel on a dead
// session, and then gets another; so call it last.
func (r *rig) onlySentinel(p systems.Producer, c systems.Consumer) {
	r.t.Helper()
	publish := func() { r.accepted(r.send(p, r.message("sentinel", ""))) }
	publish()
	var again func()
	if r.forgets() {
		again = publish
	}
	r.settle(r.next(c, "sentinel", again))
}

// onlySentinelAmong is onlySentinel for consumers of which any may receive it.
func (r *rig) onlySentinelAmong(p systems.Producer, consumers ...systems.Consumer) {
	r.t.Helper()
	r.accepted(r.send(p, r.message("sentinel", "")))
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	type result struct {
		id  string
		err error
	}
	results := make(chan result, len(consumers))
	for _, c := range consumers {
		tasks.Go(func() {
			id, err := receiveAndAck(ctx, c)
			results <- result{id, err}
		})
	}
	if first := <-results; first.err != nil || first.id != "sentinel" {
		r.t.Errorf("received %q (%v), want the sentinel and nothing ahead of it", first.id, first.err)
	}
	cancel()
	for range len(consumers) - 1 {
		if other := <-results; other.id != "" || !errors.Is(other.err, context.Canceled) {
			r.t.Errorf("received %q (%v) beside the sentinel", other.id, other.err)
		}
	}
}

func (r *rig) rows(i systems.Inspector) evidence.Snapshot {
	r.t.Helper()
	s, err := i.Rows(r.ctx)
	r.must("read the stored rows", err)
	if s.Trust != evidence.CountsOnly && s.Count != len(s.Rows) {
		r.t.Fatalf("the snapshot counts %d rows and shows %d", s.Count, len(s.Rows))
	}
	return s
}

// await waits for an error that must be want.
func (r *rig) await(what string, result <-chan error, want error) {
	r.t.Helper()
	select {
	case err := <-result:
		if !errors.Is(err, want) {
			r.t.Errorf("%s: %v, want %v", what, err, want)
		}
	case <-r.ctx.Done():
		r.t.Fatalf("%s: nothing within %v", what, r.within)
	}
}

// eventually polls: not every store signals a change.
func (r *rig) eventually(what string, holds func() bool) {
	r.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-r.ctx.Done():
			r.t.Fatalf("not within %v: %s", r.within, what)
		}
	}
}

func businessOf(m systems.Message) string {
	e, err := evidence.ParseEnvelope(m.Payload)
	if err != nil {
		return "a foreign payload"
	}
	return e.BusinessID
}

func digestOf(m systems.Message) string { return evidence.Digest(m.Payload, m.Key, m.Headers) }

// sink counts recorded events.
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
	if process := e.Kind == evidence.ProcessStarted || e.Kind == evidence.ProcessExited; !process || e.Actor == "broker" { // not one beside the broker, such as its database server
		s.kinds[e.Kind]++
	}
	s.seq++
	return s.seq
}

func (s *sink) count(k evidence.Kind) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kinds[k]
}
