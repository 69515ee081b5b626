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

// groupConsumer is a member of its logical subscriber's consumer group. Safe
// for concurrent use; one Receive at a time waits for the broker.
//
// A group acknowledges by committing an offset, which settles everything before
// it. With commitPrefix the committed offset is therefore that of the first
// unsettled message, and later ones are settled with it.
type groupConsumer struct {
	*session
	names     names
	window    int
	receiving chan struct{} // semaphore: one Receive at a time
	changed   chan struct{} // a delivery was settled
	committer chan struct{} // semaphore: one commit at a time

	mu         sync.Mutex
	partitions map[int32]*progress
	open       int // deliveries held by the application
}

// progress in one partition: deliveries from the first unsettled one on.
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
		kgo.MaxConcurrentFetches(0),   // fetch only when polled
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
				g.end(errors.New("kafka: the group removed this member"))
			default: // not a member yet: it retries
			}
		}),
	}, append(g.commitOptions(topic), p.reading()...)...)...)
	if err != nil {
		return nil, err
	}
	if err := g.opened(ctx, joined.done); err != nil {
		g.close(ctx, false)
		return nil, err
	}
	// The group knows the member. Partitions are assigned once the others have
	// given theirs up, which for a dead member takes until its session times
	// out.
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

// commitOptions configures the client for each commit mode.
func (g *groupConsumer) commitOptions(topic string) []kgo.Opt {
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
		kgo.BlockRebalanceOnPoll(), // while the application holds a message
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, revoked map[string][]int32) { g.revoked(revoked[topic]) }),
	}
}

// Close leaves the group, so that other members take over at once.
func (g *groupConsumer) Close(ctx context.Context) error {
	g.close(ctx, true)
	return nil
}

// revoked forgets the state of partitions that move to another member.
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
	if err := g.awaitRoom(ctx); err != nil {
		return nil, err
	}
	r, err := g.poll(ctx, g.rebalance)
	if err != nil {
		return nil, err
	}
	d := &groupDelivery{consumer: g, record: r, message: g.names.decode(r)}
	if g.profile.commit != commitPrefix {
		return d, nil // settling is independent of other deliveries
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

// awaitRoom waits until the window has room. A member that polls too late is
// considered stuck and leaves its group, like Kafka's own client after
// max.poll.interval.ms.
func (g *groupConsumer) awaitRoom(ctx context.Context) error {
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

// groupDelivery is one message held by the application.
type groupDelivery struct {
	consumer *groupConsumer
	record   *kgo.Record
	message  systems.Message
	done     bool // settled or revoked; guarded by consumer.mu
}

func (d *groupDelivery) Message() systems.Message { return d.message }

// Attempt is unknown: the log of a topic counts no deliveries.
func (d *groupDelivery) Attempt() (int, bool) { return 0, false }

func (d *groupDelivery) Mark() evidence.Mark { return evidence.MarkNone }

// Ack commits as the profile's mode says.
func (d *groupDelivery) Ack(ctx context.Context) (evidence.AckOutcome, error) {
	g := d.consumer
	switch g.profile.commit {
	case commitPolled: // the client commits by itself
		return evidence.AckSent, nil
	case commitMarked:
		g.client.MarkCommitRecords(d.record)
		return evidence.AckSent, nil
	case commitEach:
		return g.commit(ctx, d.record, d.record.Offset+1)
	}
	offset, news, ours := g.markSettled(d)
	defer g.rebalance() // after the commit
	switch {
	case !ours:
		return evidence.AckRefused, fmt.Errorf("kafka: ack of %s: its partition was reassigned", d.message.MessageID)
	case !news:
		return evidence.AckUnknown, fmt.Errorf("kafka: ack of %s: an earlier message of its partition is not settled", d.message.MessageID)
	}
	return g.commit(ctx, d.record, offset)
}

// commit commits an offset in a record's partition.
func (g *groupConsumer) commit(ctx context.Context, r *kgo.Record, offset int64) (evidence.AckOutcome, error) {
	select {
	case g.committer <- struct{}{}: // serialized: an offset must not go back
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

// markSettled marks a delivery as settled. It returns the offset up to which
// everything delivered is settled, whether that advanced, and whether the
// partition is still this member's.
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

// release marks deliveries as done; g.mu is held.
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

// rebalance allows a rebalance if the application holds no message.
func (g *groupConsumer) rebalance() {
	g.mu.Lock()
	idle := g.open == 0
	g.mu.Unlock()
	if idle {
		g.client.AllowRebalance()
	}
}

// Nack seeks back to the message, which redelivers it and all that follow: a
// group cannot return a single one. The delay keeps a handler that always fails
// from spinning.
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
		return evidence.AckRefused, fmt.Errorf("kafka: nack of %s: no longer held by this member", d.message.MessageID)
	}
	g.client.SetOffsets(map[string]map[int32]kgo.EpochOffset{d.record.Topic: {d.record.Partition: {Epoch: -1, Offset: d.record.Offset}}})
	g.release(p.given[at:]...)
	p.given = p.given[:at]
	return evidence.AckConfirmed, nil
}
