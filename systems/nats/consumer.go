package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// consumer pulls one message at a time from its logical subscriber's durable
// consumer, and only during Receive; a message that arrives after Receive was
// cancelled is kept for the next call. Safe for concurrent use; one Receive at
// a time waits for the server.
type consumer struct {
	*session
	profile   Profile
	window    *systems.Window // a delivery leaves it after AckWait, when the server redelivers
	ackWait   time.Duration
	nakDelay  time.Duration
	patience  time.Duration // after which an unanswered pull counts as lost
	pull      []byte        // body of a pull request
	next      string        // subject of a pull request
	inbox     string
	messages  chan *client.Msg
	receiving chan struct{} // semaphore: one Receive at a time
	pullEnds  time.Time     // when the outstanding pull expires; zero: none. Guarded by receiving
}

func (p Profile) consumer(ctx context.Context, o systems.ConsumerOptions) (systems.Consumer, error) {
	subject, err := subjectOf(p.stream, o.Destination)
	if err != nil {
		return nil, err
	}
	s, err := p.dial(ctx, o.Address, o.Session)
	if err != nil {
		return nil, err
	}
	var c systems.Consumer
	if p.core {
		c, err = p.listen(ctx, s, subject, o)
	} else {
		c, err = p.subscribe(ctx, s, subject, o)
	}
	if err != nil {
		s.conn.Close()
		return nil, err
	}
	return c, nil
}

func (p Profile) subscribe(ctx context.Context, s *session, subject string, o systems.ConsumerOptions) (*consumer, error) {
	js, err := jetstream.New(s.conn)
	if err != nil {
		return nil, fmt.Errorf("nats: JetStream: %w", err)
	}
	_, err = js.CreateConsumer(ctx, p.stream, p.consumerConfig(o.Destination, o.Subscription, subject))
	switch {
	case err == nil, errors.Is(err, jetstream.ErrConsumerExists): // Rewind may have created it with another start
	case unavailable(ctx, err):
		return nil, fmt.Errorf("nats: subscribe %s to %s: %w: %w", o.Subscription, o.Destination, systems.ErrUnavailable, err)
	default:
		return nil, fmt.Errorf("nats: subscribe %s to %s (a work queue has one logical subscriber for each subject): %w", o.Subscription, o.Destination, err)
	}
	pull, err := json.Marshal(map[string]int64{"batch": 1, "expires": int64(p.scaled(pullExpires))})
	if err != nil {
		return nil, fmt.Errorf("nats: pull request: %w", err)
	}
	c := &consumer{
		session:   s,
		profile:   p,
		window:    systems.NewWindow(o.Window),
		ackWait:   p.scaled(ackWait),
		nakDelay:  p.scaled(nakDelay),
		patience:  p.scaled(pullExpires + pullGrace),
		pull:      pull,
		next:      "$JS.API.CONSUMER.MSG.NEXT." + p.stream + "." + systems.SubscriberName(o.Subscription, o.Destination),
		inbox:     s.conn.NewInbox(),
		messages:  make(chan *client.Msg, 64), // ample: one pull is outstanding at a time
		receiving: make(chan struct{}, 1),
	}
	if _, err := s.conn.ChanSubscribe(c.inbox, c.messages); err != nil {
		return nil, fmt.Errorf("nats: subscribe to deliveries: %w: %w", systems.ErrUnavailable, err)
	}
	return c, nil
}

// descriptionSeparator separates subscriber and destination in a consumer's
// description.
const descriptionSeparator = " of "

// consumerConfig configures a logical subscriber's durable consumer.
func (p Profile) consumerConfig(destination, subscription, subject string) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable:       systems.SubscriberName(subscription, destination),
		Description:   subscription + descriptionSeparator + destination,
		FilterSubject: subject,
		DeliverPolicy: jetstream.DeliverAllPolicy,
		AckPolicy:     p.acks,
		AckWait:       p.scaled(ackWait),
		MaxDeliver:    p.maxDeliver,
		MaxAckPending: -1, // each session bounds its own window
	}
}

