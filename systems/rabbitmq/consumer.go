package rabbitmq

import (
	"context"
	"errors"
	"fmt"

	client "github.com/rabbitmq/amqp091-go"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// consumer receives from a destination's queue with a prefetch of its window.
// Safe for concurrent use.
type consumer struct {
	*session
	profile     Profile
	destination string
	deliveries  <-chan client.Delivery
}

func (c *clients) consumer(ctx context.Context, o systems.ConsumerOptions) (*consumer, error) {
	queue, err := c.queueOf(o.Destination)
	if err != nil {
		return nil, err
	}
	if err := c.makeQueue(ctx, o.Destination); err != nil {
		return nil, err
	}
	consumer := &consumer{profile: c.profile, destination: o.Destination}
	consumer.session, err = dial(ctx, c.endpoint(o.Address), o.Session, c.profile.scaled(openTimeout), func(ch *client.Channel) error {
		if err := ch.Qos(max(o.Window, 1), 0, false); err != nil {
			return err
		}
		consumer.deliveries, err = ch.Consume(queue, o.Session, c.profile.autoAck, false, false, false, nil)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("rabbitmq: subscribe %s to %s: %w", o.Subscription, o.Destination, err)
	}
	return consumer, nil
}

func (c *consumer) Receive(ctx context.Context) (systems.Delivery, error) {
	if c.ended() { // buffered deliveries are requeued
		return nil, systems.ErrDisconnected
	}
	select {
	case d, ok := <-c.deliveries:
		if !ok {
			_ = c.Close(ctx) // cancelled by the server, or the session ended
			return nil, systems.ErrDisconnected
		}
		return &delivery{consumer: c, message: decode(c.destination, d), d: d}, nil
	case <-c.gone:
		return nil, systems.ErrDisconnected
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// delivery is one message held by the application.
type delivery struct {
	consumer *consumer
	message  systems.Message
	d        client.Delivery
}

func (d *delivery) Message() systems.Message { return d.message }

// Attempt is counted by quorum queues only.
func (d *delivery) Attempt() (int, bool) {
	if d.consumer.profile.queueType != quorum {
		return 0, false
	}
	return deliveries(d.d), true
}

// Mark is the redelivered flag. It may be set on a message that no consumer has
// seen; classic queues set it on all that they recover after a crash.
func (d *delivery) Mark() evidence.Mark {
	if d.d.Redelivered {
		return evidence.MarkRedelivered
	}
	return evidence.MarkFirst
}

// Ack sends basic.ack, which has no reply, or nothing with automatic
// acknowledgement.
func (d *delivery) Ack(context.Context) (evidence.AckOutcome, error) {
	if d.consumer.profile.autoAck {
		return evidence.AckSent, nil
	}
	return d.answer("ack", d.d.Ack(false))
}

// Nack requeues the message. AMQP carries no reason.
func (d *delivery) Nack(context.Context, string) (evidence.AckOutcome, error) {
	if d.consumer.profile.autoAck {
		return evidence.AckRefused, errors.New("rabbitmq: an automatically acknowledged message cannot be rejected")
	}
	return d.answer("nack", d.d.Nack(false, true))
}

func (d *delivery) answer(what string, err error) (evidence.AckOutcome, error) {
	if err != nil {
		return evidence.AckUnknown, fmt.Errorf("rabbitmq: %s of %s: %w: %w", what, d.message.MessageID, systems.ErrDisconnected, err)
	}
	return evidence.AckSent, nil
}
