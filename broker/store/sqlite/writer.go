package sqlite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/wire"
	"github.com/ncruces/go-sqlite3"
)

// writer is the connection that writes, and what is known of its last write.
// Whoever has it from Store.writer owns it.
type writer struct {
	store     *Store
	token     int64         // tells this store's batches from those of another process
	conn      *sqlite3.Conn // nil after it had to be thrown away
	partition int64
	sql       statements

	unsynced bool // FlushPeriodic: something was committed since the last sync
	suspect  bool // a COMMIT or a sync failed: certify before anything else
	doubt    *doubt
	absent   bool  // of the last write: proven not stored
	untold   error // why it cannot be told whether it is
}

// doubt is a transaction that may be stored.
type doubt struct{ before, after mark }

// mark is the last batch of a partition, as its row in custody_partition has it.
// Each transaction sets it, so that one read tells whether the transaction counts,
// whatever it changed.
type mark struct{ writer, batch int64 }

type statements struct {
	begin, commit                                 *sqlite3.Stmt
	readMark, setMark, fence                      *sqlite3.Stmt
	insert, attempt, settle, marker, remove, dead *sqlite3.Stmt
	redrive, discard, discardMarker               *sqlite3.Stmt
	expire, sweep                                 *sqlite3.Stmt
}

// pending and dead bind a change to the one row it is meant for: in this
// partition (?1), of this message ID (?2), in the state that the change begins
// in, and of a payload version that this build can read.
var (
	readable = fmt.Sprintf(`version BETWEEN %d AND %d`, wire.OldestVersion, wire.Version)
	pending  = fmt.Sprintf(` WHERE partition=?1 AND message_id=?2 AND state=%d AND %s`, store.Pending, readable)
	dead     = fmt.Sprintf(` WHERE partition=?1 AND message_id=?2 AND state=%d AND %s`, store.Dead, readable)

	// marker leaves of a row what tells that it is finished.
	marker = fmt.Sprintf(`UPDATE custody_row SET state=%d, keep_until=?3, topic='', competitor='', key='',
		headers=NULL, expires_at=NULL, attempts=0, last_consumer='', reason='', payload=NULL`, store.SettledMarker)
)

func (w *writer) open(ctx context.Context) (err error) {
	conn, err := w.store.connect(ctx)
	if err != nil {
		return err
	}
	w.conn = conn
	defer func() {
		if err != nil {
			err = errors.Join(w.store.wrap(err), w.close())
		}
	}()
	conn.SetInterrupt(ctx)
	defer conn.SetInterrupt(context.Background())

	var mode string
	if err := query(conn, `PRAGMA journal_mode=WAL`, func(stmt *sqlite3.Stmt) { mode = stmt.ColumnText(0) }); err != nil {
		return fmt.Errorf("journal_mode=WAL: %w", err)
	}
	if mode != "wal" {
		return fmt.Errorf("the file system gives journal_mode %s where WAL is needed", mode)
	}
	// The schema and the partition are synced under any policy.
	if err := w.setSync(store.FlushEveryCommit); err != nil {
		return err
	}
	if err := prepareSchema(conn); err != nil {
		return err
	}
	if err := w.findPartition(); err != nil {
		return err
	}
	if err := w.prepare(); err != nil {
		return err
	}
	return w.setSync(w.store.options.Sync)
}

func (w *writer) setSync(flush store.Flush) error {
	level := "FULL"
	if flush == store.FlushPeriodic {
		level = "NORMAL"
	}
	return w.conn.Exec(`PRAGMA synchronous=` + level)
}

func (w *writer) findPartition() error {
	p := w.store.options.Partition
	for _, sql := range []string{
		`INSERT INTO custody_partition (connection, identity) VALUES (?1, ?2) ON CONFLICT DO NOTHING`,
		`SELECT id FROM custody_partition WHERE connection=?1 AND identity=?2`,
	} {
		stmt, _, err := w.conn.Prepare(sql)
		if err != nil {
			return err
		}
		b := bind(stmt).text(p.Connection).text(p.Identity)
		for b.err == nil && stmt.Step() {
			w.partition = stmt.ColumnInt64(0)
		}
		if err := errors.Join(b.err, stmt.Err(), stmt.Close()); err != nil {
			return fmt.Errorf("partition %v: %w", p, err)
		}
	}
	return nil
}

