package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// groupConsumer is a member of the consumer group of its logical subscriber.
// Safe for concurrent use; one Receive at a time waits for the broker.
//
// A group's acknowledgement is an offset, which settles all before it. So the
// offset that is committed is that of the first message still in the
// application's hands, and a message behind it is settled when that one is.
type groupConsumer struct {
	*session
	names     names
	window    int
	receiving chan struct{} // semaphore: one Receive at a time
	changed   chan struct{} // a delivery was settled
	committer chan struct{} // held by the one commit that is under way

	mu         sync.Mutex
	partitions map[int32]*progress
	open       int // deliveries in the application's hands
}

// progress in one partition: what was given from the first unsettled message on.
type progress struct{ given []*groupDelivery }

func (c *clients) groupConsumer(ctx context.Context, o systems.ConsumerOptions, topic string) (systems.Consumer, error) {
	p := c.profile
	g := &groupConsumer{
		session: newSession(p, o.Address, false), names: c.names, window: o.Window,
		receiving: make(chan struct{}, 1), changed: make(chan struct{}, 1), committer: make(chan struct{}, 1), partitions: make(map[int32]*progress),
	}
	joined, assigned := newJoining(kmsg.JoinGroup), make(chan struct{})
	var once sync.Once
	err := g.start(o.Session, append([]kgo.Opt{
		kgo.ConsumerGroup(c.names.group(o.Subscription, o.Destination)),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxWait(p.scaled(fetchWait)),
		kgo.MaxConcurrentFetches(0),   // only what is asked for
		kgo.FetchMaxPartitionBytes(1), // one batch at a time
		kgo.SessionTimeout(p.sessionTimeout()),
		kgo.RebalanceTimeout(p.sessionTimeout()),
		kgo.HeartbeatInterval(p.scaled(heartbeat)),
		kgo.Balancers(kgo.RoundRobinBalancer()),
		kgo.WithHooks(joined),
		kgo.OnPartitionsAssigned(func(context.Context, *kgo.Client, map[string][]int32) { once.Do(func() { close(assigned) }) }),
		kgo.OnPartitionsLost(func(context.Context, *kgo.Client, map[string][]int32) {
			select {
			case <-assigned:
				g.end(errors.New("kafka: the group has dropped this member"))
			default: // it was not in yet, and tries again
			}
		}),
	}, append(g.committing(topic), p.reading()...)...)...)
	if err != nil {
		return nil, err
	}
	if err := g.opened(ctx, joined.done); err != nil {
		g.close(ctx, false)
		return nil, err
	}
	// The group knows the member. It has its part once the others have given
	// theirs up; one that is dead holds that up until its session has run out.
	patience := time.NewTimer(p.scaled(assignWait))
	defer patience.Stop()
	select {
	case <-assigned:
	case <-patience.C:
	case <-g.gone:
	case <-ctx.Done():
	}
	return g, nil
}

// committing is how each way of committing configures the client.
func (g *groupConsumer) committing(topic string) []kgo.Opt {
	interval := kgo.AutoCommitInterval(max(g.profile.scaled(autoCommit), leastAutoCommit))
	switch g.profile.commit {
	case commitPolled:
		return []kgo.Opt{kgo.GreedyAutoCommit(), interval}
	case commitMarked:
		return []kgo.Opt{kgo.AutoCommitMarks(), interval}
	case commitEach:
		return []kgo.Opt{kgo.DisableAutoCommit()}
	}
	return []kgo.Opt{
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(), // not while the application holds a message
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, revoked map[string][]int32) { g.revoked(revoked[topic]) }),
	}
}

// Close leaves the group, so that another member goes on at once.
func (g *groupConsumer) Close(ctx context.Context) error {
	g.close(ctx, true)
	return nil
}

// revoked forgets what it knew of partitions that another member gets.
func (g *groupConsumer) revoked(partitions []int32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, partition := range partitions {
		if p := g.partitions[partition]; p != nil {
			g.release(p.given...)
			delete(g.partitions, partition)
		}
	}
}

