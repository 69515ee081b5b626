package simulated

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/custodymq/custody/broker/wire"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/zeromq"
)

// client is one session. Like broker/client it never reconnects and never
// retries.
type client struct {
	in        *instance
	conn      *conn
	welcome   bool
	opened    time.Duration
	last      uint64
	calls     map[uint64]*call
	mode      wire.Mode
	request   uint64 // of its subscription
	delivered []wire.Message
	talks     bool     // packets go to a talk instead of the client
	heard     []packet // by a talk
	err       error
}

// call is a request in flight.
type call struct {
	in    *instance
	done  bool
	reply wire.Message
	err   error
}

var (
	errRefused = errors.New("simulated: refused by the broker")
	errClosed  = errors.New("simulated: closed")
)

// dial opens a session over the link with this address, or directly if it is
// empty.
func (in *instance) dial(ctx context.Context, name, address string, mode wire.Mode) (*client, error) {
	if err := in.Sleep(ctx, in.Jitter()); err != nil {
		return nil, err
	}
	c := &client{in: in, calls: map[uint64]*call{}, last: 1, opened: in.Now(), mode: mode}
	c.conn = in.connect(address, c)
	if c.conn == nil {
		return nil, fmt.Errorf("simulated: nobody listens: %w", systems.ErrUnavailable)
	}
	in.OnKill(func() { c.end(errClosed) })
	in.OnFreeze(func(still func() bool) { c.conn.silent(evidence.ToBroker, still) })
	if err := c.conn.send(evidence.ToBroker, &wire.Message{Kind: wire.Hello, Request: 1, Client: name}); err != nil {
		return nil, err
	}
	if err := in.Wait(ctx, func() bool { return c.welcome || c.err != nil }); err != nil || c.err != nil {
		err = errors.Join(systems.ErrUnavailable, err, c.err)
		c.end(errClosed)
		return nil, err
	}
	return c, nil
}

// Close ends the session immediately.
func (c *client) Close(context.Context) error {
	c.end(errClosed)
	return nil
}

func (c *client) end(why error) {
	if c.err != nil {
		return
	}
	c.err = errors.Join(systems.ErrDisconnected, why)
	for _, call := range c.calls {
		call.done, call.err = true, c.err
	}
	c.calls, c.delivered = nil, nil
	c.conn.hangUp(evidence.ToClient)
}

// take handles a packet from the connection.
func (c *client) take(x packet) {
	if c.talks {
		c.heard = append(c.heard, x)
		return
	}
	m, err := wire.DecodeParts(x.parts[0], x.parts[1])
	if err != nil {
		c.end(err)
		return
	}
	switch m.Kind {
	case wire.Welcome:
		c.welcome = true
	case wire.Deliver:
		if m.Request == c.request {
			c.delivered = append(c.delivered, m)
		}
	default:
		asked := c.calls[m.Request]
		if asked == nil {
			if m.Kind == wire.Error && m.Request <= 1 {
				c.end(errors.New(m.Reason))
			}
			return // a duplicate, or its call was abandoned
		}
		delete(c.calls, m.Request)
		asked.done, asked.reply = true, m
		if m.Kind == wire.Error {
			asked.err = fmt.Errorf("%w: %s", errRefused, m.Reason)
		}
	}
}

// ask writes a request. On error nothing was written.
func (c *client) ask(m wire.Message) (*call, error) {
	if c.err != nil {
		return nil, c.err
	}
	m.Request = c.last + 1
	if err := c.conn.send(evidence.ToBroker, &m); err != nil {
		return nil, err
	}
	c.last++
	asked := &call{in: c.in}
	c.calls[m.Request] = asked
	return asked, nil
}

// answer waits for the reply to a call.
func (a *call) answer(ctx context.Context) (wire.Message, error) {
	if err := a.in.Wait(ctx, func() bool { return a.done }); err != nil {
		return wire.Message{}, fmt.Errorf("simulated: no answer: %w", err)
	}
	return a.reply, a.err
}

func (c *client) call(ctx context.Context, m wire.Message) (wire.Message, error) {
	asked, err := c.ask(m)
	if err != nil {
		return wire.Message{}, err
	}
	return asked.answer(ctx)
}