func (w *writer) prepare() error {
	for _, p := range []struct {
		stmt **sqlite3.Stmt
		sql  string
	}{
		{&w.sql.begin, `BEGIN IMMEDIATE`},
		{&w.sql.commit, `COMMIT`},
		{&w.sql.readMark, `SELECT writer, batch FROM custody_partition WHERE id=?1`},
		{&w.sql.setMark, `UPDATE custody_partition SET writer=?2, batch=?3 WHERE id=?1`},
		{&w.sql.fence, `UPDATE custody_partition SET fence=fence+1 WHERE id=?1`},
		{&w.sql.insert, fmt.Sprintf(`INSERT INTO custody_row (partition, message_id, state, version, business_id, topic,
			competitor, key, headers, inserted_at, expires_at, attempts, last_consumer, reason, payload)
			VALUES (?1, ?2, %d, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)`, store.Pending)},
		{&w.sql.attempt, `UPDATE custody_row SET attempts=?3, competitor=?4, last_consumer=?5` + pending},
		{&w.sql.settle, fmt.Sprintf(`UPDATE custody_row SET state=%d, keep_until=?3`, store.Processed) + pending},
		{&w.sql.marker, marker + pending},
		{&w.sql.remove, `DELETE FROM custody_row` + pending},
		{&w.sql.dead, fmt.Sprintf(`UPDATE custody_row SET state=%d, reason=?3, last_consumer=?4`, store.Dead) + pending},
		{&w.sql.redrive, fmt.Sprintf(`UPDATE custody_row SET state=%d, attempts=0, reason='', expires_at=?3`, store.Pending) + dead},
		{&w.sql.discard, `DELETE FROM custody_row` + dead},
		{&w.sql.discardMarker, marker + dead},
		{&w.sql.expire, fmt.Sprintf(`SELECT message_id FROM custody_row
			WHERE partition=?1 AND expires_at<=?2 AND state=%d AND %s
			ORDER BY expires_at, ord LIMIT ?3`, store.Pending, readable)},
		{&w.sql.sweep, fmt.Sprintf(`DELETE FROM custody_row WHERE partition=?1 AND keep_until<=?2 AND state=%d`, store.SettledMarker)},
	} {
		stmt, _, err := w.conn.PrepareFlags(p.sql, sqlite3.PREPARE_PERSISTENT)
		if err != nil {
			return fmt.Errorf("%s: %w", p.sql, err)
		}
		*p.stmt = stmt
	}
	return nil
}

// close gives up the connection. An open transaction is rolled back.
func (w *writer) close() error {
	if w.conn == nil {
		return nil
	}
	conn := w.conn
	w.conn = nil
	return closeAll(conn)
}

// transact runs change as one transaction and says for certain, where it can,
// whether it is stored.
func (w *writer) transact(ctx context.Context, change func() error) error {
	if w.conn == nil {
		if err := w.open(ctx); err != nil {
			return &store.Failure{NotWritten: true, Err: err}
		}
	}
	w.conn.SetInterrupt(ctx)
	defer func() {
		if w.conn != nil {
			w.conn.SetInterrupt(context.Background())
		}
	}()
	if err := w.sql.begin.Exec(); err != nil {
		return w.notWritten(fmt.Errorf("begin: %w", err))
	}
	changed := w.conn.TotalChanges()
	var before, after mark
	err := change()
	if err == nil && w.conn.TotalChanges() != changed {
		before, after, err = w.mark()
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		w.rollback()
		return w.notWritten(err)
	}

	w.conn.SetInterrupt(context.Background()) // from here on it goes to its end
	w.store.witness.reset()
	err = w.sql.commit.Exec()
	if err == nil {
		w.absent, w.unsynced = false, w.store.options.Sync == store.FlushPeriodic
		return nil
	}
	w.rollback()
	err = fmt.Errorf("commit: %w", err)
	// A full disk takes no whole frame.
	if errors.Is(err, sqlite3.FULL) || !w.store.witness.committing.Load() {
		return w.notWritten(err)
	}
	w.absent, w.suspect, w.doubt = false, true, &doubt{before, after}
	return &store.Failure{Err: w.store.wrap(err)}
}

