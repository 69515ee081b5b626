package zeromq

import (
	"context"
	"fmt"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/evidence"
)

// Rows reads the database directly, all partitions: the broker's own account of
// its rows is no evidence, and rows must be readable while it is down.
func (in *instance) Rows(ctx context.Context) (evidence.Snapshot, error) {
	in.mu.Lock()
	own, now, child := in.partition(), time.Now().Add(in.config.Clock), in.child
	in.mu.Unlock()
	if d, ok := in.database.(ofProcess); ok {
		return d.snapshot(ctx, child, own, now)
	}
	s, _, err := snapshotOf(ctx, in.database.rows, own, now)
	in.mu.Lock()
	defer in.mu.Unlock()
	for i := range s.Rows {
		if in.damaged[s.Rows[i].MessageID] {
			s.Rows[i].State = evidence.RowRefused
		}
	}
	return s, err
}

// ReadRows reads the rows of a file of SQLite's, and when the next of them expires
// (zero if none does).
func ReadRows(ctx context.Context, path, own string, now time.Time) (s evidence.Snapshot, next time.Time, err error) {
	return snapshotOf(ctx, file{path: path}.rows, own, now)
}

func snapshotOf(ctx context.Context, rows func(context.Context, func(store.Row) error) error, own string, now time.Time) (s evidence.Snapshot, next time.Time, err error) {
	s = evidence.Snapshot{Source: evidence.SourceBroker, Trust: evidence.Exact, Partition: own}
	stored, err := inCharge(ctx, rows)
	for _, row := range stored {
		r := evidence.StoredRow{
			State: RowStates[row.State], Partition: row.Partition.String(), Version: int(row.Version), MessageID: row.MessageID, BusinessID: row.BusinessID,
			Destination: row.Topic, Subscription: row.Group, Attempts: row.Attempts, Reason: row.Reason,
			Expired: !row.ExpiresAt.IsZero() && now.After(row.ExpiresAt),
		}
		if r.State == evidence.RowInvalid {
			continue // the marker of a settled message, whose row is deleted
		}
		if r.Version < oldest {
			r.State = evidence.RowRefused
		}
		if r.State == evidence.RowDead && r.Reason != "" {
			r.Cause = evidence.CauseStated
		}
		if !row.ExpiresAt.IsZero() && !r.Expired && (next.IsZero() || row.ExpiresAt.Before(next)) {
			next = row.ExpiresAt
		}
		if e, err := evidence.ParseEnvelope(row.Payload); err == nil {
			r.PublishID = e.PublishID
			r.Digest = evidence.Digest(row.Payload, row.Key, row.Headers)
		}
		s.Rows = append(s.Rows, r)
	}
	if err != nil {
		return s, next, fmt.Errorf("zeromq: read the stored rows: %w", err)
	}
	s.Count = len(s.Rows)
	return s, next, nil
}

// RowStates maps the broker's row states. The marker of a settled message is
// absent: its row is deleted.
var RowStates = map[store.State]evidence.RowState{store.Pending: evidence.RowPending, store.Processed: evidence.RowProcessed, store.Dead: evidence.RowDead,
	store.RefusedVersion: evidence.RowRefused}
