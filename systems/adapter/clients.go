package adapter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// clients opens sessions through one process of the adapter.
type clients struct {
	*conn
	profile profile
}

// session is one session of a client.
type session struct {
	conn *conn
	name string
	gone chan struct{} // closed once why is set

	mu   sync.Mutex
	why  error
	take func(line) error // a delivery; nil for a producer
}

// open opens a session by a call.
func (c clients) open(ctx context.Context, op, name string, params any, take func(line) error) (*session, error) {
	s := &session{conn: c.conn, name: name, gone: make(chan struct{}), take: take}
	c.mu.Lock()
	if before := c.sessions[name]; before != nil && !before.ended() {
		c.mu.Unlock()
		return nil, fmt.Errorf("adapter: the session %q is open", name)
	}
	if c.broken != nil {
		defer c.mu.Unlock()
		return nil, c.broken
	}
	c.sessions[name] = s
	c.mu.Unlock()
	err := c.call(ctx, op, params, nil)
	if err == nil {
		return s, nil
	}
	s.end(err)
	return nil, err
}

func (s *session) end(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.why == nil {
		s.why = why
		close(s.gone)
	}
}

func (s *session) ended() bool {
	select {
	case <-s.gone:
		return true
	default:
		return false
	}
}

// reason is valid once gone is closed.
func (s *session) reason() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.why
}

func (s *session) deliver(l line) error {
	switch {
	case s.take == nil:
		return fmt.Errorf("a delivery to %s, which is a producer's session", s.name)
	case s.ended():
		return nil // under way when it was closed
	}
	return s.take(l)
}

// Close ends the session, also in the adapter. An adapter that broke says so in
// conn.close.
func (s *session) Close(ctx context.Context) error {
	s.end(systems.ErrDisconnected)
	if s.conn.brokenBy() != nil {
		return nil
	}
	return s.conn.call(ctx, "close", inSession{s.name}, nil)
}

type inSession struct {
	Session string `json:"session"`
}

func (c clients) Producer(ctx context.Context, o systems.ProducerOptions) (systems.Producer, error) {
	s, err := c.open(ctx, "producer", o.Session, struct {
		inSession
		Name    string `json:"name"`
		Address string `json:"address,omitempty"`
		Mode    string `json:"mode,omitempty"`
	}{inSession{o.Session}, o.Name, o.Address, string(o.Mode)}, nil)
	if err != nil {
		return nil, err
	}
	p := &producer{s}
	if c.profile.able(systems.NeedLookup) {
		return resolver{p}, nil
	}
	return p, nil
}

// producer publishes on one session.
type producer struct{ *session }

// Send writes the call. What the adapter answers is the receipt.
func (p *producer) Send(ctx context.Context, m systems.Message) (systems.Pending, error) {
	switch {
	case ctx.Err() != nil:
		return systems.Resolved(systems.Rejected.Receipt(context.Cause(ctx), "cancelled before anything was written")), nil
	case p.conn.brokenBy() != nil:
		return nil, p.conn.brokenBy()
	case p.ended():
		return systems.Resolved(systems.Rejected.Receipt(p.reason(), "the session was gone before anything was written")), nil
	}
	k, err := p.conn.begin("send", struct {
		inSession
		Message message `json:"message"`
	}{inSession{p.name}, wire(m)})
	if err != nil {
		return nil, err
	}
	return &pending{conn: p.conn, call: k}, nil
}

// pending is a send that is not answered.
type pending struct {
	conn *conn
	call *call

	once    sync.Once
	receipt systems.Receipt
}

type receipt struct {
	Acceptance evidence.Acceptance `json:"acceptance"`
	HeldBy     evidence.HeldBy     `json:"heldBy"`
	MessageID  string              `json:"messageId"`
	Duplicate  bool                `json:"duplicate"`
	Cause      evidence.Cause      `json:"cause"`
	Told       string              `json:"told"`
	Reason     string              `json:"reason"`
}

func (p *pending) Receipt(ctx context.Context) systems.Receipt {
	p.once.Do(func() { p.receipt = p.wait(ctx) })
	return p.receipt
}

func (p *pending) wait(ctx context.Context) systems.Receipt {
	var r receipt
	err := p.conn.await(ctx, p.call, &r)
	p.conn.mu.Lock()
	left := p.call.left
	p.conn.mu.Unlock()
	switch {
	case p.conn.brokenBy() != nil && err != nil:
		return systems.Unknown.Receipt(err, "the adapter broke before the answer")
	case err != nil && left:
		return systems.Unknown.Receipt(err, "it had left before")
	case err != nil:
		return systems.Rejected.Receipt(err, "it had not left")
	case !left && (r.Acceptance == evidence.Accepted || r.Acceptance == evidence.Unknown):
		err := p.conn.fail(fmt.Errorf("send was answered %s without the event left before: tell left when the message is written, and reject what never was", r.Acceptance))
		return systems.Unknown.Receipt(err, "the adapter contradicts itself")
	}
	told := r.Told
	if told == "" && r.Acceptance == evidence.Accepted {
		told = systems.OK
	} else if told == "" {
		told = r.Acceptance.String()
	}
	return systems.Receipt{Acceptance: r.Acceptance, HeldBy: r.HeldBy, MessageID: r.MessageID, Duplicate: r.Duplicate, Cause: r.Cause, ClientResult: told, Reason: r.Reason}
}

