package relational

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/custodymq/custody/broker/store"
)

// writer is the writing connection, with what is known of its last write. Whoever
// received it from Store.writer has exclusive use of it.
type writer struct {
	store     *Store
	token     int64     // identifies this store's transactions among those of other writers
	conn      *sql.Conn // nil after it was thrown away
	partition int64
	mark      mark

	doubt   *doubt
	absent  bool  // the last write is proven not stored
	untold  error // why the outcome of the last write cannot be determined
	stopped error // ErrFenced: every further write is refused
}

// mark is what the partition's row records of its last transaction. Every
// transaction sets it, so that a single read tells whether the transaction took
// effect, whatever it changed, and whether another broker has written in between.
type mark struct{ writer, batch, order, settled int64 }

// doubt is a transaction that may be stored, in which case this is the mark.
type doubt struct {
	after mark
	past  bool // it is no longer the last call
}

// errDuplicate reports that the unique index on message IDs refused an insert.
var errDuplicate = errors.New("duplicate message ID")

// open connects and takes the partition's lock, and the first time also its row.
func (w *writer) open(ctx context.Context) (err error) {
	s, d := w.store, w.store.dialect
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return s.wrap(fmt.Errorf("connect: %w", err))
	}
	w.conn = conn
	defer func() {
		if err != nil {
			w.drop()
			err = s.wrap(err)
		}
	}()
	if err := d.prepare(ctx, conn, s.options.Sync); err != nil {
		return err
	}
	if err := d.known(ctx, conn); err != nil {
		return err
	}
	if err := w.lock(ctx); err != nil {
		return err
	}
	if w.partition == 0 {
		return w.takePartition(ctx)
	}
	// A server that was replaced, or has forgotten, may not even have the partition.
	_, err = (&transaction{w: w, ctx: ctx}).readMark()
	return err
}

// patience is how long to wait for the session of a killed broker or a lost
// connection: the server ends it only after finishing what is in progress.
const patience = time.Second

