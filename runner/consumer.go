package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/custodymq/custody/business"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/defects"
	"github.com/custodymq/custody/tasks"
)

// consumer is one consuming actor: it opens a session, handles and acknowledges
// deliveries, and after losing the session opens another with bounded back-off.
// It runs in one goroutine, in this process or in a child.
type consumer struct {
	spec        script.Consumer
	pattern     business.Pattern
	clients     systems.Clients
	address     string
	db          database
	sink        evidence.Sink
	rt          tasks.Runtime
	call        time.Duration // deadline of one call
	stableIDs   bool          // publishers choose message IDs, so they survive a retry
	holdsWindow bool          // an unsettled delivery occupies the window until the session ends
	acksEarly   bool          // seeded defect: acknowledge before the transaction commits

	seat     int // in the pool of its logical subscriber
	sessions int // opened, by earlier incarnations too
	name     string
	calls    uint64
	failures map[string]int  // by business ID
	handled  map[string]bool // log keys, for a pattern that remembers them
}

func newConsumer(spec script.Consumer, s surroundings) (*consumer, error) {
	pattern, err := business.FindPattern(patternOf(spec))
	if err != nil {
		return nil, err
	}
	seeded, _ := defects.Find(s.defect)
	return &consumer{spec: spec, pattern: pattern, clients: s.clients, address: s.address, db: s.db, sink: s.sink, rt: s.rt, call: s.bounds.call, seat: s.seat,
		stableIDs: takesMessageID(s.desc), holdsWindow: unsettledHoldsWindow(s.desc.Profile), acksEarly: seeded.AcksEarly, handled: map[string]bool{}}, nil
}

// patternOf names the pattern of a consumer.
func patternOf(c script.Consumer) string {
	switch {
	case c.Handler != "":
		return c.Handler
	case c.Idempotent:
		return business.Idempotent
	}
	return business.Plain
}

func (c *consumer) opened() int { return c.sessions }

// subscription is the consumer's logical subscriber.
func subscription(c script.Consumer) string {
	if c.As != "" {
		return c.As
	}
	return c.Destination
}

// run consumes until ctx ends. first is the number of sessions this actor has
// had.
func (c *consumer) run(ctx context.Context, first int) error {
	c.sessions = first
	var b backoff
	for ctx.Err() == nil {
		session, err := c.open(ctx)
		if err == nil {
			b = backoff{}
			err = c.receive(ctx, session)
			c.close(ctx, session, err)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !errors.Is(err, systems.ErrDisconnected) && !errors.Is(err, systems.ErrUnavailable):
			return fmt.Errorf("runner: consumer %s: %w", c.spec.Name, err)
		}
		if b.wait(ctx, c.rt) != nil {
			return nil
		}
	}
	return nil
}

func (c *consumer) event(k evidence.Kind) evidence.Event {
	return evidence.Event{Kind: k, Actor: c.spec.Name, Session: c.name, Subscription: subscription(c.spec)}
}

func (c *consumer) open(ctx context.Context) (systems.Consumer, error) {
	bounded, cancel := c.rt.Timeout(ctx, c.call)
	defer cancel()
	c.sessions++
	c.name = fmt.Sprintf("%s#%d", c.spec.Name, c.sessions)
	e := c.event(evidence.SubscribeCalled)
	e.Destination, e.Window = c.spec.Destination, max(c.spec.Window, 1)
	c.sink.Record(e)
	s, err := c.clients.Consumer(bounded, systems.ConsumerOptions{Name: c.spec.Name, Session: c.name, Address: c.address,
		Destination: c.spec.Destination, Subscription: subscription(c.spec), Mode: systems.Mode(c.spec.Mode), Window: max(c.spec.Window, 1), Seat: c.seat})
	e.Kind, e.OK = evidence.SubscribeReturned, err == nil
	if err != nil {
		e.Reason = err.Error()
		c.sink.Record(e)
		if bounded.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w: %w", systems.ErrUnavailable, err)
		}
		return nil, err
	}
	c.sink.Record(e)
	c.sink.Record(c.event(evidence.SessionOpened))
	return s, nil
}

func (c *consumer) close(ctx context.Context, s systems.Consumer, why error) {
	ctx, cancel := c.rt.Timeout(context.WithoutCancel(ctx), c.call)
	defer cancel()
	e := c.event(evidence.SessionEnded)
	if why != nil {
		e.Reason = why.Error()
	}
	if errors.Is(why, systems.ErrDisconnected) {
		e.Cause = evidence.CauseDisconnected
	}
	if err := s.Close(ctx); err != nil {
		e.Reason = errors.Join(why, err).Error()
	}
	c.sink.Record(e)
}

func (c *consumer) receive(ctx context.Context, s systems.Consumer) error {
	for {
		d, err := s.Receive(ctx)
		if err != nil {
			return err
		}
		if err := c.handle(ctx, d); err != nil {
			return err
		}
	}
}

