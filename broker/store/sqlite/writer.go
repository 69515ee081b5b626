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

// writer is the writing connection, with what is known of its last write. Whoever
// received it from Store.writer has exclusive use of it.
type writer struct {
	store     *Store
	token     int64       // identifies this store's batches among those of other processes
	conn      *connection // nil after it was thrown away
	partition int64
	sql       statements
	mark      mark  // of the partition's last transaction; any other in the database is another writer's
	settled   int64 // the partition's settled markers

	unsynced bool // FlushPeriodic: there are commits since the last sync
	suspect  bool // a COMMIT or a sync failed: certify before anything else
	doubt    *doubt
	absent   bool  // the last write is proven not stored
	untold   error // why the outcome of the last write cannot be determined
	stopped  error // ErrFenced or ErrMoved: every further write is refused
}

// doubt is a transaction that may or may not be stored.
type doubt struct {
	before, after mark
	settled       int64 // number of settled markers if it is stored
}

// mark is a partition's last transaction, as recorded in custody_partition. Every
// transaction sets it, so that a single read tells whether the transaction took
// effect, whatever it changed, and whether another broker has written in between.
type mark struct{ writer, batch int64 }

// counts is the change that a transaction makes to the partition's counts.
type counts struct{ live, settled int64 }

type statements struct {
	begin, commit                                 *sqlite3.Stmt
	readMark, setMark, fence                      *sqlite3.Stmt
	insert, attempt, settle, marker, remove, dead *sqlite3.Stmt
	redrive, discard, discardMarker               *sqlite3.Stmt
	expire, sweep, sweepSurplus                   *sqlite3.Stmt
}