func (w *writer) notWritten(err error) error {
	if errors.Is(err, sqlite3.FULL) {
		err = fmt.Errorf("%w: %w", store.ErrFull, err)
	}
	return &store.Failure{NotWritten: true, Err: w.store.wrap(err)}
}

// rollback ends the transaction. A connection that cannot is thrown away with
// it, for nothing of it may get into a later commit.
func (w *writer) rollback() {
	if w.conn.GetAutocommit() { // SQLite has done it
		return
	}
	w.conn.SetInterrupt(context.Background())
	if err := w.conn.Exec(`ROLLBACK`); err != nil {
		_ = w.close()
	}
}

// mark sets the partition's mark to this transaction.
func (w *writer) mark() (before, after mark, err error) {
	if before, err = w.readMark(); err != nil {
		return before, after, err
	}
	after = mark{w.token, before.batch + 1}
	err = bind(w.sql.setMark).int(w.partition).int(after.writer).int(after.batch).exec()
	return before, after, err
}

func (w *writer) readMark() (m mark, err error) {
	stmt := w.sql.readMark
	b := bind(stmt).int(w.partition)
	if b.err == nil && stmt.Step() {
		m = mark{stmt.ColumnInt64(0), stmt.ColumnInt64(1)}
	}
	return m, errors.Join(b.err, stmt.Err(), stmt.Reset())
}

// certify commits and syncs a transaction that changes the fence only. The log
// is a chain of checksums: this one either follows the doubtful transaction in
// it, which then counts for good, or takes its place, which breaks the chain.
// The mark, read in the same transaction, tells which. It also syncs what
// FlushPeriodic has left.
func (w *writer) certify(ctx context.Context) (err error) {
	w.suspect = w.suspect || w.unsynced
	defer func() {
		if err != nil {
			err = w.store.wrap(fmt.Errorf("certainty not re-established: %w", err))
		}
	}()
	if w.conn == nil {
		if err := w.open(ctx); err != nil {
			return err
		}
	}
	if w.store.options.Sync != store.FlushEveryCommit {
		if err := w.setSync(store.FlushEveryCommit); err != nil {
			return err
		}
		defer func() {
			if w.conn != nil {
				err = errors.Join(err, w.setSync(w.store.options.Sync))
			}
		}()
	}
	if err := w.sql.begin.Exec(); err != nil {
		return err
	}
	now, err := w.readMark()
	if err == nil {
		err = bind(w.sql.fence).int(w.partition).exec()
	}
	if err == nil {
		err = w.sql.commit.Exec()
	}
	if err != nil {
		w.rollback()
		return err
	}
	w.suspect, w.unsynced = false, false
	if d := w.doubt; d != nil {
		w.doubt = nil
		switch now {
		case d.before:
			w.absent = true
		case d.after:
			w.absent = false
		default:
			// Which of the two was there before it, nobody can tell.
			w.untold = w.store.wrap(errors.New("another process has written this partition since: two brokers share a connection's name and a storage identity"))
		}
	}
	return nil
}

func (w *writer) apply(batch []store.Operation) error {
	for i := range batch {
		row := &batch[i].Row
		var err error
		switch kind := batch[i].Kind; kind {
		case store.Insert:
			err = w.insert(row)
		case store.Attempt:
			err = w.on(w.sql.attempt, row).int(int64(row.Attempts)).text(row.Group).text(row.LastConsumer).exec()
		case store.Settle:
			err = w.on(w.sql.settle, row).time(row.KeepUntil).exec()
		case store.Delete:
			err = w.delete(row)
		case store.DeadLetter:
			err = w.on(w.sql.dead, row).text(row.Reason).text(row.LastConsumer).exec()
		case store.Redrive:
			err = w.on(w.sql.redrive, row).time(row.ExpiresAt).exec()
		case store.Discard:
			err = w.discard(row)
		}
		if err != nil {
			return fmt.Errorf("%v of %s: %w", batch[i].Kind, row.MessageID, err)
		}
	}
	return nil
}