func (g *groupConsumer) Receive(ctx context.Context) (systems.Delivery, error) {
	select {
	case g.receiving <- struct{}{}:
		defer func() { <-g.receiving }()
	case <-g.gone:
		return nil, g.disconnected()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := g.room(ctx); err != nil {
		return nil, err
	}
	r, err := g.poll(ctx, g.rebalance)
	if err != nil {
		return nil, err
	}
	d := &groupDelivery{consumer: g, record: r, message: g.names.decode(r)}
	if g.profile.commit != commitPrefix {
		return d, nil // what it settles does not depend on what else was given
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.partitions[r.Partition]
	if p == nil {
		p = &progress{}
		g.partitions[r.Partition] = p
	}
	p.given = append(p.given, d)
	g.open++
	return d, nil
}

// room waits until the window is not full. A member that is not asked for its
// next message in time is taken for stuck, and leaves its group, as Kafka's own
// client does after max.poll.interval.ms.
func (g *groupConsumer) room(ctx context.Context) error {
	timer := time.NewTimer(g.profile.scaled(pollInterval))
	defer timer.Stop()
	for {
		g.mu.Lock()
		full := g.open >= g.window
		g.mu.Unlock()
		if !full {
			return nil
		}
		select {
		case <-g.changed:
		case <-timer.C:
			g.close(ctx, true)
			return fmt.Errorf("%w: %d messages were not settled within %v", systems.ErrDisconnected, g.window, g.profile.scaled(pollInterval))
		case <-g.gone:
			return g.disconnected()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// groupDelivery is one message in the hands of the application.
type groupDelivery struct {
	consumer *groupConsumer
	record   *kgo.Record
	message  systems.Message
	done     bool // out of the application's hands; guarded by consumer.mu
}

func (d *groupDelivery) Message() systems.Message { return d.message }

// Attempt is not known: a group's log does not count deliveries.
func (d *groupDelivery) Attempt() (int, bool) { return 0, false }

func (d *groupDelivery) Mark() evidence.Mark { return evidence.MarkNone }

// Ack commits as the profile says.
func (d *groupDelivery) Ack(ctx context.Context) (evidence.AckOutcome, error) {
	g := d.consumer
	switch g.profile.commit {
	case commitPolled: // by the client, whatever the application does
		return evidence.AckSent, nil
	case commitMarked:
		g.client.MarkCommitRecords(d.record)
		return evidence.AckSent, nil
	case commitEach:
		return g.commit(ctx, d.record, d.record.Offset+1)
	}
	offset, news, ours := g.markSettled(d)
	defer g.rebalance() // not before the commit
	switch {
	case !ours:
		return evidence.AckRefused, fmt.Errorf("kafka: ack of %s: its partition is another member's now", d.message.MessageID)
	case !news:
		return evidence.AckUnknown, fmt.Errorf("kafka: ack of %s: an earlier message of its partition is not settled", d.message.MessageID)
	}
	return g.commit(ctx, d.record, offset)
}

// commit sets the group's offset in the partition of a record.
func (g *groupConsumer) commit(ctx context.Context, r *kgo.Record, offset int64) (evidence.AckOutcome, error) {
	select {
	case g.committer <- struct{}{}: // one after another: an offset must not go back
		defer func() { <-g.committer }()
	case <-ctx.Done():
		return evidence.AckUnknown, ctx.Err()
	}
	var err error
	code := int16(0)
	g.client.CommitOffsetsSync(ctx, map[string]map[int32]kgo.EpochOffset{r.Topic: {r.Partition: {Epoch: r.LeaderEpoch, Offset: offset}}},
		func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, response *kmsg.OffsetCommitResponse, failed error) {
			if err = failed; err != nil {
				return
			}
			for _, t := range response.Topics {
				for _, p := range t.Partitions {
					code = max(code, p.ErrorCode)
				}
			}
		})
	refused := kerr.ErrorForCode(code)
	switch {
	case err == nil && refused == nil:
		return evidence.AckConfirmed, nil
	case err == nil:
		return evidence.AckRefused, fmt.Errorf("kafka: commit of %s: %w", messageID(r), refused)
	}
	select {
	case <-g.gone:
		err = errors.Join(systems.ErrDisconnected, err)
	default:
	}
	return evidence.AckUnknown, fmt.Errorf("kafka: commit of %s: %w", messageID(r), err)
}

// markSettled takes a delivery out of the application's hands. It tells up to which
// offset everything that was given is settled, whether that is news, and
// whether the partition is still this member's.
func (g *groupConsumer) markSettled(d *groupDelivery) (offset int64, news, ours bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.partitions[d.record.Partition]
	if p == nil {
		return 0, false, false
	}
	g.release(d)
	for len(p.given) > 0 && p.given[0].done {
		offset, news = p.given[0].record.Offset+1, true
		p.given = p.given[1:]
	}
	return offset, news, true
}

// release takes deliveries out of the application's hands; g.mu is held.
func (g *groupConsumer) release(deliveries ...*groupDelivery) {
	for _, d := range deliveries {
		if !d.done {
			d.done = true
			g.open--
		}
	}
	select {
	case g.changed <- struct{}{}:
	default:
	}
}

// rebalance lets the group rebalance if the application holds no message.
func (g *groupConsumer) rebalance() {
	g.mu.Lock()
	idle := g.open == 0
	g.mu.Unlock()
	if idle {
		g.client.AllowRebalance()
	}
}

// Nack sets the member's position back, so that the message comes again, and
// with it all behind it: a group gives nothing back alone. It waits a little
// before, for a handler that always fails must not spin.
func (d *groupDelivery) Nack(ctx context.Context, _ string) (evidence.AckOutcome, error) {
	g := d.consumer
	pause := time.NewTimer(g.profile.scaled(nackDelay))
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
		return evidence.AckUnknown, ctx.Err()
	}
	defer g.rebalance()
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.partitions[d.record.Partition]
	at := -1
	if p != nil {
		at = slices.Index(p.given, d)
	}
	if at < 0 {
		return evidence.AckRefused, fmt.Errorf("kafka: nack of %s: it is no longer in this member's hands", d.message.MessageID)
	}
	g.client.SetOffsets(map[string]map[int32]kgo.EpochOffset{d.record.Topic: {d.record.Partition: {Epoch: -1, Offset: d.record.Offset}}})
	g.release(p.given[at:]...)
	p.given = p.given[:at]
	return evidence.AckConfirmed, nil
}