// pending and dead restrict a change to the one row that it is meant for: in this
// partition (?1), with this message ID (?2), in the state in which the change
// begins, and of a payload version that this build can read. The ID is looked up
// in the index and compared with the table's: a damaged index entry must not lead
// to another row.
var (
	readable = fmt.Sprintf(`version BETWEEN %d AND %d`, wire.OldestVersion, wire.Version)
	theRow   = ` WHERE ord=(SELECT ord FROM custody_row WHERE partition=?1 AND message_id=?2) AND message_id=?2 AND partition=?1 AND `
	pending  = theRow + fmt.Sprintf(`state=%d AND %s`, store.Pending, readable)
	dead     = theRow + fmt.Sprintf(`state=%d AND %s`, store.Dead, readable)

	// marker reduces a row to what shows that its message has ended, and how.
	marker = fmt.Sprintf(`UPDATE custody_row SET state=%d, keep_until=?3, topic='', competitor='', key='', expires_at=NULL,
		attempts=0, last_consumer='', reason=?4, content_checksum=0, headers=NULL, payload=NULL, `, store.SettledMarker) + marking.set("?5")
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
	if err := query(conn.Conn, `PRAGMA journal_mode=WAL`, func(stmt *sqlite3.Stmt) { mode = stmt.ColumnText(0) }); err != nil {
		return fmt.Errorf("journal_mode=WAL: %w", err)
	}
	if mode != "wal" {
		return fmt.Errorf("the file system gives journal_mode %s where WAL is needed", mode)
	}
	// The schema and the partition are synced under any flush policy.
	if err := w.setSync(store.FlushEveryCommit); err != nil {
		return err
	}
	if err := prepareSchema(conn.Conn); err != nil {
		return err
	}
	if w.partition == 0 {
		if err := w.takePartition(); err != nil {
			return fmt.Errorf("partition %v: %w", w.store.options.Partition, err)
		}
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

// takePartition finds or creates the partition and sets its mark, which fences
// any earlier writer. The owner file tells how many of the partition's
// transactions are missing.
func (w *writer) takePartition() (err error) {
	p := w.store.options.Partition
	recorded, _, err := readOwner(w.store.owner.file)
	if err != nil {
		recorded = 0 // an unreadable record tells nothing
	}
	tx, err := w.conn.BeginImmediate()
	if err != nil {
		return err
	}
	defer tx.End(&err)
	insert := w.once(`INSERT INTO custody_partition (connection, identity) VALUES (?1, ?2) ON CONFLICT DO NOTHING`).text(p.Connection).text(p.Identity)
	if err := insert.run(nil); err != nil {
		return err
	}
	var lost int64
	find := w.once(`SELECT id, batch, settled FROM custody_partition WHERE connection=?1 AND identity=?2`).text(p.Connection).text(p.Identity)
	err = find.run(func(stmt *sqlite3.Stmt) {
		w.partition, w.settled = stmt.ColumnInt64(0), stmt.ColumnInt64(2)
		batch := stmt.ColumnInt64(1)
		lost = max(0, recorded-batch)
		w.mark = mark{w.token, max(batch, recorded) + 1}
	})
	if err != nil {
		return err
	}
	set := w.once(`UPDATE custody_partition SET writer=?2, batch=?3, lost=lost+?4 WHERE id=?1`).
		int(w.partition).int(w.mark.writer).int(w.mark.batch).int(lost)
	if err := set.run(nil); err != nil {
		return err
	}
	w.store.lost.Store(lost)
	return nil
}

// once prepares a statement for a single run.
func (w *writer) once(sql string) *binding {
	stmt, _, err := w.conn.Prepare(sql)
	return &binding{stmt: stmt, err: err}
}

func (w *writer) prepare() error {
	for _, p := range []struct {
		stmt **sqlite3.Stmt
		sql  string
	}{
		{&w.sql.begin, `BEGIN IMMEDIATE`},
		{&w.sql.commit, `COMMIT`},
		{&w.sql.readMark, `SELECT writer, batch FROM custody_partition WHERE id=?1`},
		{&w.sql.setMark, `UPDATE custody_partition SET writer=?2, batch=?3, live=live+?4, settled=settled+?5
			WHERE id=?1 AND writer=?6 AND batch=?7`},
		{&w.sql.fence, `UPDATE custody_partition SET fence=fence+1 WHERE id=?1`},
		{&w.sql.insert, fmt.Sprintf(`INSERT INTO custody_row (partition, message_id, state, version, business_id, topic,
			competitor, key, inserted_at, expires_at, attempts, last_consumer, reason, checksum, content_checksum, headers, payload)
			VALUES (?1, ?2, %d, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)`, store.Pending)},
		{&w.sql.attempt, `UPDATE custody_row SET attempts=?3, competitor=?4, last_consumer=?5, ` + attempting.set("?6") + pending},
		{&w.sql.settle, fmt.Sprintf(`UPDATE custody_row SET state=%d, keep_until=?3, reason=?4, `, store.Processed) + processing.set("?5") + pending},
		{&w.sql.marker, marker + pending},
		{&w.sql.remove, `DELETE FROM custody_row` + pending},
		{&w.sql.dead, fmt.Sprintf(`UPDATE custody_row SET state=%d, reason=?3, last_consumer=?4, `, store.Dead) + deadLettering.set("?5") + pending},
		{&w.sql.redrive, fmt.Sprintf(`UPDATE custody_row SET state=%d, attempts=0, reason='', expires_at=?3, `, store.Pending) + redriving.set("?4") + dead},
		{&w.sql.discard, `DELETE FROM custody_row` + dead},
		{&w.sql.discardMarker, marker + dead},
		// Do not delete by a damaged time, in the table or in an index.
		{&w.sql.expire, fmt.Sprintf(`SELECT message_id FROM custody_row
			WHERE partition=?1 AND expires_at<=?2 AND state=%d AND %s AND %s
			ORDER BY expires_at, ord LIMIT ?3`, store.Pending, readable, intact)},
		{&w.sql.sweep, fmt.Sprintf(`DELETE FROM custody_row WHERE ord IN (SELECT ord FROM custody_row
			WHERE partition=?1 AND state=%d AND keep_until<=?2 AND %s ORDER BY keep_until LIMIT ?3)`, store.SettledMarker, intact)},
		{&w.sql.sweepSurplus, fmt.Sprintf(`DELETE FROM custody_row WHERE ord IN (SELECT ord FROM custody_row
			WHERE partition=?1 AND state=%d AND keep_until IS NOT NULL AND %s ORDER BY keep_until LIMIT ?2)`, store.SettledMarker, intact)},
	} {
		stmt, _, err := w.conn.PrepareFlags(p.sql, sqlite3.PREPARE_PERSISTENT)
		if err != nil {
			return fmt.Errorf("%s: %w", p.sql, err)
		}
		*p.stmt = stmt
	}
	return nil
}

// close closes the connection. An open transaction is rolled back.
func (w *writer) close() error {
	conn := w.conn
	w.conn = nil
	return conn.close()
}

// transact runs change as one transaction and determines, where possible, whether
// it is stored. change returns its effect on the partition's counts.
func (w *writer) transact(ctx context.Context, change func() (counts, error)) (err error) {
	if err := w.usable(ctx); err != nil {
		return &store.Failure{NotWritten: true, Err: err}
	}
	w.conn.SetInterrupt(ctx)
	witness := w.conn.witness
	witness.reset()
	before, after := w.mark, mark{w.token, w.mark.batch + 1}
	var added counts
	defer func() {
		if v := recover(); v != nil { // SQLite ran out of memory, or a damaged file misled it
			w.throwAway()
			err = w.failed(fmt.Errorf("SQLite panicked: %v", v), witness, &doubt{before, after, w.settled + added.settled})
		}
		if w.conn != nil {
			w.conn.SetInterrupt(context.Background())
		}
	}()
	if err := w.sql.begin.Exec(); err != nil {
		return w.notWritten(fmt.Errorf("begin: %w", err))
	}
	total := w.conn.TotalChanges()
	added, err = change()
	changed := w.conn.TotalChanges() != total
	if err == nil {
		err = w.advance(changed, after, added)
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		w.rollback()
		return w.notWritten(err)
	}

	w.conn.SetInterrupt(context.Background()) // from here on the transaction runs to completion
	if err := w.sql.commit.Exec(); err != nil {
		w.rollback()
		return w.failed(fmt.Errorf("commit: %w", err), witness, &doubt{before, after, w.settled + added.settled})
	}
	w.absent, w.unsynced = false, w.store.options.Sync == store.FlushPeriodic
	w.settled += added.settled
	if changed {
		w.mark = after
		w.store.owner.record(after.batch)
	}
	if err := w.store.files.moved(); err != nil {
		// The files were moved meanwhile: the write may or may not be found
		// again.
		w.stopped = err
		return &store.Failure{Err: w.store.wrap(err)}
	}
	return nil
}

// usable returns an error if nothing may be written. It reopens a connection that
// was thrown away.
func (w *writer) usable(ctx context.Context) error {
	if w.stopped == nil {
		if err := w.store.files.moved(); err != nil {
			w.stopped = w.store.wrap(err)
		}
	}
	if w.stopped != nil {
		return w.stopped
	}
	if w.conn == nil {
		return w.open(ctx)
	}
	return nil
}

// advance sets the mark if the transaction changed anything, and verifies that
// the previous mark is still this store's.
func (w *writer) advance(changed bool, after mark, added counts) error {
	if !changed {
		now, err := w.readMark()
		if err == nil && now != w.mark {
			err = w.fenced()
		}
		return err
	}
	err := bind(w.sql.setMark).int(w.partition).int(after.writer).int(after.batch).int(added.live).int(added.settled).
		int(w.mark.writer).int(w.mark.batch).exec()
	if err != nil {
		return err
	}
	if w.conn.Changes() != 1 {
		return w.fenced()
	}
	return nil
}

// fenced stops the writer because another broker has taken the partition.
func (w *writer) fenced() error {
	w.stopped = w.store.wrap(fmt.Errorf("%w: partition %v: two brokers share a connection's name and a storage identity; stop one, and restart the other",
		store.ErrFenced, w.store.options.Partition))
	return w.stopped
}

// failed determines the outcome of a transaction whose COMMIT failed.
func (w *writer) failed(err error, witness *witness, d *doubt) error {
	// On a full disk, no complete frame was written.
	if errors.Is(err, sqlite3.FULL) || !witness.committing.Load() {
		return w.notWritten(err)
	}
	w.absent, w.suspect, w.doubt = false, true, d
	return &store.Failure{Err: w.store.wrap(err)}
}

func (w *writer) throwAway() {
	w.conn.throwAway()
	w.conn = nil
}

func (w *writer) notWritten(err error) error {
	if errors.Is(err, sqlite3.FULL) {
		err = fmt.Errorf("%w: %w", store.ErrFull, err)
	}
	return &store.Failure{NotWritten: true, Err: w.store.wrap(err)}
}

// rollback rolls the transaction back. If that fails, it throws the connection
// away, so that nothing of the transaction gets into a later commit.
func (w *writer) rollback() {
	if w.conn.GetAutocommit() { // SQLite has rolled back already
		return
	}
	w.conn.SetInterrupt(context.Background())
	if err := w.conn.Exec(`ROLLBACK`); err != nil {
		w.throwAway()
	}
}

func (w *writer) readMark() (m mark, err error) {
	stmt := w.sql.readMark
	b := bind(stmt).int(w.partition)
	if b.err == nil && stmt.Step() {
		m = mark{stmt.ColumnInt64(0), stmt.ColumnInt64(1)}
	}
	return m, errors.Join(b.err, stmt.Err(), stmt.Reset())
}

// certify commits and syncs a transaction that changes only the fence. The WAL is
// a chain of checksums: this transaction either follows the doubtful one, which
// is then permanent, or overwrites it, which breaks the chain after it. The mark,
// read in the same transaction, tells which. certify also syncs what
// FlushPeriodic has left unsynced.
func (w *writer) certify(ctx context.Context) (err error) {
	w.suspect = w.suspect || w.unsynced
	defer func() {
		if err != nil {
			err = w.store.wrap(fmt.Errorf("certainty not re-established: %w", err))
		}
	}()
	if err := w.usable(ctx); err != nil {
		return err
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
	d := w.doubt
	w.doubt = nil
	switch {
	case now == w.mark: // the doubtful transaction, if any, is absent
		w.absent = w.absent || d != nil
	case d != nil && now == d.after:
		w.absent, w.mark, w.settled = false, d.after, d.settled
	default:
		// Another writer's mark hides which of the two came before it.
		w.untold = w.fenced()
	}
	return nil
}

func (w *writer) apply(batch []store.Operation) (added counts, err error) {
	for i := range batch {
		row := &batch[i].Row
		err := w.operate(batch[i].Kind, row, &added)
		if err != nil {
			return added, fmt.Errorf("%v of %s: %w", batch[i].Kind, row.MessageID, err)
		}
	}
	if surplus := w.settled + added.settled - int64(w.store.options.MaxSettled); surplus > 0 && added.settled > 0 {
		// Sweep a few more than were added, so that an earlier surplus shrinks.
		n, err := w.run(bind(w.sql.sweepSurplus).int(w.partition).int(min(surplus, 2*added.settled)))
		added.settled -= n
		return added, err
	}
	return added, nil
}

func (w *writer) operate(kind store.OperationKind, row *store.Row, added *counts) error {
	var (
		n   int64
		err error
	)
	switch kind {
	case store.Insert:
		if err = w.insert(row); err == nil {
			added.live++
		}
	case store.Attempt:
		sum := attemptsField.int(int64(row.Attempts)) + competitorField.text(row.Group) + lastConsumerField.text(row.LastConsumer)
		_, err = w.run(w.on(w.sql.attempt, row).int(int64(row.Attempts)).text(row.Group).text(row.LastConsumer).sum(sum))
	case store.Settle:
		n, err = w.process(row)
		added.live -= n
	case store.Delete:
		switch {
		case w.store.options.KeepHistory:
			n, err = w.process(row)
		case row.KeepUntil.IsZero():
			n, err = w.run(w.on(w.sql.remove, row))
		default:
			n, err = w.leaveMarker(w.sql.marker, row)
			added.settled += n
		}
		added.live -= n
	case store.DeadLetter:
		sum := stateField.int(int64(store.Dead)) + reasonField.text(row.Reason) + lastConsumerField.text(row.LastConsumer)
		_, err = w.run(w.on(w.sql.dead, row).text(row.Reason).text(row.LastConsumer).sum(sum))
	case store.Redrive:
		sum := stateField.int(int64(store.Pending)) + attemptsField.int(0) + reasonField.text("") + expiresAtField.time(row.ExpiresAt)
		_, err = w.run(w.on(w.sql.redrive, row).time(row.ExpiresAt).sum(sum))
	case store.Discard:
		if row.KeepUntil.IsZero() {
			n, err = w.run(w.on(w.sql.discard, row))
		} else {
			n, err = w.leaveMarker(w.sql.discardMarker, row)
			added.settled += n
		}
		added.live -= n
	}
	return err
}

func (w *writer) on(stmt *sqlite3.Stmt, row *store.Row) *binding {
	return bind(stmt).int(w.partition).text(row.MessageID)
}

// run executes a change and returns the number of rows changed.
func (w *writer) run(b *binding) (int64, error) {
	if err := b.exec(); err != nil {
		return 0, err
	}
	return w.conn.Changes(), nil
}

func (w *writer) insert(row *store.Row) error {
	headers, err := marshalHeaders(row.Headers)
	if err != nil {
		return err
	}
	content := contentChecksum(row.MessageID, headers, row.Payload)
	err = w.on(w.sql.insert, row).int(int64(row.Version)).text(row.BusinessID).text(row.Topic).
		text(row.Group).text(row.Key).time(row.InsertedAt).time(row.ExpiresAt).
		int(int64(row.Attempts)).text(row.LastConsumer).text(row.Reason).sum(headChecksum(w.partition, row, store.Pending, content)).
		int(content).rawText(headers).blob(row.Payload).exec()
	if errors.Is(err, sqlite3.CONSTRAINT_UNIQUE) {
		return &store.ExistsError{MessageID: row.MessageID}
	}
	return err
}

func marshalHeaders(headers map[string]string) ([]byte, error) {
	if len(headers) == 0 {
		return nil, nil
	}
	return json.Marshal(headers)
}

// headChecksum returns the checksum of a row to be inserted.
func headChecksum(partition int64, row *store.Row, state store.State, content int64) uint64 {
	return partitionField.int(partition) + messageIDField.text(row.MessageID) + stateField.int(int64(state)) +
		versionField.int(int64(row.Version)) + businessIDField.text(row.BusinessID) + topicField.text(row.Topic) +
		competitorField.text(row.Group) + keyField.text(row.Key) + insertedAtField.time(row.InsertedAt) +
		expiresAtField.time(row.ExpiresAt) + attemptsField.int(int64(row.Attempts)) + lastConsumerField.text(row.LastConsumer) +
		reasonField.text(row.Reason) + keepUntilField.null() + contentField.int(content)
}

// process marks a pending row processed, to keep its history.
func (w *writer) process(row *store.Row) (int64, error) {
	sum := stateField.int(int64(store.Processed)) + keepUntilField.time(row.KeepUntil) + reasonField.text(row.Reason)
	return w.run(w.on(w.sql.settle, row).time(row.KeepUntil).text(row.Reason).sum(sum))
}

// blank is the sum of the hashes of the values that a marker has in place of its
// message's.
var blank = stateField.int(int64(store.SettledMarker)) + topicField.text("") + competitorField.text("") + keyField.text("") +
	expiresAtField.null() + attemptsField.int(0) + lastConsumerField.text("") + contentField.int(0)

func (w *writer) leaveMarker(stmt *sqlite3.Stmt, row *store.Row) (int64, error) {
	sum := blank + keepUntilField.time(row.KeepUntil) + reasonField.text(row.Reason)
	return w.run(w.on(stmt, row).time(row.KeepUntil).text(row.Reason).sum(sum))
}

// sweepAtOnce bounds the markers swept, and thus the time taken, by one call of
// Expired.
const sweepAtOnce = 16 << 10

func (w *writer) expire(now, keepUntil time.Time, limit int) (ids []string, added counts, err error) {
	stmt := w.sql.expire
	b := bind(stmt).int(w.partition).time(now).int(int64(limit))
	for b.err == nil && stmt.Step() {
		ids = append(ids, stmt.ColumnText(0))
	}
	if err := errors.Join(b.err, stmt.Err(), stmt.Reset()); err != nil {
		return nil, added, err
	}
	n, err := w.run(bind(w.sql.sweep).int(w.partition).time(now).int(sweepAtOnce))
	added.settled -= n
	if err != nil {
		return nil, added, err
	}
	ends := make([]store.Operation, len(ids))
	for i, id := range ids {
		ends[i] = store.Expiry(id, keepUntil)
	}
	ended, err := w.apply(ends)
	return ids, counts{added.live + ended.live, added.settled + ended.settled}, err
}

// binding binds a statement's parameters in order and keeps the first error.
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

// time binds Unix nanoseconds, or NULL for the zero time.
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

func (b *binding) sum(v uint64) *binding { return b.int(int64(v)) }

// again resets a statement for its next run.
func (b *binding) again() *binding {
	if b.stmt == nil {
		return b
	}
	_ = b.stmt.Reset() // repeats the error of the previous run
	return &binding{stmt: b.stmt, err: b.err}
}

func (b *binding) close() error {
	if b.stmt == nil {
		return nil
	}
	return b.stmt.Close()
}

// run steps through the rows and closes the statement.
func (b *binding) run(row func(*sqlite3.Stmt)) error {
	for b.err == nil && b.stmt.Step() {
		row(b.stmt)
	}
	err := b.err
	if err == nil {
		err = b.stmt.Err()
	}
	closing := b.close() // repeats the error of the run
	if err == nil {
		err = closing
	}
	return err
}

func (b *binding) exec() error {
	if b.err != nil {
		return b.err
	}
	return b.stmt.Exec()
}