// handle processes one delivery, as the consumer's pattern says.
func (c *consumer) handle(ctx context.Context, d systems.Delivery) error {
	m := d.Message()
	e := c.event(evidence.Delivered)
	e.Destination, e.MessageID, e.Key, e.Size, e.Mark = m.Destination, m.MessageID, m.Key, len(m.Payload), d.Mark()
	e.Attempt, _ = d.Attempt()
	e.Digest = evidence.Digest(m.Payload, m.Key, m.Headers)
	envelope, err := evidence.ParseEnvelope(m.Payload)
	if err != nil {
		e.Reason = err.Error()
	}
	e.BusinessID, e.PublishID = envelope.BusinessID, envelope.PublishID
	c.sink.Record(e)
	if c.spec.Silent {
		return nil
	}
	h := &handling{consumer: c, delivery: d, event: e, key: c.pattern.Key(c.logKey(e))}
	if c.pattern.AcksFirst {
		if err := h.acknowledge(ctx); err != nil {
			return err
		}
	}
	if c.fails(e.BusinessID) {
		return h.fail(ctx, evidence.HandlerFailed, "the handler fails on "+e.BusinessID)
	}
	if c.pattern.Remembers && c.handled[h.key] {
		h.step(evidence.EffectAbsorbed, "")
		return h.acknowledge(ctx)
	}
	if c.pattern.First != nil {
		if over, err := h.transact(ctx, c.pattern.First); over || err != nil {
			return err
		}
	}
	if c.acksEarly {
		if err := h.acknowledge(ctx); err != nil {
			return err
		}
	}
	if err := c.work(ctx, e.BusinessID); err != nil {
		return err
	}
	h.step(evidence.EffectCalled, "")
	for _, ops := range c.pattern.Then {
		if over, err := h.transact(ctx, ops); over || err != nil {
			return err
		}
	}
	c.handled[h.key] = c.pattern.Remembers
	return h.acknowledge(ctx)
}

// handling is the handling of one delivery.
type handling struct {
	*consumer
	delivery systems.Delivery
	event    evidence.Event // Delivered
	key      string         // in the log
	acked    bool
}

func (h *handling) step(k evidence.Kind, reason string) {
	n := h.consumer.event(k)
	n.BusinessID, n.PublishID, n.MessageID, n.Reason = h.event.BusinessID, h.event.PublishID, h.event.MessageID, reason
	h.sink.Record(n)
}

// acknowledge does so once.
func (h *handling) acknowledge(ctx context.Context) error {
	if h.acked {
		return nil
	}
	h.acked = true
	return h.settleDelivery(ctx, h.event, evidence.AckCalled, evidence.AckReturned, h.delivery.Ack)
}

// transact commits one transaction. over says that the handling ends here: with a
// repeat, or with a failure.
func (h *handling) transact(ctx context.Context, ops []business.Op) (over bool, err error) {
	e := h.event
	outcome, err := h.db.Apply(ctx, business.Delivery{Subscriber: subscription(h.spec), BusinessID: e.BusinessID,
		PublishID: e.PublishID, MessageID: e.MessageID, Digest: e.Digest, LogKey: h.key}, ops)
	switch {
	case errors.Is(err, business.ErrUnavailable):
		return true, h.fail(ctx, evidence.EffectFailed, err.Error())
	case err != nil && ctx.Err() != nil: // stopped meanwhile: not acknowledged, so it is redelivered
		h.step(evidence.EffectFailed, err.Error())
		return true, ctx.Err()
	case err != nil:
		return true, fmt.Errorf("the harness's business database: %w", err)
	case outcome == business.Absorbed:
		h.step(evidence.EffectAbsorbed, "")
		return true, h.acknowledge(ctx)
	case business.HasEffect(ops):
		h.step(evidence.EffectCommitted, "")
	}
	return false, nil
}

// fail gives the delivery back, if the system has a way to and the pattern does
// not acknowledge it.
func (h *handling) fail(ctx context.Context, kind evidence.Kind, why string) error {
	h.step(kind, why)
	if h.acked || h.pattern.AcksFailures {
		return h.acknowledge(ctx)
	}
	r, ok := h.delivery.(systems.Rejecter)
	if !ok && h.holdsWindow {
		return fmt.Errorf("%w: %s, and only a new session can continue", systems.ErrDisconnected, why)
	}
	return h.settleDelivery(ctx, h.event, evidence.NackCalled, evidence.NackReturned, func(ctx context.Context) (evidence.AckOutcome, error) {
		if ok {
			return r.Nack(ctx, why)
		}
		return evidence.AckUnknown, errors.New("this system has no negative acknowledgement; the message is left unsettled")
	})
}

// logKey returns what all publishes of one message share: its message ID if
// the publisher chooses it, else the business ID.
func (c *consumer) logKey(delivered evidence.Event) string {
	if c.stableIDs && delivered.MessageID != "" {
		return delivered.MessageID
	}
	return delivered.BusinessID
}

// unsettledHoldsWindow reports whether an unsettled delivery occupies the
// window until its session ends.
func unsettledHoldsWindow(p evidence.Profile) bool {
	switch p.Redelivers {
	case evidence.RedeliverReconnect, evidence.RedeliverRebalance:
		return true
	case evidence.RedeliverNever:
		return p.AckCounting != "automatic"
	}
	return false
}

// takesMessageID reports whether publishers of this system may choose the
// message ID.
func takesMessageID(d systems.Description) bool {
	_, lacks := d.Lacks[systems.NeedMessageID]
	return !lacks
}

// settleDelivery records an acknowledgement or rejection. An unknown outcome is
// no error, the message may be redelivered; a lost session is.
func (c *consumer) settleDelivery(ctx context.Context, delivered evidence.Event, called, returned evidence.Kind, do func(context.Context) (evidence.AckOutcome, error)) error {
	bounded, cancel := c.rt.Timeout(ctx, c.call)
	defer cancel()
	c.calls++
	e := c.event(called)
	e.BusinessID, e.PublishID, e.MessageID, e.Call = delivered.BusinessID, delivered.PublishID, delivered.MessageID, c.calls
	c.sink.Record(e)
	outcome, err := do(bounded)
	e.Kind, e.Ack = returned, outcome
	if err != nil {
		e.Reason = err.Error()
	}
	c.sink.Record(e)
	if errors.Is(err, systems.ErrDisconnected) || ctx.Err() != nil {
		return err
	}
	return nil
}