func (w *writer) on(stmt *sqlite3.Stmt, row *store.Row) *binding {
	return bind(stmt).int(w.partition).text(row.MessageID)
}

func (w *writer) insert(row *store.Row) error {
	var headers []byte
	if len(row.Headers) > 0 {
		var err error
		if headers, err = json.Marshal(row.Headers); err != nil {
			return err
		}
	}
	err := w.on(w.sql.insert, row).int(int64(row.Version)).text(row.BusinessID).text(row.Topic).
		text(row.Group).text(row.Key).rawText(headers).time(row.InsertedAt).time(row.ExpiresAt).
		int(int64(row.Attempts)).text(row.LastConsumer).text(row.Reason).blob(row.Payload).exec()
	if errors.Is(err, sqlite3.CONSTRAINT_UNIQUE) {
		return &store.ExistsError{MessageID: row.MessageID}
	}
	return err
}

func (w *writer) delete(row *store.Row) error {
	switch {
	case w.store.options.KeepHistory:
		return w.on(w.sql.settle, row).time(row.KeepUntil).exec()
	case row.KeepUntil.IsZero():
		return w.on(w.sql.remove, row).exec()
	default:
		return w.on(w.sql.marker, row).time(row.KeepUntil).exec()
	}
}

func (w *writer) discard(row *store.Row) error {
	if row.KeepUntil.IsZero() {
		return w.on(w.sql.discard, row).exec()
	}
	return w.on(w.sql.discardMarker, row).time(row.KeepUntil).exec()
}

func (w *writer) expire(now time.Time, limit int) ([]string, error) {
	stmt := w.sql.expire
	b := bind(stmt).int(w.partition).time(now).int(int64(limit))
	var ids []string
	for b.err == nil && stmt.Step() {
		ids = append(ids, stmt.ColumnText(0))
	}
	if err := errors.Join(b.err, stmt.Err(), stmt.Reset()); err != nil {
		return nil, err
	}
	for _, id := range ids {
		if err := bind(w.sql.remove).int(w.partition).text(id).exec(); err != nil {
			return nil, err
		}
	}
	return ids, bind(w.sql.sweep).int(w.partition).time(now).exec()
}

// binding binds the parameters of a statement in order and keeps the first error.
type binding struct {
	stmt *sqlite3.Stmt
	n    int
	err  error
}

func bind(stmt *sqlite3.Stmt) *binding { return &binding{stmt: stmt} }

func (b *binding) next() (*sqlite3.Stmt, int) {
	b.n++
	return b.stmt, b.n
}

func (b *binding) text(v string) *binding {
	if b.err == nil {
		stmt, n := b.next()
		b.err = stmt.BindText(n, v)
	}
	return b
}

func (b *binding) rawText(v []byte) *binding {
	if b.err == nil {
		stmt, n := b.next()
		b.err = stmt.BindRawText(n, v)
	}
	return b
}

func (b *binding) blob(v []byte) *binding {
	if b.err == nil {
		stmt, n := b.next()
		b.err = stmt.BindBlob(n, v)
	}
	return b
}

func (b *binding) int(v int64) *binding {
	if b.err == nil {
		stmt, n := b.next()
		b.err = stmt.BindInt64(n, v)
	}
	return b
}

// time binds Unix nanoseconds, and NULL for the zero time.
func (b *binding) time(v time.Time) *binding {
	if v.IsZero() {
		if b.err == nil {
			stmt, n := b.next()
			b.err = stmt.BindNull(n)
		}
		return b
	}
	return b.int(v.UnixNano())
}

func (b *binding) exec() error {
	if b.err != nil {
		return b.err
	}
	return b.stmt.Exec()
}
