package zeromq

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	_ "github.com/ncruces/go-sqlite3/driver" // registers "sqlite3"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/evidence"
)

// Rows reads the database directly, all partitions: the broker's own account of
// its rows is no evidence, and rows must be readable while it is down.
func (in *instance) Rows(ctx context.Context) (evidence.Snapshot, error) {
	in.mu.Lock()
	own, now := in.partition(), time.Now().Add(in.config.Clock)
	in.mu.Unlock()
	s, _, err := ReadRows(ctx, in.path, own, now)
	return s, err
}

// ReadRows reads the rows of a database, and when the next of them expires (zero
// if none does).
func ReadRows(ctx context.Context, path, own string, now time.Time) (s evidence.Snapshot, next time.Time, err error) {
	s = evidence.Snapshot{Source: evidence.SourceBroker, Trust: evidence.Exact, Partition: own}
	db, err := database(path, "ro")
	if err != nil {
		return s, next, err
	}
	defer db.Close()
	rows, err := db.QueryContext(ctx, `SELECT p.connection, p.identity, r.state, r.version, r.message_id, r.business_id, r.topic, r.competitor,
		r.key, coalesce(r.headers, ''), coalesce(r.expires_at, 0), r.attempts, r.reason, coalesce(r.payload, x'')
		FROM custody_row r JOIN custody_partition p ON p.id = r.partition ORDER BY r.ord`)
	if err != nil {
		return s, next, fmt.Errorf("zeromq: read the rows of %s: %w", path, err)
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
			return s, next, fmt.Errorf("zeromq: read a row of %s: %w", path, err)
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
		if at := time.Unix(0, expires); expires != 0 && !r.Expired && (next.IsZero() || at.Before(next)) {
			next = at
		}
		if e, err := evidence.ParseEnvelope(payload); err == nil {
			r.PublishID = e.PublishID
			r.Digest = evidence.Digest(payload, key, headersOf(headers))
		}
		s.Rows = append(s.Rows, r)
	}
	s.Count = len(s.Rows)
	return s, next, rows.Err()
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

func database(path, mode string) (*sql.DB, error) {
	db, err := sql.Open("sqlite3", "file:"+path+"?mode="+mode+"&_pragma=busy_timeout(5000)")
	if err != nil {
		return nil, fmt.Errorf("zeromq: open %s: %w", path, err)
	}
	return db, nil
}
