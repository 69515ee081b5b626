package nats

import (
	"context"
	"fmt"

	client "github.com/nats-io/nats.go"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// listener is a member of a core NATS queue group. Messages that the server
// pushed and Receive has not taken are lost with the session.
type listener struct {
	*session
	stream   string // first token of its subjects
	messages chan *client.Msg
}

// maxBuffered bounds the messages waiting for Receive. When it is full the client
// drops messages, which ends the session (see dial).
const maxBuffered = 1 << 16

func (p Profile) listen(ctx context.Context, s *session, subject string, o systems.ConsumerOptions) (*listener, error) {
	l := &listener{session: s, stream: p.stream, messages: make(chan *client.Msg, maxBuffered)}
	_, err := s.conn.ChanQueueSubscribe(subject, systems.SubscriberName(o.Subscription, o.Destination), l.messages)
	if err == nil {
		err = s.conn.FlushWithContext(ctx) // the PONG follows the subscription
	}
	switch {
	case err == nil:
		return l, nil
	case unavailable(ctx, err):
		return nil, fmt.Errorf("nats: subscribe %s to %s: %w: %w", o.Subscription, o.Destination, systems.ErrUnavailable, err)
	}
	return nil, fmt.Errorf("nats: subscribe %s to %s: %w", o.Subscription, o.Destination, err)
}

func (l *listener) Receive(ctx context.Context) (systems.Delivery, error) {
	if l.ended() {
		return nil, systems.ErrDisconnected
	}
	select {
	case msg := <-l.messages:
		return autoAcked{decode(l.stream, "", msg.Subject, msg.Header, msg.Data)}, nil
	case <-l.gone:
		return nil, systems.ErrDisconnected
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// autoAcked is a delivery without acknowledgement or redelivery.
type autoAcked struct{ message systems.Message }

func (h autoAcked) Message() systems.Message { return h.message }

func (h autoAcked) Attempt() (int, bool) { return 0, false }

func (h autoAcked) Mark() evidence.Mark { return evidence.MarkNone }

// Ack sends nothing: the delivery itself settled the message.
func (h autoAcked) Ack(context.Context) (evidence.AckOutcome, error) { return evidence.AckSent, nil }
