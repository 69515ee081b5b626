package business

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/custodymq/custody/evidence"
)

// Database is one application's database. Safe for concurrent use.
type Database struct {
	db   *sql.DB
	in   dialect
	gate Gate
	drop func() error // after closing; nil for nothing
}

// The effect table has no unique constraint on purpose: a duplicate effect must
// show as two rows.
const schema = `
CREATE TABLE IF NOT EXISTS effect (
	n SERIAL, subscriber TEXT NOT NULL, business_id TEXT NOT NULL,
	publish_id TEXT NOT NULL, message_id TEXT NOT NULL, digest TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS consumption_log (
	n SERIAL, subscriber TEXT NOT NULL, message_id TEXT NOT NULL,
	business_id TEXT NOT NULL, publish_id TEXT NOT NULL, copy BIGINT NOT NULL DEFAULT 0,
	UNIQUE (subscriber, message_id, copy));
CREATE TABLE IF NOT EXISTS business_key (subscriber TEXT NOT NULL, business_id TEXT NOT NULL, PRIMARY KEY (subscriber, business_id));
CREATE TABLE IF NOT EXISTS order_state (subscriber TEXT NOT NULL, business_id TEXT NOT NULL, state TEXT NOT NULL, PRIMARY KEY (subscriber, business_id));
CREATE TABLE IF NOT EXISTS business_lock (subscriber TEXT NOT NULL, business_id TEXT NOT NULL, taken BIGINT NOT NULL DEFAULT 0, PRIMARY KEY (subscriber, business_id));
CREATE TABLE IF NOT EXISTS business_record (business_id TEXT NOT NULL PRIMARY KEY, producer TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS outbox (
	seq BIGINT NOT NULL PRIMARY KEY, business_id TEXT NOT NULL, message_id TEXT NOT NULL, destination TEXT NOT NULL,
	ordering_key TEXT NOT NULL, headers TEXT NOT NULL, body BYTES NOT NULL, ttl BIGINT NOT NULL,
	sent BIGINT NOT NULL DEFAULT 0, claimed_by TEXT NOT NULL DEFAULT '', claimed_until BIGINT NOT NULL DEFAULT 0, tries BIGINT NOT NULL DEFAULT 0);
CREATE UNIQUE INDEX IF NOT EXISTS outbox_message ON outbox (message_id) WHERE message_id <> '';
`

// Open opens or creates the SQLite database at path; Gate may be nil.
func Open(ctx context.Context, path string, gate Gate) (*Database, error) {
	return open(ctx, sqlite, path, gate)
}

// CreatePostgres creates a database in the PostgreSQL server that libpq's environment
// variables name (PGHOST, PGUSER, PGPASSWORD…), and drops it when it is closed:
// https://www.postgresql.org/docs/current/libpq-envars.html
func CreatePostgres(ctx context.Context, gate Gate) (*Database, error) {
	server, err := postgres.open("")
	if err != nil {
		return nil, fmt.Errorf("business: %w", err)
	}
	name := "custody_" + strings.ToLower(rand.Text())
	if _, err := server.ExecContext(ctx, "CREATE DATABASE "+name); err != nil {
		return nil, errors.Join(fmt.Errorf("business: create a database on the server that PGHOST and the like name: %w", err), server.Close())
	}
	drop := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), dropTimeout)
		defer cancel()
		_, err := server.ExecContext(ctx, "DROP DATABASE "+name+" WITH (FORCE)")
		if err := errors.Join(err, server.Close()); err != nil {
			return fmt.Errorf("business: drop the database %s: %w", name, err)
		}
		return nil
	}
	d, err := open(ctx, postgres, "dbname="+name, gate)
	if err != nil {
		return nil, errors.Join(err, drop())
	}
	d.drop = drop
	return d, nil
}

const dropTimeout = 30 * time.Second

func open(ctx context.Context, in dialect, name string, gate Gate) (*Database, error) {
	db, err := in.open(name)
	if err != nil {
		return nil, fmt.Errorf("business: open the database: %w", err)
	}
	db.SetMaxOpenConns(8)
	tables := strings.NewReplacer("SERIAL", in.serial, "BYTES", in.bytes).Replace(schema)
	if _, err := db.ExecContext(ctx, tables+in.counter); err != nil {
		return nil, errors.Join(fmt.Errorf("business: prepare the database: %w", err), db.Close())
	}
	return &Database{db: db, in: in, gate: gate}, nil
}

func (d *Database) Close() error {
	err := d.db.Close()
	if d.drop != nil {
		err = errors.Join(err, d.drop())
	}
	return err
}

