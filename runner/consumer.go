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
	clients     systems.Clients
	address     string
	db          applier
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
	failures map[string]int // by business ID
}

// applier is the part of the business database a consumer uses. Its error is a
// failure of the harness, never of the application.
type applier interface {
	Apply(ctx context.Context, m business.Delivery, log bool) (business.Outcome, error)
}

func newConsumer(spec script.Consumer, clients systems.Clients, address string, db applier, sink evidence.Sink, rt tasks.Runtime, call time.Duration, desc systems.Description, defect string) *consumer {
	seeded, _ := defects.Find(defect)
	return &consumer{spec: spec, clients: clients, address: address, db: db, sink: sink, rt: rt, call: call,
		stableIDs: takesMessageID(desc), holdsWindow: unsettledHoldsWindow(desc.Profile), acksEarly: seeded.AcksEarly}
}

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

// handle processes one delivery: effect and consumption log in one transaction,
// then the acknowledgement.
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
	step := func(k evidence.Kind, reason string) {
		n := c.event(k)
		n.BusinessID, n.PublishID, n.MessageID, n.Reason = e.BusinessID, e.PublishID, e.MessageID, reason
		c.sink.Record(n)
	}
	if c.fails(e.BusinessID) {
		step(evidence.HandlerFailed, "the handler fails on "+e.BusinessID)
		r, ok := d.(systems.Rejecter)
		if !ok && c.holdsWindow {
			return fmt.Errorf("%w: the handler fails on %s, and only a new session can continue", systems.ErrDisconnected, e.BusinessID)
		}
		return c.settleDelivery(ctx, e, evidence.NackCalled, evidence.NackReturned, func(ctx context.Context) (evidence.AckOutcome, error) {
			if ok {
				return r.Nack(ctx, "the handler fails on "+e.BusinessID)
			}
			return evidence.AckUnknown, errors.New("this system has no negative acknowledgement; the message is left unsettled")
		})
	}
	acknowledge := func() error { return c.settleDelivery(ctx, e, evidence.AckCalled, evidence.AckReturned, d.Ack) }
	if c.acksEarly {
		if err := acknowledge(); err != nil {
			return err
		}
	}
	if err := c.work(ctx, e.BusinessID); err != nil {
		return err
	}
	step(evidence.EffectCalled, "")
	outcome, err := c.db.Apply(ctx, business.Delivery{Subscriber: subscription(c.spec), BusinessID: e.BusinessID,
		PublishID: e.PublishID, MessageID: e.MessageID, Digest: e.Digest, LogKey: c.logKey(e)}, c.spec.Idempotent)
	switch {
	case err != nil && ctx.Err() != nil: // stopped meanwhile: not acknowledged, so it is redelivered
		step(evidence.EffectFailed, err.Error())
		return ctx.Err()
	case err != nil:
		return fmt.Errorf("the harness's business database: %w", err)
	}
	step(effectKinds[outcome], "")
	if c.acksEarly {
		return nil
	}
	return acknowledge()
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

var effectKinds = map[business.Outcome]evidence.Kind{
	business.Committed: evidence.EffectCommitted, business.Absorbed: evidence.EffectAbsorbed,
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
