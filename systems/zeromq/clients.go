package zeromq

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/custodymq/custody/broker/client"
	"github.com/custodymq/custody/broker/wire"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// clients opens sessions with the broker.
type clients struct {
	profile Profile
	token   string
	address string // used by an actor without a link
}

func (c clients) dial(ctx context.Context, name, address string) (*client.Conn, error) {
	if address == "" {
		address = c.address
	}
	conn, err := client.Dial(ctx, address, client.Options{Name: name, Token: c.token, Heartbeat: c.profile.period(heartbeat)})
	if errors.Is(err, client.ErrRefused) {
		return nil, fmt.Errorf("zeromq: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("zeromq: %w: %w", systems.ErrUnavailable, err)
	}
	return conn, nil
}

// Producer opens a session.
func (c clients) Producer(ctx context.Context, o systems.ProducerOptions) (systems.Producer, error) {
	conn, err := c.dial(ctx, o.Name, o.Address)
	if err != nil {
		return nil, err
	}
	mode := c.profile.Mode(o.Mode)
	return &producer{conn: conn, mode: mode, held: c.profile.HeldBy(mode), opened: time.Now()}, nil
}

type producer struct {
	conn   *client.Conn
	mode   wire.Mode
	held   evidence.HeldBy
	opened time.Time
}

func (p *producer) Send(ctx context.Context, m systems.Message) (systems.Pending, error) {
	message, err := PublishOf(p.mode, m)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return &pending{err: fmt.Errorf("zeromq: send: cancelled before anything was written: %w", err)}, nil
	}
	call, err := p.conn.Publish(ctx, message)
	return &pending{call: call, err: err, held: p.held}, nil
}

func (p *producer) Close(context.Context) error { return p.conn.Close() }

// Lookup asks the broker what became of a business ID.
func (p *producer) Lookup(ctx context.Context, businessID string) (systems.Resolution, error) {
	if p.mode == wire.AtMostOnce {
		return systems.Resolution{Reason: "at-most-once keeps nothing to look up"}, nil
	}
	m, err := p.conn.Lookup(ctx, businessID, LookBack(time.Since(p.opened)))
	if err != nil {
		return systems.Resolution{}, fmt.Errorf("zeromq: lookup %s: %w", businessID, err)
	}
	return ResolutionOf(m), nil
}

type pending struct {
	call *client.Call
	err  error
	held evidence.HeldBy
}

func (p *pending) Receipt(ctx context.Context) systems.Receipt {
	if p.err != nil { // no frame was written
		return systems.Receipt{Acceptance: evidence.Rejected, ClientResult: p.err.Error(), Reason: p.err.Error()}
	}
	m, err := p.call.Wait(ctx)
	switch {
	case err == nil:
		return ReceiptOf(p.held, m)
	case errors.Is(err, client.ErrRefused), errors.Is(err, client.ErrDisconnected) && !p.call.Written():
		return systems.Receipt{Acceptance: evidence.Rejected, ClientResult: err.Error(), Reason: err.Error()}
	}
	return systems.Receipt{Acceptance: evidence.Unknown, ClientResult: err.Error(), Reason: err.Error()}
}

// Consumer opens a session and subscribes.
func (c clients) Consumer(ctx context.Context, o systems.ConsumerOptions) (systems.Consumer, error) {
	conn, err := c.dial(ctx, o.Name, o.Address)
	if err != nil {
		return nil, err
	}
	f := client.Filter{Topic: o.Destination, Group: o.Subscription, Mode: c.profile.Mode(o.Mode), Window: o.Window}
	sub, err := conn.Subscribe(ctx, f)
	if err != nil {
		conn.Close()
		if errors.Is(err, client.ErrRefused) {
			return nil, fmt.Errorf("zeromq: subscribe to %s: %w", o.Destination, err)
		}
		return nil, fmt.Errorf("zeromq: subscribe to %s: %w: %w", o.Destination, systems.ErrUnavailable, err)
	}
	return &consumer{conn: conn, sub: sub, mode: f.Mode}, nil
}

type consumer struct {
	conn *client.Conn
	sub  *client.Subscription
	mode wire.Mode
}

func (c *consumer) Receive(ctx context.Context) (systems.Delivery, error) {
	d, err := c.sub.Receive(ctx)
	if err != nil {
		return nil, translate(err)
	}
	return NewDelivery(d.Message, c.mode, settler{d}), nil
}

func (c *consumer) Close(context.Context) error { return c.conn.Close() }

func translate(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, client.ErrDisconnected):
		return fmt.Errorf("zeromq: %w: %w", systems.ErrDisconnected, err)
	}
	return fmt.Errorf("zeromq: %w", err)
}

// settler settles one delivery through the client library.
type settler struct{ d *client.Delivery }

func (s settler) Ack(ctx context.Context) (wire.Message, error) {
	m, err := s.d.Ack(ctx)
	return m, translate(err)
}

// Nack leaves the delay to the broker's backoff.
func (s settler) Nack(ctx context.Context, reason string) (wire.Message, error) {
	m, err := s.d.Nack(ctx, client.Rejection{Reason: reason})
	return m, translate(err)
}