func (in *instance) admin(ctx context.Context, command, messageID string) error {
	c, err := in.dial(ctx, "administrator", "", wire.AtLeastOnce)
	if err != nil {
		return err
	}
	defer c.end(errClosed)
	m, err := c.call(ctx, wire.Message{Kind: wire.Admin, Topic: command, MessageID: messageID})
	if err == nil && m.Answer != wire.Accepted {
		err = fmt.Errorf("%w: %s", errRefused, m.Reason)
	}
	return err
}

// producer is a session that publishes.
type producer struct{ *client }

// Producer opens a session.
func (in *instance) Producer(ctx context.Context, o systems.ProducerOptions) (systems.Producer, error) {
	c, err := in.dial(ctx, o.Name, o.Address, in.system.Mode(o.Mode))
	if err != nil {
		return nil, err
	}
	return producer{c}, nil
}

type pending struct {
	call *call
	mode wire.Mode
	err  error // nothing was written
}

func (p producer) Send(ctx context.Context, m systems.Message) (systems.Pending, error) {
	message, err := zeromq.PublishOf(p.mode, m)
	if err != nil {
		return nil, err
	}
	sent := &pending{mode: p.mode}
	if sent.err = context.Cause(ctx); sent.err == nil {
		sent.call, sent.err = p.ask(message)
	}
	return sent, nil
}

func (p *pending) Receipt(ctx context.Context) systems.Receipt {
	a, err := evidence.Rejected, p.err
	if err == nil {
		var m wire.Message
		if m, err = p.call.answer(ctx); err == nil {
			return zeromq.ReceiptOf(p.mode, m)
		}
		if !errors.Is(err, errRefused) {
			a = evidence.Unknown
		}
	}
	return systems.Receipt{Acceptance: a, ClientResult: err.Error(), Reason: err.Error()}
}

// Lookup asks the broker what became of a business ID.
func (p producer) Lookup(ctx context.Context, businessID string) (systems.Resolution, error) {
	if p.mode == wire.AtMostOnce {
		return systems.Resolution{Reason: "at-most-once keeps nothing to look up"}, nil
	}
	m, err := p.call(ctx, wire.Message{Kind: wire.Lookup, BusinessID: businessID, TTL: zeromq.LookBack(p.in.Now() - p.opened)})
	if err != nil {
		return systems.Resolution{}, err
	}
	return zeromq.ResolutionOf(m), nil
}

// consumer is a session that subscribes.
type consumer struct{ *client }

// Consumer opens a session and subscribes.
func (in *instance) Consumer(ctx context.Context, o systems.ConsumerOptions) (systems.Consumer, error) {
	c, err := in.dial(ctx, o.Name, o.Address, in.system.Mode(o.Mode))
	if err != nil {
		return nil, err
	}
	c.request = c.last + 1
	m, err := c.call(ctx, wire.Message{Kind: wire.Subscribe, Topic: o.Destination, Group: o.Subscription, Mode: c.mode, Credit: o.Window})
	switch {
	case err == nil && m.Answer == wire.Accepted:
		return consumer{c}, nil
	case err == nil:
		err = fmt.Errorf("%w: %s", errRefused, m.Reason)
	case !errors.Is(err, errRefused):
		err = errors.Join(systems.ErrUnavailable, err)
	}
	c.end(errClosed)
	return nil, err
}

func (c consumer) Receive(ctx context.Context) (systems.Delivery, error) {
	if err := c.in.Wait(ctx, func() bool { return c.err != nil || len(c.delivered) > 0 }); err != nil {
		return nil, err
	}
	if c.err != nil {
		return nil, c.err
	}
	m := c.delivered[0]
	c.delivered = c.delivered[1:]
	if c.mode == wire.AtMostOnce {
		// The delivery used up a credit: grant another.
		_ = c.conn.send(evidence.ToBroker, &wire.Message{Kind: wire.Credit, Request: c.request, Credit: 1})
	}
	return zeromq.NewDelivery(m, c.mode, settler{c.client, m}), nil
}

// settler of one delivery.
type settler struct {
	c *client
	m wire.Message
}

func (s settler) Ack(ctx context.Context) (wire.Message, error) {
	return s.c.call(ctx, wire.Message{Kind: wire.Ack, MessageID: s.m.MessageID, Attempt: s.m.Attempt})
}

func (s settler) Nack(ctx context.Context, reason string) (wire.Message, error) {
	return s.c.call(ctx, wire.Message{Kind: wire.Nack, MessageID: s.m.MessageID, Attempt: s.m.Attempt, Reason: reason})
}