// resolver is a producer that can look up what became of a publish.
type resolver struct{ *producer }

func (p resolver) Lookup(ctx context.Context, businessID string) (systems.Resolution, error) {
	var r struct {
		Acceptance evidence.Acceptance `json:"acceptance"`
		Standing   evidence.Standing   `json:"standing"`
		MessageID  string              `json:"messageId"`
		Cause      evidence.Cause      `json:"cause"`
		Reason     string              `json:"reason"`
	}
	err := p.conn.call(ctx, "lookup", struct {
		inSession
		BusinessID string `json:"businessId"`
	}{inSession{p.name}, businessID}, &r)
	return systems.Resolution(r), err
}

func (c clients) Consumer(ctx context.Context, o systems.ConsumerOptions) (systems.Consumer, error) {
	k := &consumer{rejects: c.profile.able(systems.NeedNack), arrived: make(chan struct{}, 1), held: make(map[string]bool)}
	s, err := c.open(ctx, "consumer", o.Session, struct {
		inSession
		Name         string `json:"name"`
		Address      string `json:"address,omitempty"`
		Mode         string `json:"mode,omitempty"`
		Destination  string `json:"destination"`
		Subscription string `json:"subscription"`
		Window       int    `json:"window"`
		Seat         int    `json:"seat"`
	}{inSession{o.Session}, o.Name, o.Address, string(o.Mode), o.Destination, o.Subscription, max(o.Window, 1), o.Seat}, k.keep)
	if err != nil {
		return nil, err
	}
	k.session = s
	return k, nil
}

// consumer receives on one session. Deliveries wait here until the application
// takes them.
type consumer struct {
	*session // nil until it is opened
	rejects  bool
	arrived  chan struct{}

	queueing sync.Mutex
	queue    []line
	held     map[string]bool // deliveries that are not settled
}

// maxHeld bounds the deliveries of a session that are not settled.
const maxHeld = 1 << 16

// keep queues a delivery; it runs in the reading task.
func (c *consumer) keep(l line) error {
	c.queueing.Lock()
	defer c.queueing.Unlock()
	switch {
	case c.held[l.Delivery]:
		return fmt.Errorf("delivery %q of session %s is not settled, and another has the same name", l.Delivery, l.Session)
	case len(c.held) >= maxHeld:
		return fmt.Errorf("more than %d deliveries of session %s are not settled", maxHeld, l.Session)
	}
	c.held[l.Delivery] = true
	c.queue = append(c.queue, l)
	select {
	case c.arrived <- struct{}{}:
	default:
	}
	return nil
}

func (c *consumer) next() (line, bool) {
	c.queueing.Lock()
	defer c.queueing.Unlock()
	if len(c.queue) == 0 {
		return line{}, false
	}
	l := c.queue[0]
	c.queue = slices.Delete(c.queue, 0, 1)
	return l, true
}

func (c *consumer) Receive(ctx context.Context) (systems.Delivery, error) {
	for {
		if c.ended() {
			return nil, c.reason()
		}
		if l, ok := c.next(); ok {
			d := &delivery{consumer: c, line: l}
			if c.rejects {
				return rejecter{d}, nil
			}
			return d, nil
		}
		select {
		case <-c.arrived:
		case <-c.gone:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// delivery is one message held by the application.
type delivery struct {
	consumer *consumer
	line     line
}

func (d *delivery) Message() systems.Message { return d.line.Message.system() }

func (d *delivery) Attempt() (int, bool) { return d.line.Attempt, d.line.Attempt > 0 }

func (d *delivery) Mark() evidence.Mark { return d.line.Mark }

func (d *delivery) Ack(ctx context.Context) (evidence.AckOutcome, error) {
	return d.settle(ctx, "ack", "")
}

// rejecter is a delivery that can be given back.
type rejecter struct{ *delivery }

func (d rejecter) Nack(ctx context.Context, reason string) (evidence.AckOutcome, error) {
	return d.settle(ctx, "nack", reason)
}

func (d *delivery) settle(ctx context.Context, op, reason string) (evidence.AckOutcome, error) {
	c := d.consumer
	if c.ended() {
		return evidence.AckUnknown, fmt.Errorf("adapter: %s was not sent: %w", op, c.reason())
	}
	c.queueing.Lock()
	delete(c.held, d.line.Delivery)
	c.queueing.Unlock()
	var r struct {
		Outcome evidence.AckOutcome `json:"outcome"`
		Reason  string              `json:"reason"`
	}
	err := c.conn.call(ctx, op, struct {
		inSession
		Delivery string `json:"delivery"`
		Reason   string `json:"reason,omitempty"`
	}{inSession{c.name}, d.line.Delivery, reason}, &r)
	switch {
	case err != nil:
		return evidence.AckUnknown, err
	case r.Outcome.Settles():
		return r.Outcome, nil
	}
	return r.Outcome, errors.New("adapter: " + op + " was answered " + r.Outcome.String() + ": " + r.Reason)
}