func (c *consumer) Receive(ctx context.Context) (systems.Delivery, error) {
	select {
	case c.receiving <- struct{}{}:
		defer func() { <-c.receiving }()
	case <-c.gone:
		return nil, systems.ErrDisconnected
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if c.ended() {
			return nil, systems.ErrDisconnected
		}
		if err := c.ask(ctx); err != nil {
			return nil, err
		}
		timer.Reset(time.Until(c.pullEnds))
		select {
		case msg := <-c.messages:
			c.pullEnds = time.Time{}
			d, err := c.take(msg)
			if d != nil || err != nil {
				return d, err
			}
		case <-timer.C:
		case <-c.gone:
			return nil, systems.ErrDisconnected
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// ask sends a pull request once the window has room, unless one is outstanding.
func (c *consumer) ask(ctx context.Context) error {
	if time.Now().Before(c.pullEnds) {
		return nil
	}
	if err := c.window.Wait(ctx, c.gone); err != nil {
		return err
	}
	if err := c.conn.PublishRequest(c.next, c.inbox, c.pull); err != nil {
		c.conn.Close()
		return fmt.Errorf("%w: pull: %w", systems.ErrDisconnected, err)
	}
	c.pullEnds = time.Now().Add(c.patience)
	return nil
}

// take turns the answer to a pull into a delivery; it returns neither delivery
// nor error if the pull merely expired.
func (c *consumer) take(msg *client.Msg) (systems.Delivery, error) {
	if status := msg.Header.Get("Status"); status != "" && len(msg.Data) == 0 {
		if status == "404" || status == "408" { // no messages, request timeout: pull again
			return nil, nil
		}
		c.conn.Close()
		return nil, fmt.Errorf("%w: the server ended the pull: %s %s", systems.ErrDisconnected, status, msg.Header.Get("Description"))
	}
	meta, err := msg.Metadata()
	if err != nil {
		return nil, fmt.Errorf("nats: a delivery that is not from a stream: %w", err)
	}
	message := decode(meta.Stream, messageID(meta.Stream, meta.Sequence.Stream), msg.Subject, msg.Header, msg.Data)
	if c.profile.automatic() {
		return autoAcked{message}, nil
	}
	d := &delivery{consumer: c, reply: msg.Reply, message: message, attempt: int(meta.NumDelivered)}
	c.window.Enter(d, time.Now().Add(c.ackWait))
	return d, nil
}

// delivery is one message in the hands of the application.
type delivery struct {
	consumer *consumer
	reply    string // subject of its acknowledgement
	message  systems.Message
	attempt  int
}

func (d *delivery) Message() systems.Message { return d.message }

func (d *delivery) Attempt() (int, bool) { return d.attempt, true }

func (d *delivery) Mark() evidence.Mark {
	if d.attempt > 1 {
		return evidence.MarkRedelivered
	}
	return evidence.MarkFirst
}

// Ack waits for the server's confirmation ("double ack") where the profile says
// so: the client reports a plain JetStream acknowledgement as sent even when it
// is lost.
func (d *delivery) Ack(ctx context.Context) (evidence.AckOutcome, error) {
	return d.answer(ctx, []byte("+ACK"))
}

// Nack requests a redelivery. JetStream carries no reason.
func (d *delivery) Nack(ctx context.Context, _ string) (evidence.AckOutcome, error) {
	return d.answer(ctx, fmt.Appendf(nil, `-NAK {"delay": %d}`, d.consumer.nakDelay.Nanoseconds()))
}

func (d *delivery) answer(ctx context.Context, body []byte) (evidence.AckOutcome, error) {
	if !d.consumer.profile.confirmed {
		return d.send(body)
	}
	// After AckWait the message is redelivered anyway, and a server that forgot
	// the delivery in a crash never confirms.
	ctx, cancel := context.WithTimeout(ctx, d.consumer.ackWait)
	defer cancel()
	_, err := d.consumer.conn.RequestWithContext(ctx, d.reply, body)
	switch {
	case err == nil:
		d.consumer.window.Leave(d)
		return evidence.AckConfirmed, nil
	case errors.Is(err, client.ErrNoResponders):
		d.consumer.window.Leave(d)
		return evidence.AckRefused, fmt.Errorf("nats: %s of %s: its consumer is gone: %w", body, d.message.MessageID, err)
	case errors.Is(err, client.ErrConnectionClosed):
		err = errors.Join(systems.ErrDisconnected, err)
	}
	return evidence.AckUnknown, fmt.Errorf("nats: %s of %s: %w", body, d.message.MessageID, err)
}

// send sends an acknowledgement without waiting for confirmation.
func (d *delivery) send(body []byte) (evidence.AckOutcome, error) {
	d.consumer.window.Leave(d)
	err := d.consumer.conn.Publish(d.reply, body)
	switch {
	case err == nil:
		return evidence.AckSent, nil
	case errors.Is(err, client.ErrConnectionClosed):
		err = errors.Join(systems.ErrDisconnected, err)
	}
	return evidence.AckUnknown, fmt.Errorf("nats: %s of %s: %w", body, d.message.MessageID, err)
}
