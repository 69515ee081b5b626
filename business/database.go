// Package business is the application side of a run: a database in which every
// effect is a row, with a consumption log written in the same transaction.
package business

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ncruces/go-sqlite3"
	_ "github.com/ncruces/go-sqlite3/driver" // registers "sqlite3"

	"github.com/custodymq/custody/evidence"
)

// Database is one application's SQLite file. Processes can share it, and a
// killed one leaves what it committed. Safe for concurrent use.
type Database struct{ db *sql.DB }

// The effect table has no unique constraint on purpose: a duplicate effect must
// show as two rows. Only the consumption log is unique.
const schema = `
CREATE TABLE IF NOT EXISTS effect (
	subscriber TEXT NOT NULL, business_id TEXT NOT NULL,
	publish_id TEXT NOT NULL, message_id TEXT NOT NULL, digest TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS consumption_log (
	subscriber TEXT NOT NULL, message_id TEXT NOT NULL,
	business_id TEXT NOT NULL, publish_id TEXT NOT NULL,
	PRIMARY KEY (subscriber, message_id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS record (business_id TEXT NOT NULL PRIMARY KEY, producer TEXT NOT NULL) WITHOUT ROWID;`

// Open opens or creates the database at path.
func Open(ctx context.Context, path string) (*Database, error) {
	db, err := sql.Open("sqlite3", "file:"+path+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate")
	if err != nil {
		return nil, fmt.Errorf("business: open %s: %w", path, err)
	}
	db.SetMaxOpenConns(4)
	if _, err := db.ExecContext(ctx, schema); err != nil {
		return nil, errors.Join(fmt.Errorf("business: prepare %s: %w", path, err), db.Close())
	}
	return &Database{db: db}, nil
}

func (d *Database) Close() error { return d.db.Close() }

// Delivery is what a handler knows of a message.
type Delivery struct {
	Subscriber string // the logical subscriber
	BusinessID string
	PublishID  string
	MessageID  string
	Digest     string
	LogKey     string // consumption log key, shared by all repeats of the message
}

// Outcome is the outcome of a business transaction.
type Outcome uint8

const (
	// Failed: rolled back, no effect.
	Failed Outcome = iota
	// Committed: the effect is stored.
	Committed
	// Absorbed: a duplicate by the consumption log, no effect.
	Absorbed
	// Uncertain: COMMIT did not return success.
	Uncertain
)

// Apply commits the effect of a message. With log, it writes the consumption
// log in the same transaction and absorbs duplicates.
func (d *Database) Apply(ctx context.Context, m Delivery, log bool) (Outcome, error) {
	tx, err := d.db.BeginTx(ctx, nil)
	if err != nil {
		return Failed, fmt.Errorf("business: begin: %w", err)
	}
	defer tx.Rollback() // no-op after a commit
	if log {
		_, err := tx.ExecContext(ctx, `INSERT INTO consumption_log VALUES (?, ?, ?, ?)`, m.Subscriber, m.LogKey, m.BusinessID, m.PublishID)
		if errors.Is(err, sqlite3.CONSTRAINT_UNIQUE) || errors.Is(err, sqlite3.CONSTRAINT_PRIMARYKEY) {
			return Absorbed, nil
		}
		if err != nil {
			return Failed, fmt.Errorf("business: consumption log of %s: %w", m.BusinessID, err)
		}
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO effect VALUES (?, ?, ?, ?, ?)`,
		m.Subscriber, m.BusinessID, m.PublishID, m.MessageID, m.Digest); err != nil {
		return Failed, fmt.Errorf("business: effect of %s: %w", m.BusinessID, err)
	}
	if err := tx.Commit(); err != nil {
		return Uncertain, fmt.Errorf("business: commit of %s: %w", m.BusinessID, err)
	}
	return Committed, nil
}

// Record commits a producer's business row, on its own: its message is another
// matter. A row that is there already stays.
func (d *Database) Record(ctx context.Context, producer, businessID string) error {
	if _, err := d.db.ExecContext(ctx, `INSERT INTO record VALUES (?, ?) ON CONFLICT DO NOTHING`, businessID, producer); err != nil {
		return fmt.Errorf("business: record of %s: %w", businessID, err)
	}
	return nil
}

// Backup copies the committed state to a new file.
func (d *Database) Backup(ctx context.Context, path string) error {
	if _, err := d.db.ExecContext(ctx, `VACUUM INTO ?`, path); err != nil {
		return fmt.Errorf("business: back up to %s: %w", path, err)
	}
	return nil
}

// Restore replaces all rows with those of a backup, in one transaction,
// including the consumption log.
func (d *Database) Restore(ctx context.Context, path string) (err error) {
	conn, err := d.db.Conn(ctx) // an attached database belongs to one connection
	if err != nil {
		return fmt.Errorf("business: restore from %s: %w", path, err)
	}
	defer func() {
		if err = errors.Join(err, conn.Close()); err != nil {
			err = fmt.Errorf("business: restore from %s: %w", path, err)
		}
	}()
	if _, err := conn.ExecContext(ctx, `ATTACH DATABASE ? AS backup`, "file:"+path+"?mode=ro"); err != nil {
		return err
	}
	_, failed := conn.ExecContext(ctx, `
BEGIN IMMEDIATE;
DELETE FROM main.effect;
DELETE FROM main.consumption_log;
INSERT INTO main.effect SELECT * FROM backup.effect ORDER BY rowid;
INSERT INTO main.consumption_log SELECT * FROM backup.consumption_log;
COMMIT;`)
	if failed != nil {
		_, undone := conn.ExecContext(context.WithoutCancel(ctx), `ROLLBACK`)
		failed = errors.Join(failed, undone)
	}
	_, detached := conn.ExecContext(context.WithoutCancel(ctx), `DETACH DATABASE backup`)
	return errors.Join(failed, detached)
}

// Rows returns all effects and the consumption log.
func (d *Database) Rows(ctx context.Context) (evidence.Snapshot, error) {
	s := evidence.Snapshot{Source: evidence.SourceBusiness, Trust: evidence.Exact}
	for _, table := range []struct {
		state evidence.RowState
		query string
	}{
		{evidence.RowEffect, `SELECT subscriber, business_id, publish_id, message_id, digest FROM effect ORDER BY rowid`},
		{evidence.RowLog, `SELECT subscriber, business_id, publish_id, message_id, '' FROM consumption_log`},
	} {
		rows, err := d.db.QueryContext(ctx, table.query)
		if err != nil {
			return s, fmt.Errorf("business: read %s rows: %w", table.state, err)
		}
		for rows.Next() {
			r := evidence.StoredRow{State: table.state}
			if err := rows.Scan(&r.Subscription, &r.BusinessID, &r.PublishID, &r.MessageID, &r.Digest); err != nil {
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