// lock takes the partition's lock. The error names the current owner.
func (w *writer) lock(ctx context.Context) error {
	p := w.store.options.Partition
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	again := time.NewTicker(patience / 50)
	defer again.Stop()
	for {
		free, err := w.store.dialect.lock(ctx, w.conn, "custody "+p.Connection+"\x00"+p.Identity)
		if err != nil {
			return fmt.Errorf("lock the partition: %w", err)
		}
		if free {
			return nil
		}
		select {
		case <-again.C:
		case <-timeout.C:
			return w.taken(ctx)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

const ofPartition = " WHERE connection_name = ? AND storage_identity = ?"

// taken returns the refusal, which names the partition's owner.
func (w *writer) taken(ctx context.Context) error {
	p := w.store.options.Partition
	var who string
	err := w.conn.QueryRowContext(ctx, w.store.dialect.bind("SELECT owner FROM custody_partition"+ofPartition), []byte(p.Connection), []byte(p.Identity)).Scan(&who)
	if err != nil || who == "" {
		who = "another session, which has not said its name"
	}
	return fmt.Errorf("partition %v is owned by %s: stop it, or give this broker another name or storage identity", p, who)
}

// takePartition finds or creates the partition's row and sets its mark, which
// fences any earlier writer. The lock must be held.
func (w *writer) takePartition(ctx context.Context) error {
	p := w.store.options.Partition
	t := &transaction{w: w, ctx: ctx}
	return t.run(func() error {
		id := []any{[]byte(p.Connection), []byte(p.Identity)}
		find := "SELECT id, batch, last_ord, settled FROM custody_partition" + w.store.dialect.hint + ofPartition + w.store.dialect.forUpdate
		read := func() error {
			return w.conn.QueryRowContext(ctx, w.store.dialect.bind(find), id...).Scan(&w.partition, &w.mark.batch, &w.mark.order, &w.mark.settled)
		}
		err := read()
		if errors.Is(err, sql.ErrNoRows) {
			if _, err = t.exec("INSERT INTO custody_partition (connection_name, storage_identity) VALUES (?, ?)", id...); err == nil {
				err = read()
			}
		}
		if err != nil {
			return err
		}
		w.mark.writer, w.mark.batch = w.token, w.mark.batch+1
		_, err = t.exec("UPDATE custody_partition SET writer = ?, batch = ?, owner = ? WHERE id = ?", w.token, w.mark.batch, owner(p), w.partition)
		return err
	})
}

// drop closes the connection, which releases its lock.
func (w *writer) drop() {
	if w.conn == nil {
		return
	}
	_ = w.conn.Raw(func(any) error { return driver.ErrBadConn }) // makes the pool discard it
	_ = w.conn.Close()
	w.conn = nil
}

func (w *writer) usable(ctx context.Context) error {
	if w.stopped != nil {
		return w.stopped
	}
	if w.conn == nil {
		return w.open(ctx)
	}
	return nil
}

// transact runs change as one transaction and determines, where possible, whether
// it is stored.
func (w *writer) transact(ctx context.Context, change func(*transaction) error) error {
	err := w.usable(ctx)
	if err == nil && w.doubt != nil {
		err = w.certify(ctx)
	}
	if err != nil {
		return w.notWritten(err)
	}
	t := &transaction{w: w, ctx: ctx, mark: w.mark}
	err = t.run(func() error {
		if err := change(t); err != nil {
			return err
		}
		return t.advance()
	})
	w.untold = nil
	switch {
	case err == nil:
		w.absent, w.mark = false, t.mark
		return nil
	case !t.committing:
		return w.notWritten(err)
	}
	w.absent, w.doubt = false, &doubt{after: t.mark}
	return &store.Failure{Err: w.store.wrap(err)}
}

func (w *writer) notWritten(err error) error {
	w.nothing()
	if w.store.dialect.full(err) {
		err = fmt.Errorf("%w: %w", store.ErrFull, err)
	}
	return &store.Failure{NotWritten: true, Err: w.store.wrap(err)}
}

// nothing records a call that wrote nothing. Doubt about an earlier call remains.
func (w *writer) nothing() {
	w.absent, w.untold = true, nil
	if w.doubt != nil {
		w.doubt.past = true
	}
}

// fenced stops the writer because the mark is not what it wrote last.
func (w *writer) fenced(now mark) error {
	why := "two brokers share a connection's name and a storage identity; stop one, and restart the other"
	if now.writer == w.token || now == (mark{}) {
		why = fmt.Sprintf("its mark is %d, and was %d: the server has lost what it had confirmed, or was replaced by another; restart the broker", now.batch, w.mark.batch)
	}
	w.stopped = fmt.Errorf("%w: partition %v: %s", store.ErrFenced, w.store.options.Partition, why)
	return w.stopped
}

// certify commits a transaction of its own. It waits for the row lock of the
// doubtful transaction and then reads the mark: that transaction is stored, or
// never will be. Servers write their log in order, so this commit makes
// everything before it durable.
func (w *writer) certify(ctx context.Context) error {
	if err := w.usable(ctx); err != nil {
		return err
	}
	var now mark
	t := &transaction{w: w, ctx: ctx}
	err := t.run(func() (err error) {
		if sync := w.store.dialect.sync; sync != "" {
			if _, err := w.conn.ExecContext(ctx, sync); err != nil {
				return err
			}
		}
		if now, err = t.readMark(); err == nil {
			_, err = t.exec("UPDATE custody_partition SET fence = fence + 1 WHERE id = ?", w.partition)
		}
		return err
	})
	if err != nil {
		return err
	}
	d := w.doubt
	w.doubt = nil
	switch {
	case now == w.mark: // the doubtful transaction, if any, is absent
		w.absent = w.absent || d != nil
	case d != nil && now == d.after:
		w.absent, w.mark = d.past, now
	default:
		w.untold = w.fenced(now)
	}
	return nil
}

// duplicate returns the message ID for which the batch's insert failed: the first
// that is stored already, or else one that the batch repeats.
func (w *writer) duplicate(ctx context.Context, batch []store.Operation) string {
	var ids []string
	seen := map[string]bool{}
	twice := ""
	for _, op := range batch {
		if op.Kind != store.Insert {
			continue
		}
		if seen[op.Row.MessageID] && twice == "" {
			twice = op.Row.MessageID
		}
		seen[op.Row.MessageID] = true
		ids = append(ids, op.Row.MessageID)
	}
	there := map[string]bool{}
	_ = w.store.find(ctx, ids, "r.message_id", "", func(rows *sql.Rows) error { // on failure the last insert of the batch is named
		var id []byte
		err := rows.Scan(&id)
		there[string(id)] = true
		return err
	})
	for _, id := range ids {
		if there[id] {
			return id
		}
	}
	if twice == "" && len(ids) > 0 {
		twice = ids[len(ids)-1]
	}
	return twice
}

// transaction is a transaction in progress.
type transaction struct {
	w          *writer
	ctx        context.Context
	mark       mark // if it is stored
	changed    bool
	committing bool // the COMMIT was sent and not refused
}

// run runs do in a transaction and commits it. After an error nothing of it is
// stored, unless committing is still set.
func (t *transaction) run(do func() error) (err error) {
	if _, err := t.exec(t.w.store.dialect.begin); err != nil {
		t.w.drop()
		return fmt.Errorf("begin: %w", err)
	}
	t.changed = false
	if err = do(); err == nil {
		err = t.ctx.Err()
	}
	if err != nil {
		t.rollback()
		return err
	}
	t.committing = true
	if _, err := t.w.conn.ExecContext(t.ctx, "COMMIT"); err != nil {
		if t.committing = !t.w.store.dialect.answered(err); t.committing {
			t.w.drop()
		} else {
			t.rollback()
		}
		return fmt.Errorf("commit: %w", err)
	}
	t.committing = false
	return nil
}

// rollbackBound limits the wait for a server that does not answer.
const rollbackBound = 2 * time.Second

// rollback rolls the transaction back. If that fails, it closes the connection.
func (t *transaction) rollback() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), rollbackBound)
	defer cancel()
	if _, err := t.w.conn.ExecContext(ctx, "ROLLBACK"); err != nil {
		t.w.drop()
	}
}