// performed are the operations of a handler.
var performed = map[Op]func(ctx context.Context, tx transaction, m Delivery) (repeat bool, err error){
	Log: func(ctx context.Context, tx transaction, m Delivery) (bool, error) {
		return tx.refused(ctx, `INSERT INTO consumption_log (subscriber, message_id, business_id, publish_id) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING`,
			m.Subscriber, m.LogKey, m.BusinessID, m.PublishID)
	},
	Note: func(ctx context.Context, tx transaction, m Delivery) (bool, error) { // each copy has a number of its own, so that nothing is unique
		_, err := tx.exec(ctx, `INSERT INTO consumption_log (subscriber, message_id, business_id, publish_id, copy)
			SELECT CAST(? AS TEXT), CAST(? AS TEXT), CAST(? AS TEXT), CAST(? AS TEXT), COALESCE(MAX(n), 0) + 1 FROM consumption_log`,
			m.Subscriber, m.LogKey, m.BusinessID, m.PublishID)
		return false, err
	},
	Check: func(ctx context.Context, tx transaction, m Delivery) (bool, error) {
		return tx.found(ctx, `SELECT COUNT(*) FROM consumption_log WHERE subscriber = ? AND message_id = ?`, m.Subscriber, m.LogKey)
	},
	Prune: func(ctx context.Context, tx transaction, m Delivery) (bool, error) {
		_, err := tx.exec(ctx, `DELETE FROM consumption_log WHERE subscriber = ? AND n < (SELECT MAX(n) FROM consumption_log WHERE subscriber = ?)`, m.Subscriber, m.Subscriber)
		return false, err
	},
	Unique: func(ctx context.Context, tx transaction, m Delivery) (bool, error) {
		return tx.refused(ctx, `INSERT INTO business_key VALUES (?, ?) ON CONFLICT DO NOTHING`, m.Subscriber, m.BusinessID)
	},
	Transition: func(ctx context.Context, tx transaction, m Delivery) (bool, error) {
		if _, err := tx.exec(ctx, `INSERT INTO order_state VALUES (?, ?, 'new') ON CONFLICT DO NOTHING`, m.Subscriber, m.BusinessID); err != nil {
			return false, err
		}
		return tx.refused(ctx, `UPDATE order_state SET state = 'paid' WHERE subscriber = ? AND business_id = ? AND state = 'new'`, m.Subscriber, m.BusinessID)
	},
	Lock: lock,
	Done: func(ctx context.Context, tx transaction, m Delivery) (bool, error) {
		return tx.found(ctx, `SELECT COUNT(*) FROM effect WHERE subscriber = ? AND business_id = ?`, m.Subscriber, m.BusinessID)
	},
	Effect: insertEffect,
	// Two may set the value at once: the lock keeps both from inserting it.
	Assign: func(ctx context.Context, tx transaction, m Delivery) (bool, error) {
		if _, err := lock(ctx, tx, m); err != nil {
			return false, err
		}
		set, err := tx.exec(ctx, `UPDATE effect SET publish_id = ?, message_id = ?, digest = ? WHERE subscriber = ? AND business_id = ?`,
			m.PublishID, m.MessageID, m.Digest, m.Subscriber, m.BusinessID)
		if err != nil || set > 0 {
			return false, err
		}
		return insertEffect(ctx, tx, m)
	},
}

func lock(ctx context.Context, tx transaction, m Delivery) (bool, error) {
	if _, err := tx.exec(ctx, `INSERT INTO business_lock (subscriber, business_id) VALUES (?, ?) ON CONFLICT DO NOTHING`, m.Subscriber, m.BusinessID); err != nil {
		return false, err
	}
	_, err := tx.exec(ctx, `UPDATE business_lock SET taken = taken + 1 WHERE subscriber = ? AND business_id = ?`, m.Subscriber, m.BusinessID)
	return false, err
}

func insertEffect(ctx context.Context, tx transaction, m Delivery) (bool, error) {
	_, err := tx.exec(ctx, `INSERT INTO effect (subscriber, business_id, publish_id, message_id, digest) VALUES (?, ?, ?, ?, ?)`,
		m.Subscriber, m.BusinessID, m.PublishID, m.MessageID, m.Digest)
	return false, err
}

// transaction is an open transaction.
type transaction struct {
	*sql.Tx
	in dialect
}

