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

// reader is a read-only connection, separate from the writer's so that a long
// inspection does not delay writes.
type reader struct {
	store     *Store
	conn      *connection // nil after it was thrown away
	partition int64
	content   *sqlite3.Stmt
}

var (
	// length reads a value's header only, not its content.
	columns        = `SELECT ord, ` + head + `, checksum, coalesce(length(payload), 0) + coalesce(octet_length(headers), 0)`
	withoutContent = columns + `, NULL, NULL FROM custody_row `
	withContent    = columns + `, headers, payload FROM custody_row `
	contentSQL     = withContent + `WHERE partition=?1 AND message_id=?2`
)

func (r *reader) open(ctx context.Context) (err error) {
	if r.conn, err = r.store.connect(ctx); err != nil {
		return err
	}
	err = r.conn.Exec(`PRAGMA query_only=ON`)
	if err == nil {
		r.content, _, err = r.conn.PrepareFlags(contentSQL, sqlite3.PREPARE_PERSISTENT)
	}
	if err != nil {
		return errors.Join(r.store.wrap(err), r.close())
	}
	return nil
}

func (s *Store) Content(ctx context.Context, messageIDs []string, fn func(store.Row) error) error {
	return s.read(ctx, s.reader, func(r *reader) error {
		for _, id := range messageIDs {
			if err := r.contentOf(ctx, id, fn); err != nil {
				return err
			}
		}
		return nil
	})
}

func (r *reader) contentOf(ctx context.Context, id string, fn func(store.Row) error) error {
	err := r.each(ctx, bind(r.content).int(r.partition).text(id), func(row store.Row) error {
		switch row.State {
		case store.Damaged:
			row.MessageID = id // the ID that was asked for; the stored one may be damaged
			return fn(row)
		case store.Pending, store.Dead:
			return fn(row)
		}
		return nil
	})
	_ = r.content.Reset() // repeats each's error
	if errors.Is(err, sqlite3.CORRUPT) {
		return fn(store.Row{State: store.Damaged, MessageID: id, Reason: "it cannot be read: " + err.Error(), Partition: r.store.options.Partition})
	}
	return err
}

func (s *Store) Rows(ctx context.Context, selection store.Selection, fn func(store.Row) error) error {
	return s.read(ctx, s.inspector, func(r *reader) error {
		b := r.prepare(selectionSQL(selection)).int(r.partition).int(int64(selection.After))
		if selection.MessageID != "" {
			b.text(selection.MessageID)
		}
		err := selection.Page(fn, func(give func(store.Row) error) error { return r.each(ctx, b, give) })
		return errors.Join(err, b.close())
	})
}

// selectionSQL uses an index for message IDs and for dead rows, and otherwise
// scans the table. The unary plus keeps SQLite from using the index on partition,
// which would require a sort.
func selectionSQL(selection store.Selection) string {
	sql := withoutContent
	if selection.Content {
		sql = withContent
	}
	switch {
	case selection.MessageID != "":
		return sql + `WHERE partition=?1 AND ord>?2 AND message_id=?3`
	case selection.State == store.Dead:
		return sql + fmt.Sprintf(`WHERE partition=?1 AND ord>?2 AND state=%d ORDER BY ord`, store.Dead)
	default:
		return sql + `WHERE +partition=?1 AND ord>?2 ORDER BY ord`
	}
}

func (r *reader) prepare(sql string) *binding {
	stmt, _, err := r.conn.Prepare(sql)
	return &binding{stmt: stmt, err: err}
}

// read runs do with exclusive use of a reader.
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
	return s.guard(r.throwAway, func() error {
		if r.conn == nil {
			if err := r.open(ctx); err != nil {
				return err
			}
		}
		r.conn.SetInterrupt(ctx)
		err := do(r)
		r.conn.SetInterrupt(context.Background())
		return err
	})
}

