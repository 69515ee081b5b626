package runner

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/custodymq/custody/business"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/tasks"
)

// producer is one publishing actor. It replaces a session that may be broken,
// with bounded back-off, and records every call. Only close may be called
// concurrently.
type producer struct {
	spec      script.Producer
	clients   systems.Clients
	address   string
	sink      evidence.Sink
	rt        tasks.Runtime
	bounds    bounds
	payload   *rand.Rand
	choosesID bool // publishers may choose the message ID
	// record commits the business row of a business ID, and with it what is left to
	// a relay: see script.Producer.
	record func(ctx context.Context, businessID string, messages ...business.Pending)

	sessions int
	session  systems.Producer
	suspect  atomic.Int64 // the session that last gave an answer other than Accepted: its connection may be gone
	calls    uint64
	count    int
	tries    map[string]*tries // by business ID
}

// tries counts the publishes of one business ID.
type tries struct {
	count, try int
	messageID  string // chosen by the publisher, or empty
	step       script.Publish
	body       []byte
	headers    map[string]string
}

// bounds are the runner's own deadlines, scaled.
type bounds struct {
	call    time.Duration // one publish, acknowledgement, lookup or session opening
	publish time.Duration // a publish repeated until accepted
}

func newProducer(spec script.Producer, clients systems.Clients, address string, sink evidence.Sink, rt tasks.Runtime, b bounds, seed uint64, names bool) *producer {
	return &producer{spec: spec, clients: clients, address: address, sink: sink, rt: rt, bounds: b,
		payload: rand.New(rand.NewPCG(seed, seedOf(spec.Name))), choosesID: names, tries: make(map[string]*tries)}
}

func (p *producer) sessionName() string { return fmt.Sprintf("%s#%d", p.spec.Name, p.sessions) }

// open ensures that there is a session.
func (p *producer) open(ctx context.Context) error {
	if p.isSuspect() {
		p.endSession(ctx, "replaced after an answer other than accepted")
	}
	if p.session != nil {
		return nil
	}
	ctx, cancel := p.rt.Timeout(ctx, p.bounds.call)
	defer cancel()
	p.sessions++
	s, err := p.clients.Producer(ctx, systems.ProducerOptions{Name: p.spec.Name, Session: p.sessionName(), Address: p.address, Mode: systems.Mode(p.spec.Mode)})
	if err != nil {
		return err
	}
	p.session = s
	p.sink.Record(evidence.Event{Kind: evidence.SessionOpened, Actor: p.spec.Name, Session: p.sessionName()})
	return nil
}

// isSuspect reports whether the current session should be replaced.
func (p *producer) isSuspect() bool {
	return p.session != nil && p.suspect.Load() == int64(p.sessions)
}

func (p *producer) endSession(ctx context.Context, why string) {
	if p.session == nil {
		return
	}
	ctx, cancel := p.rt.Timeout(context.WithoutCancel(ctx), p.bounds.call)
	defer cancel()
	if err := p.session.Close(ctx); err != nil {
		why += ": " + err.Error()
	}
	p.session = nil
	p.sink.Record(evidence.Event{Kind: evidence.SessionEnded, Actor: p.spec.Name, Session: p.sessionName(), Reason: why})
}