func (t transaction) exec(ctx context.Context, statement string, args ...any) (changed int64, err error) {
	result, err := t.ExecContext(ctx, t.in.bind(statement), args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// refused reports whether the statement changed nothing.
func (t transaction) refused(ctx context.Context, statement string, args ...any) (bool, error) {
	changed, err := t.exec(ctx, statement, args...)
	return changed == 0, err
}

// found reports whether the query counts anything.
func (t transaction) found(ctx context.Context, query string, args ...any) (bool, error) {
	var n int
	err := t.QueryRowContext(ctx, t.in.bind(query), args...).Scan(&n)
	return n > 0, err
}

// transact commits what do does. An Absorbed transaction is rolled back.
func (d *Database) transact(ctx context.Context, businessID string, do func(transaction) (Outcome, error)) (Outcome, error) {
	tx, err := d.db.BeginTx(ctx, nil)
	if err != nil {
		return Failed, fmt.Errorf("business: begin: %w", err)
	}
	defer tx.Rollback() // no-op after a commit
	if outcome, err := do(transaction{tx, d.in}); err != nil || outcome != Committed {
		return outcome, err
	}
	tried := false
	err = d.gate.through(ctx, Commit, businessID, func() error { tried = true; return tx.Commit() })
	switch {
	case err == nil:
		return Committed, nil
	case tried:
		return Uncertain, fmt.Errorf("business: commit of %s: %w", businessID, err)
	}
	return Failed, err
}

func (d *Database) Apply(ctx context.Context, m Delivery, ops []Op) (Outcome, error) {
	return d.transact(ctx, m.BusinessID, func(tx transaction) (Outcome, error) {
		for _, op := range ops {
			repeat := false
			if err := d.gate.through(ctx, op, m.BusinessID, func() (err error) {
				repeat, err = performed[op](ctx, tx, m)
				return err
			}); err != nil {
				return Failed, fmt.Errorf("business: %s of %s: %w", op, m.BusinessID, err)
			}
			if repeat {
				return Absorbed, nil
			}
		}
		return Committed, nil
	})
}

func (d *Database) Record(ctx context.Context, producer, businessID string, messages ...Pending) (Outcome, error) {
	for i := range messages {
		if err := d.db.QueryRowContext(ctx, d.in.next).Scan(&messages[i].Seq); err != nil {
			return Failed, fmt.Errorf("business: a number for the message of %s: %w", businessID, err)
		}
	}
	// SQLite has one writer: what strikes this transaction must not stop others.
	if err := d.gate.through(ctx, Record, businessID, func() error { return nil }); err != nil {
		return Failed, err
	}
	return d.transact(ctx, businessID, func(tx transaction) (Outcome, error) {
		if _, err := tx.exec(ctx, `INSERT INTO business_record VALUES (?, ?) ON CONFLICT DO NOTHING`, businessID, producer); err != nil {
			return Failed, fmt.Errorf("business: record of %s: %w", businessID, err)
		}
		for _, m := range messages {
			if err := d.gate.through(ctx, Enqueue, businessID, func() error { return tx.enqueue(ctx, m) }); err != nil {
				return Failed, fmt.Errorf("business: outbox row of %s: %w", businessID, err)
			}
		}
		return Committed, nil
	})
}

func (t transaction) enqueue(ctx context.Context, m Pending) error {
	headers, err := json.Marshal(m.Headers)
	if err != nil {
		return err
	}
	_, err = t.exec(ctx, `INSERT INTO outbox (seq, business_id, message_id, destination, ordering_key, headers, body, ttl) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
		m.Seq, m.BusinessID, m.MessageID, m.Destination, m.Key, string(headers), append([]byte{}, m.Body...), int64(m.TTL))
	return err
}

// claimable are the rows that a relay may take, by destination, the time and a
// number of rows.
const claimable = `SELECT seq FROM outbox o WHERE sent = 0 AND destination = ? AND claimed_until <= ?
	AND (ordering_key = '' OR NOT EXISTS (SELECT 1 FROM outbox earlier
		WHERE earlier.destination = o.destination AND earlier.ordering_key = o.ordering_key AND earlier.sent = 0 AND earlier.seq < o.seq))
	ORDER BY seq LIMIT ?`

const outboxColumns = `seq, business_id, message_id, destination, ordering_key, headers, body, ttl, tries`

func (d *Database) Claim(ctx context.Context, c Claim) (claimed []Pending, err error) {
	query := `WITH free AS MATERIALIZED (` + claimable + d.in.skipLocked + `) ` +
		`UPDATE outbox SET claimed_by = ?, claimed_until = ?, tries = tries + 1 WHERE seq IN (SELECT seq FROM free) RETURNING ` + outboxColumns
	args := []any{c.Destination, c.Now.UnixNano(), c.Most, c.Relay, c.Now.Add(c.Lease).UnixNano()}
	if c.After >= 0 {
		query = `UPDATE outbox SET tries = tries + 1 WHERE seq IN (SELECT seq FROM outbox WHERE destination = ? AND seq > ? ORDER BY seq LIMIT ?) RETURNING ` + outboxColumns
		args = []any{c.Destination, c.After, c.Most}
	}
	err = d.gate.through(ctx, Take, "", func() error {
		claimed, err = d.pending(ctx, query, args...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("business: claim rows of the outbox: %w", err)
	}
	slices.SortFunc(claimed, func(a, b Pending) int { return cmp.Compare(a.Seq, b.Seq) }) // RETURNING has no order
	return claimed, nil
}

func (d *Database) pending(ctx context.Context, query string, args ...any) (list []Pending, err error) {
	rows, err := d.db.QueryContext(ctx, d.in.bind(query), args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var m Pending
		var headers string
		var ttl int64
		if err := rows.Scan(&m.Seq, &m.BusinessID, &m.MessageID, &m.Destination, &m.Key, &headers, &m.Body, &ttl, &m.Tries); err != nil {
			return nil, err
		}
		m.TTL = time.Duration(ttl)
		if err := json.Unmarshal([]byte(headers), &m.Headers); err != nil {
			return nil, fmt.Errorf("headers of row %d: %w", m.Seq, err)
		}
		list = append(list, m)
	}
	return list, rows.Err()
}

func (d *Database) Mark(ctx context.Context, seq int64, businessID string) error {
	return d.gate.through(ctx, Mark, businessID, func() error {
		return d.change(ctx, `UPDATE outbox SET sent = 1 WHERE seq = ?`, seq)
	})
}

func (d *Database) Release(ctx context.Context, seq int64) error {
	return d.gate.through(ctx, Release, "", func() error {
		return d.change(ctx, `UPDATE outbox SET claimed_until = 0 WHERE seq = ?`, seq)
	})
}

func (d *Database) change(ctx context.Context, statement string, seq int64) error {
	if _, err := d.db.ExecContext(ctx, d.in.bind(statement), seq); err != nil {
		return fmt.Errorf("business: row %d of the outbox: %w", seq, err)
	}
	return nil
}

// Backup copies the committed effects and log to a new file.
func (d *Database) Backup(ctx context.Context, path string) error {
	return d.onConnection(ctx, "back up to "+path, path, d.in.backup)
}

// Restore replaces the effects and the log with those of a backup, in one
// transaction.
func (d *Database) Restore(ctx context.Context, path string) (err error) {
	return d.onConnection(ctx, "restore from "+path, path, d.in.restore)
}

// onConnection has a connection do what belongs to one, such as an attached
// database.
func (d *Database) onConnection(ctx context.Context, what, path string, do func(context.Context, *sql.Conn, string) error) error {
	conn, err := d.db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("business: %s: %w", what, err)
	}
	if err := errors.Join(do(ctx, conn, path), conn.Close()); err != nil {
		return fmt.Errorf("business: %s: %w", what, err)
	}
	return nil
}

func (d *Database) Rows(ctx context.Context) (evidence.Snapshot, error) {
	s := evidence.Snapshot{Source: evidence.SourceBusiness, Trust: evidence.Exact}
	const unsent, sent = `SELECT '', business_id, '', message_id, '', destination, tries FROM outbox WHERE sent = 0 ORDER BY seq`, `SELECT '', business_id, '', message_id, '', destination, tries FROM outbox WHERE sent = 1 ORDER BY seq`
	for _, table := range []struct {
		state evidence.RowState
		query string
	}{
		{evidence.RowEffect, `SELECT subscriber, business_id, publish_id, message_id, digest, '', 0 FROM effect ORDER BY n`},
		{evidence.RowLog, `SELECT subscriber, business_id, publish_id, message_id, '', '', 0 FROM consumption_log ORDER BY n`},
		{outboxStates[false], unsent},
		{outboxStates[true], sent},
	} {
		rows, err := d.db.QueryContext(ctx, table.query)
		if err != nil {
			return s, fmt.Errorf("business: read %s rows: %w", table.state, err)
		}
		for rows.Next() {
			r := evidence.StoredRow{State: table.state}
			if err := rows.Scan(&r.Subscription, &r.BusinessID, &r.PublishID, &r.MessageID, &r.Digest, &r.Destination, &r.Attempts); err != nil {
				return s, errors.Join(fmt.Errorf("business: read a %s row: %w", table.state, err), rows.Close())
			}
			s.Rows = append(s.Rows, r)
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			return s, fmt.Errorf("business: read %s rows: %w", table.state, err)
		}
	}
	s.Count = len(s.Rows)
	return s, nil
}
