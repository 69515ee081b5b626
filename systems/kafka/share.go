package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/tasks"
)

// shareConsumer receives from its logical subscriber's share group (KIP-932),
// in which messages are acknowledged individually. Safe for concurrent use; one
// Receive at a time waits for the broker.
//
// A client polls again only when it has settled its last message: kgo
// implicitly accepts what is open, Kafka's own client refuses to poll. So a
// consumer joins the group as many times as it holds messages at once.
type shareConsumer struct {
	clients   *clients
	options   systems.ConsumerOptions
	topic     string
	receiving chan struct{} // semaphore: one Receive at a time
	settled   chan struct{} // a delivery was settled
	gone      chan struct{} // closed when the first member's session ends
	ending    sync.Once

	mu      sync.Mutex
	members []*shareMember
	why     error
}

// shareMember holds one message at a time.
type shareMember struct {
	*session
	consumer *shareConsumer
	results  chan result // of the acknowledgement in progress
	busy     bool        // guarded by consumer.mu
}

// result is the broker's response to an acknowledgement.
type result struct{ err error }

func (c *clients) shareConsumer(ctx context.Context, o systems.ConsumerOptions, topic string) (systems.Consumer, error) {
	if err := c.fromStart(ctx, c.names.group(o.Subscription, o.Destination)); err != nil {
		return nil, err
	}
	s := &shareConsumer{
		clients: c, options: o, topic: topic,
		receiving: make(chan struct{}, 1), settled: make(chan struct{}, 1), gone: make(chan struct{}),
	}
	if _, err := s.join(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// join adds a member.
func (s *shareConsumer) join(ctx context.Context) (*shareMember, error) {
	p := s.clients.profile
	m := &shareMember{session: newSession(p, s.options.Address, false), consumer: s, results: make(chan result, 1)}
	joined := newJoining(kmsg.ShareGroupHeartbeat)
	err := m.start(s.options.Session,
		kgo.WithHooks(joined),
		kgo.ShareGroup(s.clients.names.group(s.options.Subscription, s.options.Destination)),
		kgo.ConsumeTopics(s.topic),
		kgo.FetchMaxWait(p.scaled(fetchWait)),
		kgo.ShareMaxRecords(1),
		kgo.ShareMaxRecordsStrict(), // fetch only when polled
		kgo.ShareAckCallback(m.acknowledged),
	)
	if err != nil {
		return nil, err
	}
	if err := m.opened(ctx, joined.done); err != nil {
		m.close(ctx, false)
		return nil, err
	}
	s.mu.Lock()
	s.members = append(s.members, m)
	s.mu.Unlock()
	tasks.Go(func() {
		<-m.gone // at the latest on Close
		s.end(m.reason())
	})
	return m, nil
}

func (s *shareConsumer) end(why error) {
	s.ending.Do(func() {
		s.mu.Lock()
		s.why = why
		s.mu.Unlock()
		close(s.gone)
	})
}

func (s *shareConsumer) disconnected() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Errorf("%w: %w", systems.ErrDisconnected, s.why)
}

// Close leaves the group; unsettled messages go to other members.
func (s *shareConsumer) Close(ctx context.Context) error {
	s.end(errOver)
	s.mu.Lock()
	members := s.members
	s.mu.Unlock()
	var leaving tasks.Group
	for _, m := range members {
		leaving.Go(func() { m.close(ctx, true) })
	}
	leaving.Wait()
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
	m, err := s.free(ctx)
	if err != nil {
		return nil, err
	}
	polling, cancel := until(ctx, s.gone)
	defer cancel()
	r, err := m.poll(polling, func() {})
	if err != nil {
		select {
		case <-s.gone:
			return nil, s.disconnected()
		default:
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m.busy = true
	return &shareDelivery{member: m, record: r, message: s.clients.names.decode(r)}, nil
}

// free returns a member that holds no message, or joins another. If none
// becomes free within the lock duration, the session ends.
func (s *shareConsumer) free(ctx context.Context) (*shareMember, error) {
	held := s.clients.profile.scaled(lockDuration)
	timer := time.NewTimer(held)
	defer timer.Stop()
	for {
		select {
		case <-s.gone:
			return nil, s.disconnected()
		default:
		}
		s.mu.Lock()
		i := slices.IndexFunc(s.members, func(m *shareMember) bool { return !m.busy })
		members := s.members
		s.mu.Unlock()
		switch {
		case i >= 0:
			return members[i], nil
		case len(members) < s.options.Window:
			return s.join(ctx)
		}
		select {
		case <-s.settled:
		case <-timer.C:
			s.end(fmt.Errorf("kafka: %d messages were not settled within %v", s.options.Window, held))
			_ = s.Close(ctx)
		case <-s.gone:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// acknowledged is called by the client with the broker's responses.
func (m *shareMember) acknowledged(_ *kgo.Client, results kgo.ShareAckResults) {
	var err error
	for _, r := range results {
		err = errors.Join(err, r.Err)
	}
	select {
	case m.results <- result{err}:
	default: // the caller no longer waits
	}
}

// shareDelivery is one message held by the application.
type shareDelivery struct {
	member   *shareMember
	record   *kgo.Record
	message  systems.Message
	answered atomic.Bool
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

// Nack releases the message to any member. The delay keeps a handler that
// always fails from spinning.
func (d *shareDelivery) Nack(ctx context.Context, _ string) (evidence.AckOutcome, error) {
	pause := time.NewTimer(d.member.consumer.clients.profile.scaled(nackDelay))
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
		return evidence.AckUnknown, ctx.Err()
	}
	return d.answer(ctx, kgo.AckRelease)
}

func (s *shareConsumer) acknowledge(m *shareMember) {
	s.mu.Lock()
	m.busy = false
	s.mu.Unlock()
	select {
	case s.settled <- struct{}{}:
	default:
	}
}

// answer sends an acknowledgement and waits for the broker's response.
func (d *shareDelivery) answer(ctx context.Context, status kgo.AckStatus) (evidence.AckOutcome, error) {
	m := d.member
	if !d.answered.CompareAndSwap(false, true) {
		return evidence.AckRefused, fmt.Errorf("kafka: answer to %s: already acknowledged", d.message.MessageID)
	}
	defer m.consumer.acknowledge(m)
	select {
	case <-m.results: // left by a caller that no longer waited
	default:
	}
	ctx, cancel := until(ctx, m.gone)
	defer cancel()
	d.record.Ack(status)
	err := m.client.FlushAcks(ctx)
	if err == nil {
		select {
		case r := <-m.results:
			err = r.err
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
	case <-m.gone:
		err = errors.Join(m.disconnected(), err)
	default:
	}
	return evidence.AckUnknown, fmt.Errorf("kafka: answer to %s: %w", d.message.MessageID, err)
}
