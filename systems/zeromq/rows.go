package zeromq

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/evidence"
)

// Rows reads the database directly, all partitions: the broker's own account of
// its rows is no evidence, and rows must be readable while it is down.
func (in *instance) Rows(ctx context.Context) (evidence.Snapshot, error) {
	in.mu.Lock()
	s := evidence.Snapshot{Source: evidence.SourceBroker, Trust: evidence.Exact, Partition: in.partition()}
	now := time.Now().Add(in.config.Clock)
	in.mu.Unlock()
	db, statement, err := in.database.reader()
	if err != nil {
		return s, err
	}
	defer db.Close()
	rows, err := db.QueryContext(ctx, statement)
	if err != nil {
		return s, fmt.Errorf("zeromq: read the stored rows: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var (
			p            store.Partition
			state        store.State
			r            evidence.StoredRow
			key, headers string
			expires      int64
			payload      []byte
		)
		if err := rows.Scan(&p.Connection, &p.Identity, &state, &r.Version, &r.MessageID, &r.BusinessID, &r.Destination, &r.Subscription,
			&key, &headers, &expires, &r.Attempts, &r.Reason, &payload); err != nil {
			return s, fmt.Errorf("zeromq: read a stored row: %w", err)
		}
		if r.State = RowStates[state]; r.State == evidence.RowInvalid {
			continue // the marker of a settled message, whose row is deleted
		}
		if r.Version < oldest {
			r.State = evidence.RowRefused
		}
		if r.State == evidence.RowDead && r.Reason != "" {
			r.Cause = evidence.CauseStated
		}
		r.Partition = p.String()
		r.Expired = expires != 0 && now.UnixNano() > expires
		if e, err := evidence.ParseEnvelope(payload); err == nil {
			r.PublishID = e.PublishID
			r.Digest = evidence.Digest(payload, key, headersOf(headers))
		}
		s.Rows = append(s.Rows, r)
	}
	s.Count = len(s.Rows)
	return s, rows.Err()
}

// RowStates maps the broker's row states. The marker of a settled message is
// absent: its row is deleted.
var RowStates = map[store.State]evidence.RowState{store.Pending: evidence.RowPending, store.Processed: evidence.RowProcessed, store.Dead: evidence.RowDead,
	store.RefusedVersion: evidence.RowRefused}

func headersOf(text string) map[string]string {
	if text == "" {
		return nil
	}
	var h map[string]string
	if json.Unmarshal([]byte(text), &h) != nil {
		return map[string]string{"": text} // corrupted: makes the digest differ
	}
	return h
}
