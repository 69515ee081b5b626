package redis

import (
	"cmp"
	"context"
	"fmt"

	client "github.com/redis/go-redis/v9"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/tasks"
)

// listener receives the messages of one channel. Every listener gets every
// message: pub/sub has no competing consumers. Safe for concurrent use.
type listener struct {
	*session
	destination string
	messages    chan *client.Message
	done        chan struct{} // closed when its goroutine has ended
}

// listenerBuffer is how many messages wait for Receive; beyond it the server's
// output buffer fills.
const listenerBuffer = 128

func (c clients) listen(ctx context.Context, o systems.ConsumerOptions) (systems.Consumer, error) {
	var sub *client.PubSub
	s, err := c.profile.open(ctx, cmp.Or(o.Address, c.address), func(ctx context.Context, s *session) error {
		sub = s.client.Subscribe(ctx, c.name(o.Destination))
		_, err := sub.Receive(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	l := &listener{session: s, destination: o.Destination, messages: make(chan *client.Message, listenerBuffer), done: make(chan struct{})}
	tasks.Go(func() { l.run(sub) })
	return l, nil
}

// run passes messages on until the session ends.
func (l *listener) run(sub *client.PubSub) {
	defer close(l.done)
	defer l.end()
	for {
		m, err := sub.ReceiveMessage(context.Background()) // ends with the connection
		if err != nil {
			return
		}
		select {
		case l.messages <- m:
		case <-l.gone:
			return
		}
	}
}

func (l *listener) Receive(ctx context.Context) (systems.Delivery, error) {
	select { // arrived messages are delivered even after the session's end
	case m := <-l.messages:
		return l.delivery(m)
	default:
	}
	select {
	case m := <-l.messages:
		return l.delivery(m)
	case <-l.gone:
		return nil, systems.ErrDisconnected
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *listener) delivery(m *client.Message) (systems.Delivery, error) {
	message, err := unwrap(l.destination, []byte(m.Payload))
	if err != nil {
		return nil, fmt.Errorf("redis: channel %s: %w", m.Channel, err)
	}
	return channelDelivery{message}, nil
}

// Close ends the session. Messages not yet received are lost.
func (l *listener) Close(ctx context.Context) error {
	l.end()
	return ended(ctx, l.done)
}

// channelDelivery is a message of a channel, which the server does not keep.
type channelDelivery struct{ message systems.Message }

func (h channelDelivery) Message() systems.Message { return h.message }
func (h channelDelivery) Attempt() (int, bool)     { return 0, false }
func (h channelDelivery) Mark() evidence.Mark      { return evidence.MarkNone }

// Ack does nothing: there is nothing to settle.
func (h channelDelivery) Ack(context.Context) (evidence.AckOutcome, error) {
	return evidence.AckSent, nil
}
