package client

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/custodymq/custody/broker/wire"
)

// Filter says what to subscribe to.
type Filter struct {
	Topic string // may hold + and #
	Group string
	Mode  wire.Mode
	// Window is how many deliveries may be unacknowledged (at-least-once) or
	// unread (at-most-once). 0 admits none until Grant.
	Window int
}

// backlog is how many deliveries beyond its window a subscription buffers: when a
// delivery times out, the broker reuses its place in the window for another.
const backlog = 1024

// Subscription is a stream of deliveries. It is safe for concurrent use.
type Subscription struct {
	conn    *Conn
	filter  Filter
	request uint64
	arrived chan struct{} // capacity 1

	mu     sync.Mutex
	window int
	queue  []*Delivery
	err    error
}

// Subscribe requests deliveries and waits for the broker's answer. A nil error
// means that the broker accepted.
func (c *Conn) Subscribe(ctx context.Context, f Filter) (*Subscription, error) {
	sub := &Subscription{conn: c, filter: f, window: f.Window, arrived: make(chan struct{}, 1)}
	m := wire.Message{Kind: wire.Subscribe, Topic: f.Topic, Group: f.Group, Mode: f.Mode, Credit: f.Window}
	call, err := c.call(m, false, func(request uint64) {
		sub.request = request
		c.subs[request] = sub
	})
	if err != nil {
		return nil, err
	}
	reply, err := call.Wait(ctx)
	if err == nil && reply.Answer != wire.Accepted {
		err = fmt.Errorf("%w: subscribe to %q: %s", ErrRefused, f.Topic, reply.Reason)
	}
	if err != nil {
		c.drop(sub)
		return nil, err
	}
	return sub, nil
}

func (c *Conn) drop(sub *Subscription) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.subs, sub.request)
}

// Unsubscribe ends the subscription. The broker redelivers unacknowledged
// messages to other consumers.
func (s *Subscription) Unsubscribe(ctx context.Context) error {
	reply, err := s.conn.request(ctx, wire.Message{Kind: wire.Unsubscribe, Topic: s.filter.Topic, Group: s.filter.Group, Mode: s.filter.Mode})
	if err != nil {
		return err
	}
	s.conn.drop(s)
	s.end(ErrUnsubscribed)
	if reply.Answer != wire.Accepted {
		return fmt.Errorf("%w: unsubscribe from %q: %s", ErrRefused, s.filter.Topic, reply.Reason)
	}
	return nil
}

// Grant widens the window by n deliveries.
func (s *Subscription) Grant(n int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.credit(n); err != nil {
		return err
	}
	s.window += n
	return nil
}

func (s *Subscription) credit(n int) error {
	_, err := s.conn.send(&wire.Message{Kind: wire.Credit, Request: s.request, Credit: n})
	s.conn.conn.Flush()
	return err
}

// put buffers a delivery for Receive. The connection's reader must not block, so
// an application that stops receiving loses its connection once the buffer is
// full.
func (s *Subscription) put(m *wire.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) >= s.window+backlog {
		return fmt.Errorf("client: %d deliveries of %q were not received by the application", len(s.queue), s.filter.Topic)
	}
	s.queue = append(s.queue, &Delivery{Message: *m, sub: s})
	s.signal()
	return nil
}

func (s *Subscription) signal() {
	select {
	case s.arrived <- struct{}{}:
	default:
	}
}

func (s *Subscription) end(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = cmp.Or(s.err, cause)
	s.queue = nil // nothing that is still here can be acknowledged
	s.signal()
}

// Receive blocks until a delivery arrives. ErrDisconnected and ErrUnsubscribed
// are final.
func (s *Subscription) Receive(ctx context.Context) (*Delivery, error) {
	for {
		d, err := s.take()
		if d != nil || err != nil {
			return d, err
		}
		select {
		case <-s.arrived:
		case <-ctx.Done():
			return nil, fmt.Errorf("client: receive: %w", ctx.Err())
		}
	}
}

func (s *Subscription) take() (*Delivery, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		s.signal() // wakes the next waiter
		return nil, s.err
	}
	if len(s.queue) == 0 {
		return nil, nil
	}
	d := s.queue[0]
	s.queue[0] = nil
	s.queue = s.queue[1:]
	if len(s.queue) > 0 {
		s.signal()
	}
	if s.filter.Mode == wire.AtMostOnce {
		_ = s.credit(1) // the credit is used up: the broker may send another delivery
	}
	return d, nil
}

// Delivery is one message handed to this consumer. With at-least-once it stays
// ours until Ack, Nack, the broker's visibility timeout or the end of the
// session.
type Delivery struct {
	wire.Message
	sub *Subscription
}

// Ack acknowledges the message as processed. Accepted means that the broker will
// not deliver it again; Refused means that it no longer belongs to this consumer
// and may be redelivered.
func (d *Delivery) Ack(ctx context.Context) (wire.Message, error) {
	call, err := d.AckStart()
	if err != nil {
		return wire.Message{}, err
	}
	return call.Wait(ctx)
}

// AckStart is Ack without waiting for the answer.
func (d *Delivery) AckStart() (*Call, error) {
	return d.sub.conn.call(wire.Message{Kind: wire.Ack, MessageID: d.MessageID, Attempt: d.Attempt}, false, nil)
}

// Rejection says how to return a message.
type Rejection struct {
	Reason     string        // error text, kept with a dead letter
	Delay      time.Duration // before the next attempt; 0 selects the broker's backoff
	DeadLetter bool          // no further attempt
}

// Nack returns the message to the broker for redelivery or dead-lettering, and
// waits for the answer.
func (d *Delivery) Nack(ctx context.Context, r Rejection) (wire.Message, error) {
	call, err := d.NackStart(r)
	if err != nil {
		return wire.Message{}, err
	}
	return call.Wait(ctx)
}

// NackStart is Nack without waiting for the answer.
func (d *Delivery) NackStart(r Rejection) (*Call, error) {
	return d.sub.conn.call(wire.Message{
		Kind: wire.Nack, MessageID: d.MessageID, Attempt: d.Attempt, Reason: r.Reason, Delay: r.Delay, DeadLetter: r.DeadLetter,
	}, false, nil)
}
