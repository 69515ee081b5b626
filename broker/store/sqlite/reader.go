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

// reader is a connection that reads: a long look at the rows does not hold up
// the writer.
type reader struct {
	store     *Store
	conn      *sqlite3.Conn
	partition int64
	content   *sqlite3.Stmt
}

const (
	// length looks at a value's header only: no content is read for it.
	size = `coalesce(length(payload), 0) + coalesce(octet_length(headers), 0)`

	columns = `SELECT ord, state, message_id, business_id, version, inserted_at, keep_until,
	topic, competitor, key, expires_at, attempts, last_consumer, reason, ` + size
	withoutContent = columns + `, NULL, NULL FROM custody_row `
	withContent    = columns + `, headers, payload FROM custody_row `
)

var (
	// The plus keeps SQLite off the index of the partition: the table is walked
	// in its own order, so that nothing is sorted.
	loadSQL = withoutContent + fmt.Sprintf(`WHERE +partition=?1 AND state IN (%d, %d) ORDER BY ord`, store.Pending, store.Dead)

	// What is kept of settled rows, history or not: their IDs.
	settledSQL = fmt.Sprintf(`SELECT ord, %d, message_id, business_id, version, inserted_at, keep_until,
	'', '', '', NULL, 0, '', '', 0, NULL, NULL FROM custody_row
	WHERE partition=?1 AND keep_until>=?2 AND state IN (%d, %d) ORDER BY keep_until, ord LIMIT -1 OFFSET ?3`, store.SettledMarker, store.Processed, store.SettledMarker)

	contentSQL = withContent + fmt.Sprintf(`WHERE partition=?1 AND message_id=?2 AND state IN (%d, %d)`, store.Pending, store.Dead)
)

func openReader(ctx context.Context, s *Store, partition int64) (*reader, error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	r := &reader{store: s, conn: conn, partition: partition}
	err = conn.Exec(`PRAGMA query_only=ON`)
	if err == nil {
		r.content, _, err = conn.PrepareFlags(contentSQL, sqlite3.PREPARE_PERSISTENT)
	}
	if err != nil {
		return nil, errors.Join(s.wrap(err), r.close())
	}
	return r, nil
}

// Load reads both kinds of rows from one snapshot.
func (s *Store) Load(ctx context.Context, settled int, fn func(store.Row) error) error {
	return s.read(ctx, s.reader, func(r *reader) (err error) {
		tx := r.conn.Begin()
		defer func() { err = errors.Join(err, tx.Rollback()) }()
		if settled > 0 {
			from, surplus, err := r.newest(settled)
			if err != nil {
				return err
			}
			b := r.prepare(settledSQL).int(r.partition).int(from).int(surplus)
			defer b.stmt.Close()
			if err := r.each(ctx, b, fn); err != nil {
				return err
			}
		}
		b := r.prepare(loadSQL).int(r.partition)
		defer b.stmt.Close()
		return r.each(ctx, b, fn)
	})
}

// newest says where the n newest settled rows begin: all that are kept until from
// or longer, without the first surplus of them.
func (r *reader) newest(n int) (from, surplus int64, err error) {
	from = r.store.options.Now().UnixNano() + 1
	full := false
	oldest := r.prepare(`SELECT keep_until FROM custody_row WHERE partition=?1 AND keep_until>=?2 ORDER BY keep_until DESC LIMIT 1 OFFSET ?3`).
		int(r.partition).int(from).int(int64(n - 1))
	defer oldest.stmt.Close()
	for oldest.err == nil && oldest.stmt.Step() {
		from, full = oldest.stmt.ColumnInt64(0), true
	}
	if err = errors.Join(oldest.err, oldest.stmt.Err()); err != nil || !full {
		return from, 0, err
	}
	count := r.prepare(`SELECT count(*) FROM custody_row WHERE partition=?1 AND keep_until>=?2`).int(r.partition).int(from)
	defer count.stmt.Close()
	for count.err == nil && count.stmt.Step() {
		surplus = count.stmt.ColumnInt64(0) - int64(n)
	}
	return from, surplus, errors.Join(count.err, count.stmt.Err())
}

func (s *Store) Content(ctx context.Context, messageIDs []string, fn func(store.Row) error) error {
	return s.read(ctx, s.reader, func(r *reader) error {
		for _, id := range messageIDs {
			err := r.each(ctx, bind(r.content).int(r.partition).text(id), fn)
			if err = errors.Join(err, r.content.Reset()); err != nil {
				return err
			}
		}
		return ctx.Err()
	})
}

func (s *Store) Rows(ctx context.Context, selection store.Selection, fn func(store.Row) error) error {
	return s.read(ctx, s.inspector, func(r *reader) error {
		sql := withoutContent
		if selection.Content {
			sql = withContent
		}
		// By message ID there is an index; otherwise the table is walked.
		if selection.MessageID != "" {
			sql += `WHERE partition=?1 AND ord>?2 AND message_id=?3`
		} else {
			sql += `WHERE +partition=?1 AND ord>?2 ORDER BY ord`
		}
		b := r.prepare(sql).int(r.partition).int(int64(selection.After))
		defer b.stmt.Close()
		if selection.MessageID != "" {
			b.text(selection.MessageID)
		}
		taken := 0
		err := r.each(ctx, b, func(row store.Row) error {
			if !selection.Takes(row) {
				return nil
			}
			if err := fn(row); err != nil {
				return err
			}
			if taken++; taken == selection.Limit {
				return errEnough
			}
			return nil
		})
		if errors.Is(err, errEnough) {
			return nil
		}
		return err
	})
}

var errEnough = errors.New("sqlite: as many rows as were asked for")

func (r *reader) prepare(sql string) *binding {
	stmt, _, err := r.conn.Prepare(sql)
	return &binding{stmt: stmt, err: err}
}

// read runs do as the owner of a reader.
func (s *Store) read(ctx context.Context, readers chan *reader, do func(*reader) error) error {
	if err := ctx.Err(); err != nil {
		return s.wrap(err)
	}
	var r *reader
	select {
	case r = <-readers:
	case <-s.closing:
		return s.wrap(store.ErrClosed)
	case <-ctx.Done():
		return s.wrap(fmt.Errorf("waiting for the read before: %w", ctx.Err()))
	}
	defer func() { readers <- r }()
	r.conn.SetInterrupt(ctx)
	defer r.conn.SetInterrupt(context.Background())
	return do(r)
}

// each gives every row of a statement to fn.
func (r *reader) each(ctx context.Context, b *binding, fn func(store.Row) error) error {
	if b.err != nil {
		return r.store.wrap(b.err)
	}
	for b.stmt.Step() {
		row, err := r.row(b.stmt)
		if err != nil {
			return r.store.wrap(err)
		}
		if err := fn(store.Refuse(row)); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return r.store.wrap(err)
	}
	if err := b.stmt.Err(); err != nil {
		return r.store.wrap(err)
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
		ExpiresAt:    columnTime(stmt, 10),
		Attempts:     stmt.ColumnInt(11),
		LastConsumer: stmt.ColumnText(12),
		Reason:       stmt.ColumnText(13),
		Size:         stmt.ColumnInt(14),
		Payload:      stmt.ColumnBlob(16, nil),
		Partition:    r.store.options.Partition,
	}
	if headers := stmt.ColumnRawText(15); len(headers) > 0 && store.Readable(row.Version) {
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
