package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// rows reads every topic of the run and compares it with what each group has
// committed: earlier messages are processed, the rest pending. A message has a
// row per group of its topic, or one if there is none.
//
// Trust is less than exact for a share group, which reports with a delay the
// offset before which all is settled and how many messages are not; and while a
// transaction is open, which hides everything behind it.
func (r *run) rows(ctx context.Context, appended bool) (evidence.Snapshot, error) {
	snapshot := evidence.Snapshot{Source: evidence.SourceBroker, Trust: evidence.Exact}
	if r.profile.share {
		snapshot.Trust = evidence.Lagging
	}
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	open, err := r.readLog(ctx, appended)
	if err != nil {
		return evidence.Snapshot{}, err
	}
	if open {
		snapshot.Trust = evidence.Lagging
	}
	committed, err := r.committed(ctx)
	if err != nil {
		return evidence.Snapshot{}, err
	}
	for _, message := range r.log.messages {
		snapshot.Rows = append(snapshot.Rows, rowsOf(message, committed)...)
	}
	snapshot.Count = len(snapshot.Rows)
	return snapshot, nil
}

// log is what was read of the run's topics. Topics are append-only, so reading
// continues where it ended unless the broker may have been struck in between.
type log struct {
	mu       sync.Mutex
	next     map[topicPartition]int64 // offset to continue from
	messages []stored
}

// topicPartition is one partition of a topic.
type topicPartition struct {
	topic     string
	partition int32
}

type stored struct {
	place  topicPartition
	offset int64
	row    evidence.StoredRow
}

// readLog updates the log up to the last committed message; open reports that
// there are later ones. appended says that topics were only appended to since
// the last call. log.mu is held.
func (r *run) readLog(ctx context.Context, appended bool) (open bool, err error) {
	if r.log.next == nil || !appended {
		r.log.next, r.log.messages = make(map[topicPartition]int64), nil
	}
	ends, open, err := r.committedEnds(ctx)
	if err != nil {
		return false, err
	}
	from, until := make(map[string]map[int32]kgo.Offset), make(map[topicPartition]int64)
	for at, end := range ends {
		if end > r.log.next[at] {
			if from[at.topic] == nil {
				from[at.topic] = make(map[int32]kgo.Offset)
			}
			from[at.topic][at.partition] = kgo.NewOffset().At(r.log.next[at])
			until[at] = end
		}
	}
	if len(until) == 0 {
		return open, nil
	}
	reader, err := kgo.NewClient(append(r.profile.clientOptions(r.address), kgo.ConsumePartitions(from),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())...) // transaction markers have offsets too
	if err != nil {
		return false, fmt.Errorf("kafka: read the topics: %w", err)
	}
	defer reader.Close()
	for len(until) > 0 {
		fetches := reader.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return false, fmt.Errorf("kafka: read the topics: %w", errors.Join(context.Cause(ctx), err))
		}
		fetches.EachRecord(func(m *kgo.Record) {
			at := topicPartition{m.Topic, m.Partition}
			if !m.Attrs.IsControl() {
				r.log.messages = append(r.log.messages, stored{at, m.Offset, systems.RowOf(r.names.decode(m), evidence.RowPending)})
			}
			r.log.next[at] = m.Offset + 1
			if r.log.next[at] >= until[at] {
				delete(until, at)
			}
		})
	}
	return open, nil
}

// committedEnds returns the last stable offsets of the run's topics. A broker
// answers a commit before it writes the marker, so this waits briefly; open
// reports that transactions are still open.
func (r *run) committedEnds(ctx context.Context) (ends map[topicPartition]int64, open bool, err error) {
	patience := time.NewTimer(r.profile.scaled(markWait))
	defer patience.Stop()
	tick := time.NewTicker(backoff)
	defer tick.Stop()
	for {
		if ends, open, err = r.endsNow(ctx); err != nil || !open {
			return ends, open, err
		}
		select {
		case <-tick.C:
		case <-patience.C:
			return ends, open, nil
		case <-ctx.Done():
			return nil, false, context.Cause(ctx)
		}
	}
}

func (r *run) endsNow(ctx context.Context) (ends map[topicPartition]int64, open bool, err error) {
	last, err := r.admin.ListEndOffsets(ctx)
	if err != nil {
		return nil, false, fmt.Errorf("kafka: read the ends of the topics: %w", err)
	}
	committed, err := r.admin.ListCommittedOffsets(ctx)
	if err != nil {
		return nil, false, fmt.Errorf("kafka: read how far the topics are committed: %w", err)
	}
	ends = make(map[topicPartition]int64)
	for topic, partitions := range committed {
		if !r.names.has(topic) {
			continue
		}
		for partition, end := range partitions {
			if end.Err != nil {
				return nil, false, fmt.Errorf("kafka: read the end of %s: %w", topic, end.Err)
			}
			ends[topicPartition{topic, partition}] = end.Offset
			if l, known := last.Lookup(topic, partition); known && l.Offset > end.Offset {
				open = true
			}
		}
	}
	return ends, open, nil
}

// offsets are a logical subscriber's next ones, by topic and partition.
type offsets map[string]map[int32]int64

// committed returns the offsets of every group of the run, by subscription.
func (r *run) committed(ctx context.Context) (map[string]offsets, error) {
	groups, err := r.groups(ctx)
	if err != nil {
		return nil, err
	}
	all := make(map[string]offsets)
	for _, group := range groups {
		subscription, destination, _ := r.names.subscriber(group)
		topic, err := r.names.topic(destination)
		if err != nil {
			return nil, err
		}
		next, err := r.settledBy(ctx, group, topic)
		if err != nil {
			return nil, fmt.Errorf("kafka: read what %s has settled: %w", group, err)
		}
		if all[subscription] == nil {
			all[subscription] = make(offsets)
		}
		all[subscription][topic] = next
	}
	return all, nil
}

// settledBy returns the offset before which a group has settled everything.
func (r *run) settledBy(ctx context.Context, group, topic string) (map[int32]int64, error) {
	next := make(map[int32]int64)
	if !r.profile.share {
		fetched, err := r.admin.FetchOffsets(ctx, group)
		for partition, o := range fetched[topic] {
			next[partition] = o.At
		}
		return next, err
	}
	described, err := r.admin.DescribeShareGroupOffsets(ctx, group)
	if err != nil {
		return nil, err
	}
	for partition, o := range described[group].Offsets[topic] {
		next[partition] = o.StartOffset // negative before the first fetch
		if o.Lag == 0 {
			next[partition] = r.log.next[topicPartition{topic, partition}]
		}
	}
	return next, nil
}

// rowsOf returns a message's rows, one per logical subscriber of its topic.
func rowsOf(m stored, committed map[string]offsets) (rows []evidence.StoredRow) {
	for _, subscription := range slices.Sorted(maps.Keys(committed)) {
		next, subscribed := committed[subscription][m.place.topic]
		if !subscribed {
			continue
		}
		row := m.row
		row.Subscription = subscription
		if m.offset < next[m.place.partition] {
			row.State = evidence.RowProcessed
		}
		rows = append(rows, row)
	}
	if rows == nil {
		rows = append(rows, m.row)
	}
	return rows
}
