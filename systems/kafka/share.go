package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// shareConsumer is a member of a share group (KIP-932), in which each message
// is acknowledged by itself. Safe for concurrent use; one Receive at a time
// waits for the broker.
//
// kgo accepts what was not acknowledged when it polls anew. So it is asked for
// one message at a time, and not before the last one is settled: the window is
// always one.
type shareConsumer struct {
	*session
	profile   Profile
	names     names
	receiving chan struct{} // held by the one Receive that waits
	results   chan error    // of the one acknowledgement that is under way

	mu      sync.Mutex
	current *shareDelivery // nil: none in the application's hands
}

func (c *clients) shareConsumer(ctx context.Context, o systems.ConsumerOptions, topic string) (systems.Consumer, error) {
	p := c.profile
	group := c.names.group(o.Subscription, o.Destination)
	if err := c.fromStart(ctx, group); err != nil {
		return nil, err
	}
	s := &shareConsumer{session: p.newSession(o.Address), profile: p, names: c.names, receiving: make(chan struct{}, 1), results: make(chan error, 1)}
	joined := newJoining(kmsg.ShareGroupHeartbeat)
	err := s.start(p, o.Session,
		kgo.WithHooks(joined),
		kgo.ShareGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.FetchMaxWait(p.scaled(fetchWait)),
		kgo.ShareMaxRecords(1),
		kgo.ShareMaxRecordsStrict(), // and fetches only when polled
		kgo.ShareAckCallback(s.acknowledged),
	)
	if err != nil {
		return nil, err
	}
	if err := s.opened(ctx, joined.done); err != nil {
		s.close(ctx, false)
		return nil, err
	}
	return s, nil
}

// Close leaves the group; the broker gives what was not settled to another member.
func (s *shareConsumer) Close(ctx context.Context) error {
	s.close(ctx, true)
	return nil
}

func (s *shareConsumer) Receive(ctx context.Context) (systems.Delivery, error) {
	select {
	case s.receiving <- struct{}{}:
		defer func() { <-s.receiving }()
	case <-s.gone:
		return nil, s.disconnected()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := s.settledLast(ctx); err != nil {
		return nil, err
	}
	r, err := s.poll(ctx)
	if err != nil {
		return nil, err
	}
	d := &shareDelivery{consumer: s, record: r, message: s.names.decode(r), settled: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = d
	return d, nil
}

// settledLast waits until the last delivery is settled. One that is still open
// when its lock has run out is the broker's again; the session ends, so that it
// is not accepted by the next poll.
func (s *shareConsumer) settledLast(ctx context.Context) error {
	s.mu.Lock()
	d := s.current
	s.mu.Unlock()
	if d == nil {
		return nil
	}
	timer := time.NewTimer(s.profile.scaled(lockDuration))
	defer timer.Stop()
	select {
	case <-d.settled:
		return nil
	case <-timer.C:
		s.close(ctx, true)
		return fmt.Errorf("%w: a message was not settled within %v", systems.ErrDisconnected, s.profile.scaled(lockDuration))
	case <-s.gone:
		return s.disconnected()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// acknowledged is called by the client with the broker's answers.
func (s *shareConsumer) acknowledged(_ *kgo.Client, results kgo.ShareAckResults) {
	var err error
	for _, r := range results {
		err = errors.Join(err, r.Err)
	}
	select {
	case s.results <- err:
	default: // of an acknowledgement whose caller has gone
	}
}

// shareDelivery is one message in the hands of the application.
type shareDelivery struct {
	consumer *shareConsumer
	record   *kgo.Record
	message  systems.Message
	answered atomic.Bool
	settled  chan struct{} // closed when it is answered
}

func (d *shareDelivery) Message() systems.Message { return d.message }

func (d *shareDelivery) Attempt() (int, bool) { return int(d.record.DeliveryCount()), true }

func (d *shareDelivery) Mark() evidence.Mark {
	if d.record.DeliveryCount() > 1 {
		return evidence.MarkRedelivered
	}
	return evidence.MarkFirst
}

// Ack accepts the message.
func (d *shareDelivery) Ack(ctx context.Context) (evidence.AckOutcome, error) {
	return d.answer(ctx, kgo.AckAccept)
}

// Nack releases the message, for any member to take. It waits a little before,
// for a handler that always fails must not spin.
func (d *shareDelivery) Nack(ctx context.Context, _ string) (evidence.AckOutcome, error) {
	pause := time.NewTimer(d.consumer.profile.scaled(nackDelay))
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
		return evidence.AckUnknown, ctx.Err()
	}
	return d.answer(ctx, kgo.AckRelease)
}

// answer sends one acknowledgement and waits for the broker's word on it.
func (d *shareDelivery) answer(ctx context.Context, status kgo.AckStatus) (evidence.AckOutcome, error) {
	s := d.consumer
	if !d.answered.CompareAndSwap(false, true) {
		return evidence.AckRefused, fmt.Errorf("kafka: answer to %s: it has been answered already", d.message.MessageID)
	}
	defer close(d.settled)
	select {
	case <-s.results: // of an earlier one, whose caller has gone
	default:
	}
	ctx, cancel := s.within(ctx)
	defer cancel()
	d.record.Ack(status)
	err := s.client.FlushAcks(ctx)
	if err == nil {
		select {
		case err = <-s.results:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	var refused *kerr.Error
	switch {
	case err == nil:
		return evidence.AckConfirmed, nil
	case errors.As(err, &refused):
		return evidence.AckRefused, fmt.Errorf("kafka: answer to %s: %w", d.message.MessageID, err)
	}
	select {
	case <-s.gone:
		err = errors.Join(s.disconnected(), err)
	default:
	}
	return evidence.AckUnknown, fmt.Errorf("kafka: answer to %s: %w", d.message.MessageID, err)
}
