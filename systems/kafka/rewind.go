package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/custodymq/custody/systems"
)

// Position of a destination is the end of each of its partitions, as
// PARTITION:OFFSET: "0:12,1:9,2:10".
func (r *run) Position(ctx context.Context, destination string) (string, error) {
	topic, err := r.topic(ctx, destination)
	if err != nil {
		return "", err
	}
	ends, err := r.admin.ListEndOffsets(ctx, topic)
	if err = errors.Join(err, ends.Error()); err != nil {
		return "", fmt.Errorf("kafka: read the end of %s: %w", topic, err)
	}
	return position(ends.Offsets()[topic]), nil
}

func position(partitions map[int32]kadm.Offset) string {
	var parts []string
	for _, p := range slices.Sorted(maps.Keys(partitions)) {
		parts = append(parts, fmt.Sprintf("%d:%d", p, partitions[p].At))
	}
	return strings.Join(parts, ",")
}

// parsePosition is the inverse of position.
func parsePosition(topic, text string) (kadm.Offsets, error) {
	offsets := make(kadm.Offsets)
	for part := range strings.SplitSeq(text, ",") {
		number, offset, _ := strings.Cut(part, ":")
		p, err := strconv.ParseInt(number, 10, 32)
		at, bad := strconv.ParseInt(offset, 10, 64)
		if err = errors.Join(err, bad); err != nil || p < 0 || at < 0 {
			return nil, errors.Join(fmt.Errorf("kafka: position %q: write PARTITION:OFFSET,…, as Position gives it", text), err)
		}
		offsets.AddOffset(topic, int32(p), at, -1)
	}
	return offsets, nil
}

// Rewind sets the offsets of the subscriber's group. The broker refuses that
// while the group has members, including a dead one until its session times
// out: Rewind retries until ctx ends.
func (r *run) Rewind(ctx context.Context, destination, subscription string, to systems.Point) error {
	topic, err := r.topic(ctx, destination)
	if err != nil {
		return err
	}
	offsets, err := r.offsetsOf(ctx, topic, to)
	if err != nil {
		return err
	}
	group := r.names.group(subscription, destination)
	tick := time.NewTicker(backoff)
	defer tick.Stop()
	held := errors.New("the broker has not answered")
	for {
		err := r.commit(ctx, group, offsets)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, kerr.UnknownMemberID) || errors.Is(err, kerr.NonEmptyGroup):
			held = fmt.Errorf("it still has members: close its consumers first: %w", err)
		case ctx.Err() == nil:
			return fmt.Errorf("kafka: rewind group %s: %w", group, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("kafka: rewind group %s: %w: %w", group, context.Cause(ctx), held)
		}
	}
}

func (r *run) offsetsOf(ctx context.Context, topic string, to systems.Point) (kadm.Offsets, error) {
	if to.Time.IsZero() == (to.Position == "") {
		return nil, fmt.Errorf("kafka: rewind %s: give either a time or a position", topic)
	}
	if to.Position != "" {
		return parsePosition(topic, to.Position)
	}
	// The broker counts in milliseconds: start with the current one.
	found, err := r.admin.ListOffsetsAfterMilli(ctx, to.Time.UnixMilli(), topic)
	if err = errors.Join(err, found.Error()); err != nil {
		return nil, fmt.Errorf("kafka: look for %s in %s: %w", to.Time, topic, err)
	}
	return found.Offsets(), nil
}

// commit sets the offsets of an empty group.
func (r *run) commit(ctx context.Context, group string, offsets kadm.Offsets) error {
	if r.profile.share {
		altered, err := r.admin.AlterShareGroupOffsets(ctx, group, offsets)
		return errors.Join(err, altered.Error())
	}
	committed, err := r.admin.CommitOffsets(ctx, group, offsets)
	return errors.Join(err, committed.Error())
}