// each calls fn with every row of a statement.
func (r *reader) each(ctx context.Context, b *binding, fn func(store.Row) error) error {
	if b.err != nil {
		return r.store.wrap(b.err)
	}
	for b.stmt.Step() {
		if err := fn(r.row(b.stmt)); err != nil {
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

// row reads a row and verifies it.
func (r *reader) row(stmt *sqlite3.Stmt) store.Row {
	row, sound := scanRow(stmt)
	if sound {
		row.Partition = r.store.options.Partition
		return store.Refuse(row)
	}
	return damaged(row, r.store.options.Partition)
}

// damaged reduces a row to what identifies it.
func damaged(row store.Row, p store.Partition) store.Row {
	return store.Row{
		Order: row.Order, State: store.Damaged, MessageID: row.MessageID, BusinessID: row.BusinessID, Topic: row.Topic,
		Version: row.Version, InsertedAt: row.InsertedAt, Size: row.Size, Partition: p,
		Reason: "it fails its checksum (as " + row.State.String() + ")",
	}
}

// scan reads the columns of a statement that starts with columns, and sums their
// checksum along the way.
type scan struct {
	stmt *sqlite3.Stmt
	sum  uint64
}

func (s *scan) text(f field) string {
	if s.stmt.ColumnType(int(f)+1) != sqlite3.TEXT {
		s.sum += f.other()
		return ""
	}
	v := s.stmt.ColumnText(int(f) + 1)
	s.sum += f.text(v)
	return v
}

func (s *scan) int(f field) int64 {
	v, null := s.intOrNull(f)
	if null {
		s.sum += f.null()
	}
	return v
}

func (s *scan) time(f field) time.Time {
	v, null := s.intOrNull(f)
	if null {
		s.sum += f.null()
		return time.Time{}
	}
	return time.Unix(0, v)
}

func (s *scan) intOrNull(f field) (v int64, null bool) {
	switch s.stmt.ColumnType(int(f) + 1) {
	case sqlite3.NULL:
		return 0, true
	case sqlite3.INTEGER:
		v = s.stmt.ColumnInt64(int(f) + 1)
		s.sum += f.int(v)
	default:
		s.sum += f.other()
	}
	return v, false
}

const (
	checksumColumn = int(fields) + 1 + iota
	sizeColumn
	headersColumn
	payloadColumn
)

// scanRow reads a row and reports whether it matches its checksums. The content's
// checksum is verified only if the statement selects content.
func scanRow(stmt *sqlite3.Stmt) (row store.Row, sound bool) {
	s := scan{stmt: stmt}
	s.int(partitionField)
	row = store.Row{
		Order:        uint64(stmt.ColumnInt64(0)),
		MessageID:    s.text(messageIDField),
		State:        store.State(s.int(stateField)),
		Version:      uint8(s.int(versionField)),
		BusinessID:   s.text(businessIDField),
		Topic:        s.text(topicField),
		Group:        s.text(competitorField),
		Key:          s.text(keyField),
		InsertedAt:   s.time(insertedAtField),
		ExpiresAt:    s.time(expiresAtField),
		Attempts:     int(s.int(attemptsField)),
		LastConsumer: s.text(lastConsumerField),
		Reason:       s.text(reasonField),
		KeepUntil:    s.time(keepUntilField),
		Size:         stmt.ColumnInt(sizeColumn),
	}
	content := s.int(contentField)
	if s.sum != uint64(stmt.ColumnInt64(checksumColumn)) || stmt.ColumnType(checksumColumn) != sqlite3.INTEGER {
		return row, false
	}
	headers, payload := stmt.ColumnRawText(headersColumn), stmt.ColumnRawBlob(payloadColumn)
	if len(headers)+len(payload) == 0 {
		// There is no content, or none was selected.
		return row, row.Size > 0 || content == 0 || content == contentChecksum(row.MessageID, nil, nil)
	}
	if content != contentChecksum(row.MessageID, headers, payload) {
		return row, false
	}
	row.Payload = slices.Clone(payload)
	if len(headers) > 0 && store.Readable(row.Version) {
		if err := json.Unmarshal(headers, &row.Headers); err != nil {
			return row, false
		}
	}
	return row, true
}

func (r *reader) throwAway() {
	r.conn.throwAway()
	r.conn = nil
}

func (r *reader) close() error {
	conn := r.conn
	r.conn = nil
	return conn.close()
}
