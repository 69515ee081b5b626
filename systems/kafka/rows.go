package kafka

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/custodymq/custody/evidence"
)

// Rows reads every topic of the run from its start, and sets it against what
// each group has committed: what lies before is processed, the rest pending. A
// topic has one row of a message for each of its groups, or one if it has none.
//
// A share group shows how many messages it has not settled, and not which: taken
// for the last ones.
func (in *instance) Rows(ctx context.Context) (evidence.Snapshot, error) {
	snapshot := evidence.Snapshot{Source: evidence.SourceBroker, Trust: evidence.Exact}
	if in.profile.share {
		snapshot.Trust = evidence.Lagging
	}
	err := administer(ctx, in.broker.address, func(admin administrator) error {
		committed, err := in.committed(ctx, admin)
		if err != nil {
			return err
		}
		records, err := in.log(ctx, admin)
		for _, r := range records {
			snapshot.Rows = append(snapshot.Rows, in.rowsOf(r, committed)...)
		}
		return err
	})
	if err != nil {
		return evidence.Snapshot{}, err
	}
	snapshot.Count = len(snapshot.Rows)
	return snapshot, nil
}

// offsets are the next ones of a logical subscriber, by topic and partition.
type offsets map[string]map[int32]int64

// committed gives the offsets of every group of the run, by its subscription.
func (in *instance) committed(ctx context.Context, admin administrator) (map[string]offsets, error) {
	groups, err := in.groups(ctx, admin)
	if err != nil {
		return nil, err
	}
	all := make(map[string]offsets)
	for _, group := range groups {
		subscription, destination, _ := in.names.subscriber(group)
		topic, err := in.names.topic(destination)
		if err != nil {
			return nil, err
		}
		if all[subscription] == nil {
			all[subscription] = make(offsets)
		}
		next := make(map[int32]int64)
		all[subscription][topic] = next
		if in.profile.share {
			described, err := admin.DescribeShareGroupOffsets(ctx, group)
			if err != nil {
				return nil, err
			}
			ends, err := admin.ListEndOffsets(ctx, topic)
			if err != nil {
				return nil, err
			}
			for partition, o := range described[group].Offsets[topic] {
				if o.Lag >= 0 { // negative before the group's first fetch
					next[partition] = ends[topic][partition].Offset - o.Lag
				}
			}
			continue
		}
		fetched, err := admin.FetchOffsets(ctx, group)
		if err != nil {
			return nil, err
		}
		for partition, o := range fetched[topic] {
			next[partition] = o.At
		}
	}
	return all, nil
}

// log reads the topics of the run from their start to their end.
func (in *instance) log(ctx context.Context, admin administrator) ([]*kgo.Record, error) {
	ends, err := admin.ListEndOffsets(ctx)
	if err != nil {
		return nil, err
	}
	type place struct {
		topic     string
		partition int32
	}
	open := make(map[place]int64) // how far is still to be read
	from := make(map[string]map[int32]kgo.Offset)
	for topic, partitions := range ends {
		if !in.names.has(topic) {
			continue
		}
		for partition, end := range partitions {
			if end.Err != nil {
				return nil, end.Err
			}
			if end.Offset > 0 {
				open[place{topic, partition}] = end.Offset
				if from[topic] == nil {
					from[topic] = make(map[int32]kgo.Offset)
				}
				from[topic][partition] = kgo.NewOffset().AtStart()
			}
		}
	}
	if len(open) == 0 {
		return nil, nil
	}
	reader, err := kgo.NewClient(kgo.SeedBrokers(in.broker.address), kgo.ConsumePartitions(from), kgo.DisableClientMetrics(), kgo.MetadataMinAge(metadataAge))
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	var records []*kgo.Record
	for len(open) > 0 {
		fetches := reader.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, errors.Join(context.Cause(ctx), err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			records = append(records, r)
			at := place{r.Topic, r.Partition}
			if end, reading := open[at]; reading && r.Offset+1 >= end {
				delete(open, at)
			}
		})
	}
	return records, nil
}

// rowsOf a message: one for each logical subscriber of its topic.
func (in *instance) rowsOf(r *kgo.Record, committed map[string]offsets) (rows []evidence.StoredRow) {
	m := in.names.decode(r)
	row := evidence.StoredRow{
		State:       evidence.RowPending,
		MessageID:   m.MessageID,
		Destination: m.Destination,
		Digest:      evidence.Digest(m.Payload, m.Key, m.Headers),
	}
	// A payload that is not ours has a digest and no IDs.
	if e, err := evidence.ParseEnvelope(m.Payload); err == nil {
		row.BusinessID, row.PublishID = e.BusinessID, e.PublishID
	}
	for _, subscription := range slices.Sorted(maps.Keys(committed)) {
		next, subscribed := committed[subscription][r.Topic]
		if !subscribed {
			continue
		}
		one := row
		one.Subscription = subscription
		if r.Offset < next[r.Partition] {
			one.State = evidence.RowProcessed
		}
		rows = append(rows, one)
	}
	if rows == nil {
		rows = append(rows, row)
	}
	return rows
}
