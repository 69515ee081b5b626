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

// rows reads every topic of the run from its start, and sets it against what
// each group has committed: what lies before is processed, the rest pending. A
// topic has one row of a message for each of its groups, or one if it has none.
//
// A share group shows the offset before which all is settled, which follows with
// a delay, and how many messages it has not settled: none is exact. Neither is
// what is shown while a transaction is open, for then nothing behind it is.
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

// log is what was read of the run's topics. A log is only appended to, so that
// it is read on from where the last look ended, unless the broker may have been
// struck in between.
type log struct {
	mu       sync.Mutex
	next     map[place]int64 // the offset to read on from
	messages []stored
}

// place is one partition of a topic.
type place struct {
	topic     string
	partition int32
}

type stored struct {
	place  place
	offset int64
	row    evidence.StoredRow
}

// readLog brings the log up to date as far as it is committed; open says that it
// goes on behind that. appended says that nothing but that has happened to it
// since the last look. log.mu is held.
func (r *run) readLog(ctx context.Context, appended bool) (open bool, err error) {
	if r.log.next == nil || !appended {
		r.log.next, r.log.messages = make(map[place]int64), nil
	}
	ends, open, err := r.committedEnds(ctx)
	if err != nil {
		return false, err
	}
	from, until := make(map[string]map[int32]kgo.Offset), make(map[place]int64)
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
	reader, err := kgo.NewClient(append(r.profile.reaching(r.address), kgo.ConsumePartitions(from),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())...) // the marks of transactions have offsets too
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
			at := place{m.Topic, m.Partition}
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

// committedEnds tells how far the topics of the run are committed. A broker
// answers a commit before it marks it in the topic, so that this is waited for a
// little; open says that some messages are still neither committed nor aborted.
func (r *run) committedEnds(ctx context.Context) (ends map[place]int64, open bool, err error) {
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

func (r *run) endsNow(ctx context.Context) (ends map[place]int64, open bool, err error) {
	last, err := r.admin.ListEndOffsets(ctx)
	if err != nil {
		return nil, false, fmt.Errorf("kafka: read the ends of the topics: %w", err)
	}
	committed, err := r.admin.ListCommittedOffsets(ctx)
	if err != nil {
		return nil, false, fmt.Errorf("kafka: read how far the topics are committed: %w", err)
	}
	ends = make(map[place]int64)
	for topic, partitions := range committed {
		if !r.names.has(topic) {
			continue
		}
		for partition, end := range partitions {
			if end.Err != nil {
				return nil, false, fmt.Errorf("kafka: read the end of %s: %w", topic, end.Err)
			}
			ends[place{topic, partition}] = end.Offset
			if l, known := last.Lookup(topic, partition); known && l.Offset > end.Offset {
				open = true
			}
		}
	}
	return ends, open, nil
}

// offsets are the next ones of a logical subscriber, by topic and partition.
type offsets map[string]map[int32]int64

// committed gives the offsets of every group of the run, by its subscription.
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

// settledBy gives the offset before which a group has settled everything.
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
		next[partition] = o.StartOffset // negative before the group's first fetch
		if o.Lag == 0 {
			next[partition] = r.log.next[place{topic, partition}]
		}
	}
	return next, nil
}

// rowsOf a message: one for each logical subscriber of its topic.
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