// publish sends the messages of one step, with at most Window unanswered. left
// blocks until a message of a cancelled publish may be cancelled.
func (p *producer) publish(ctx context.Context, step script.Publish, left func(ctx context.Context, publishID string) error) error {
	window, n := int32(max(step.Window, 1)), step.Count()
	var unanswered atomic.Int32
	unaccepted := make([]atomic.Bool, n) // to be retried
	below := func(n int32) func() bool { return func() bool { return unanswered.Load() < n } }
	uncancelled := context.WithoutCancel(ctx) // each answer is bounded by its own deadline
	tried := make([]*tries, n)
	for i := range n {
		one := step.Message(i)
		id := one.BusinessID
		tried[i] = p.firstTry(one)
		if p.spec.Outbox {
			p.record(ctx, id, p.pending(id, tried[i]))
			continue
		}
		if p.isSuspect() { // wait for the outstanding answers before replacing the session
			_ = p.rt.Wait(uncancelled, below(1))
		}
		err := p.rt.Wait(ctx, below(window))
		var receipt func() systems.Receipt
		if err == nil {
			receipt, err = p.call(ctx, id, tried[i], left)
		}
		if err != nil {
			_ = p.rt.Wait(uncancelled, below(1))
			return err
		}
		unanswered.Add(1)
		p.rt.Go(func() {
			defer p.rt.Wake()
			defer unanswered.Add(-1)
			unaccepted[i].Store(notAccepted(receipt()))
		})
		if window == 1 {
			_ = p.rt.Wait(uncancelled, below(1))
		}
	}
	_ = p.rt.Wait(uncancelled, below(1))
	if step.Until == "" || p.spec.Outbox {
		return nil
	}
	for i := range n {
		if unaccepted[i].Load() {
			if err := p.untilAccepted(ctx, step.Message(i).BusinessID, tried[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// pending is the message of a producer with an outbox. It has a message ID from
// the beginning, which every try carries.
func (p *producer) pending(id string, t *tries) business.Pending {
	m := business.Pending{BusinessID: id, MessageID: t.messageID, Destination: p.spec.Destination, Key: t.step.Key, Headers: t.headers, Body: t.body, TTL: t.step.TTL}
	if p.choosesID {
		m.MessageID = cmp.Or(t.messageID, "m-"+id)
	}
	m.TTL = cmp.Or(m.TTL, p.spec.TTL)
	return m
}

func notAccepted(r systems.Receipt) bool { return r.Acceptance != evidence.Accepted }

// untilAccepted retries until accepted or out of time, with the same message ID
// where the system can deduplicate by it. Running out of time is not an error: the
// evidence shows it.
func (p *producer) untilAccepted(ctx context.Context, id string, t *tries) error {
	bounded, cancel := p.rt.Timeout(ctx, p.bounds.publish)
	defer cancel()
	var b backoff
	for b.wait(bounded, p.rt) == nil {
		t.try++
		receipt, err := p.call(bounded, id, t, nil)
		if err != nil {
			return err
		}
		if !notAccepted(receipt()) {
			return nil
		}
	}
	return context.Cause(ctx)
}

func (p *producer) firstTry(step script.Publish) *tries {
	id := step.BusinessID
	if t, ok := p.tries[id]; ok {
		t.try++
		return t
	}
	p.count++
	t := &tries{count: p.count, try: 1, messageID: step.MessageID, step: step, body: make([]byte, step.Size)}
	if step.Until != "" && t.messageID == "" {
		t.messageID = "m-" + id
	}
	if !p.choosesID {
		t.messageID = ""
	}
	p.fill(t.body)
	t.headers = headers(p.payload, step.Headers)
	p.tries[id] = t
	return t
}

// fill makes every 256 bytes hold every byte value, in an order that differs
// between messages and producers.
func (p *producer) fill(body []byte) {
	for len(body) > 0 {
		var block [256]byte
		for i, v := range p.payload.Perm(len(block)) {
			block[i] = byte(v)
		}
		body = body[copy(body, block[:]):]
	}
}

func seedOf(name string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // never fails
	return h.Sum64()
}

// retry publishes a business ID again.
func (p *producer) retry(ctx context.Context, step script.Retry) error {
	t, ok := p.tries[step.BusinessID]
	if !ok {
		return fmt.Errorf("runner: retry %s: it was never published by %s", step.BusinessID, p.spec.Name)
	}
	again := *t
	again.try++
	t.try = again.try
	if !step.SameID {
		again.messageID = ""
	}
	again.step.Cancel = false
	receipt, err := p.call(ctx, step.BusinessID, &again, nil)
	if err != nil {
		return err
	}
	receipt()
	return nil
}

// call publishes once and records it. The function it returns waits for the
// receipt. An error is a failure to measure.
func (p *producer) call(ctx context.Context, id string, t *tries, left func(context.Context, string) error) (func() systems.Receipt, error) {
	p.calls++
	publishID := evidence.PublishID(p.spec.Name, t.count, t.try)
	m := systems.Message{Destination: p.spec.Destination, MessageID: t.messageID, Key: t.step.Key, Headers: t.headers,
		Payload: evidence.Envelope{PublishID: publishID, BusinessID: id, Body: t.body}.Encode(), TTL: t.step.TTL}
	if m.TTL == 0 {
		m.TTL = p.spec.TTL
	}
	if p.spec.Commits == script.CommitsFirst && t.try == 1 {
		p.record(ctx, id)
	}
	opening := p.open(ctx)
	session := int64(p.sessions)
	e := evidence.Event{Kind: evidence.PublishCalled, Actor: p.spec.Name, Session: p.sessionName(), Destination: m.Destination,
		BusinessID: id, PublishID: publishID, MessageID: m.MessageID, Key: m.Key, TTL: m.TTL, Size: len(m.Payload), Call: p.calls,
		Digest: evidence.Digest(m.Payload, m.Key, m.Headers)}
	p.sink.Record(e)
	returned := func(r systems.Receipt) systems.Receipt {
		if notAccepted(r) {
			p.suspect.Store(session)
		}
		e.Kind, e.MessageID, e.Acceptance, e.HeldBy, e.ClientResult, e.Reason = evidence.PublishReturned, r.MessageID, r.Acceptance, r.HeldBy, r.ClientResult, r.Reason
		e.OK, e.Duplicate, e.Cause = r.ClientResult == systems.OK, r.Duplicate, r.Cause
		e.At = 0
		p.sink.Record(e)
		if p.spec.Commits == script.CommitsLast && !notAccepted(r) {
			p.record(context.WithoutCancel(ctx), id)
		}
		return r
	}
	if opening != nil {
		// Without a session no byte of this publish was ever written.
		r := systems.Receipt{Acceptance: evidence.Rejected, ClientResult: opening.Error(), Reason: "no connection: " + opening.Error()}
		return func() systems.Receipt { return returned(r) }, nil
	}
	calling, cancel := p.rt.Timeout(ctx, p.bounds.call)
	pending, err := p.session.Send(calling, m)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("runner: publish %s by %s: %w", id, p.spec.Name, err)
	}
	if t.step.Cancel && left != nil {
		p.rt.Go(func() {
			defer cancel()
			_ = left(calling, publishID) // if it never leaves, the deadline cancels
		})
	}
	return func() systems.Receipt {
		defer cancel()
		return returned(pending.Receipt(calling))
	}, nil
}

// resolve looks up the fate of an Unknown publish. A lookup changes nothing, so
// one that lost its session is repeated on a new one.
func (p *producer) resolve(ctx context.Context, step script.Resolve) error {
	answered, err := p.lookUp(ctx, step.BusinessID)
	if err == nil && !answered {
		p.suspect.Store(int64(p.sessions))
		_, err = p.lookUp(ctx, step.BusinessID)
	}
	return err
}

// lookUp reports whether the system answered.
func (p *producer) lookUp(ctx context.Context, businessID string) (answered bool, err error) {
	if err := p.open(ctx); err != nil {
		return false, fmt.Errorf("runner: resolve %s: %w", businessID, err)
	}
	resolver, ok := p.session.(systems.Resolver)
	if !ok {
		p.sink.Record(evidence.Event{Kind: evidence.Noted, Actor: p.spec.Name, BusinessID: businessID,
			Reason: "this system has no lookup; rows and deliveries must decide"})
		return true, nil
	}
	ctx, cancel := p.rt.Timeout(ctx, p.bounds.call)
	defer cancel()
	p.calls++
	e := evidence.Event{Kind: evidence.LookupCalled, Actor: p.spec.Name, Session: p.sessionName(), BusinessID: businessID, Call: p.calls}
	p.sink.Record(e)
	r, err := resolver.Lookup(ctx, businessID)
	e.Kind, e.Acceptance, e.MessageID, e.Reason = evidence.LookupReturned, r.Acceptance, r.MessageID, r.Reason
	e.Standing, e.Cause = r.Standing, r.Cause
	if err != nil {
		e.Acceptance, e.Reason = evidence.Unknown, err.Error()
	}
	p.sink.Record(e)
	return err == nil, nil
}
