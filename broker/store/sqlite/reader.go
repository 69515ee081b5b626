package sqlite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/ncruces/go-sqlite3"
)

// reader is the connection that reads: a long look at the rows does not hold up
// the writer.
type reader struct {
	store      *Store
	conn       *sqlite3.Conn
	partition  int64
	load, rows *sqlite3.Stmt
}

const columns = `SELECT ord, state, message_id, business_id, version, inserted_at, keep_until,
	topic, competitor, key, headers, expires_at, attempts, last_consumer, reason, payload
	FROM custody_row WHERE partition=?1`

// markers shows what is kept of settled rows, history or not: their IDs.
var markers = fmt.Sprintf(`SELECT ord, %d, message_id, business_id, version, inserted_at, keep_until,
	'', '', '', NULL, NULL, 0, '', '', NULL
	FROM custody_row WHERE partition=?1`, store.SettledMarker)

var loadSQL = columns + fmt.Sprintf(` AND state IN (%d, %d)`, store.Pending, store.Dead) +
	` UNION ALL ` + markers + fmt.Sprintf(` AND keep_until>?2 AND state IN (%d, %d)`, store.Processed, store.SettledMarker) +
	` ORDER BY 1`

func openReader(ctx context.Context, s *Store, partition int64) (*reader, error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	r := &reader{store: s, conn: conn, partition: partition}
	err = conn.Exec(`PRAGMA query_only=ON`)
	if err == nil {
		r.load, _, err = conn.PrepareFlags(loadSQL, sqlite3.PREPARE_PERSISTENT)
	}
	if err == nil {
		r.rows, _, err = conn.PrepareFlags(columns+` ORDER BY ord`, sqlite3.PREPARE_PERSISTENT)
	}
	if err != nil {
		return nil, errors.Join(s.wrap(err), r.close())
	}
	return r, nil
}

func (s *Store) Load(ctx context.Context, fn func(store.Row) error) error {
	return s.read(ctx, func(r *reader) *binding {
		return bind(r.load).int(r.partition).time(s.options.Now())
	}, fn)
}

func (s *Store) Rows(ctx context.Context, fn func(store.Row) error) error {
	return s.read(ctx, func(r *reader) *binding { return bind(r.rows).int(r.partition) }, fn)
}

func (s *Store) read(ctx context.Context, bind func(*reader) *binding, fn func(store.Row) error) error {
	if err := ctx.Err(); err != nil {
		return s.wrap(err)
	}
	var r *reader
	select {
	case r = <-s.reader:
	case <-s.closing:
		return s.wrap(store.ErrClosed)
	case <-ctx.Done():
		return s.wrap(fmt.Errorf("waiting for the read before: %w", ctx.Err()))
	}
	defer func() { s.reader <- r }()
	r.conn.SetInterrupt(ctx)
	defer r.conn.SetInterrupt(context.Background())

	b := bind(r)
	if b.err != nil {
		return s.wrap(b.err)
	}
	defer b.stmt.Reset()
	for b.stmt.Step() {
		row, err := r.row(b.stmt)
		if err != nil {
			return s.wrap(err)
		}
		if err := fn(store.Refuse(row)); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return s.wrap(err)
	}
	if err := b.stmt.Err(); err != nil {
		return s.wrap(err)
	}
	return nil
}

func (r *reader) row(stmt *sqlite3.Stmt) (store.Row, error) {
	row := store.Row{
		Order:        uint64(stmt.ColumnInt64(0)),
		State:        store.State(stmt.ColumnInt(1)),
		MessageID:    stmt.ColumnText(2),
		BusinessID:   stmt.ColumnText(3),
		Version:      uint8(stmt.ColumnInt(4)),
		InsertedAt:   columnTime(stmt, 5),
		KeepUntil:    columnTime(stmt, 6),
		Topic:        stmt.ColumnText(7),
		Group:        stmt.ColumnText(8),
		Key:          stmt.ColumnText(9),
		ExpiresAt:    columnTime(stmt, 11),
		Attempts:     stmt.ColumnInt(12),
		LastConsumer: stmt.ColumnText(13),
		Reason:       stmt.ColumnText(14),
		Payload:      stmt.ColumnBlob(15, nil),
		Partition:    r.store.options.Partition,
	}
	if headers := stmt.ColumnRawText(10); len(headers) > 0 && store.Readable(row.Version) {
		if err := json.Unmarshal(headers, &row.Headers); err != nil {
			return row, fmt.Errorf("headers of row %s: %w", row.MessageID, err)
		}
	}
	return row, nil
}

func columnTime(stmt *sqlite3.Stmt, column int) time.Time {
	if stmt.ColumnType(column) == sqlite3.NULL {
		return time.Time{}
	}
	return time.Unix(0, stmt.ColumnInt64(column))
}

func (r *reader) close() error { return closeAll(r.conn) }

// closeAll closes the connection with its statements: SQLite refuses to close
// one that has any left.
func closeAll(conn *sqlite3.Conn) error {
	var errs []error
	for _, stmt := range slices.Collect(conn.Stmts()) { // closing one changes the list
		errs = append(errs, stmt.Close())
	}
	return errors.Join(append(errs, conn.Close())...)
}