// exec returns the number of rows changed.
func (t *transaction) exec(statement string, args ...any) (n int64, err error) {
	result, err := t.w.conn.ExecContext(t.ctx, t.w.store.dialect.bind(statement), args...)
	if err != nil {
		return 0, err
	}
	if n, err = result.RowsAffected(); n > 0 {
		t.changed = true
	}
	return n, err
}

// readMark stops the writer if there is no mark.
func (t *transaction) readMark() (m mark, err error) {
	d := t.w.store.dialect
	err = t.w.conn.QueryRowContext(t.ctx, d.bind("SELECT writer, batch, last_ord, settled FROM custody_partition"+d.hint+" WHERE id = ?"+d.forUpdate), t.w.partition).
		Scan(&m.writer, &m.batch, &m.order, &m.settled)
	if errors.Is(err, sql.ErrNoRows) {
		err = t.w.fenced(mark{})
	}
	return m, err
}

// advance sets the mark if the transaction changed anything, and verifies that
// the previous mark is still this store's.
func (t *transaction) advance() error {
	before := t.w.mark
	if !t.changed {
		t.mark = before
		now, err := t.readMark()
		if err == nil && now != before {
			err = t.w.fenced(now)
		}
		return err
	}
	t.mark.writer, t.mark.batch = t.w.token, before.batch+1
	n, err := t.exec("UPDATE custody_partition SET writer = ?, batch = ?, last_ord = ?, settled = ? WHERE id = ? AND writer = ? AND batch = ?",
		t.mark.writer, t.mark.batch, t.mark.order, t.mark.settled, t.w.partition, before.writer, before.batch)
	if err != nil || n == 1 {
		return err
	}
	now, err := t.readMark()
	if err == nil {
		err = t.w.fenced(now)
	}
	return err
}
