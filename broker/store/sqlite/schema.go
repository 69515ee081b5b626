package sqlite

import (
	"errors"
	"fmt"

	"github.com/ncruces/go-sqlite3"
)

// schemaVersion is PRAGMA user_version of every file. A schema change increments
// it and needs a step in migrate.go.
const schemaVersion = 2

// applicationID distinguishes our files from other SQLite files: "CUST".
const applicationID = 0x43555354

// object is a table or an index, with the SQL text that SQLite stores for it.
type object struct{ name, sql string }

// schema of this version. Times are Unix nanoseconds, NULL if there is none. The
// content comes last, so that reading a row's head does not touch overflow pages.
// Every index slows down every insert, so those that only few rows need are
// partial.
var schema = []object{
	// For writer, batch and fence see mark and writer.certify. live counts the
	// partition's pending and dead rows, settled its settled markers, and lost
	// the transactions known to be missing.
	{"custody_partition", `CREATE TABLE custody_partition (
	id INTEGER PRIMARY KEY,
	connection TEXT NOT NULL,
	identity TEXT NOT NULL,
	writer INTEGER NOT NULL DEFAULT 0,
	batch INTEGER NOT NULL DEFAULT 0,
	fence INTEGER NOT NULL DEFAULT 0,
	live INTEGER NOT NULL DEFAULT 0,
	settled INTEGER NOT NULL DEFAULT 0,
	lost INTEGER NOT NULL DEFAULT 0,
	UNIQUE (connection, identity)
) STRICT`},
	{"custody_row", `CREATE TABLE custody_row (
	ord INTEGER PRIMARY KEY,
	partition INTEGER NOT NULL REFERENCES custody_partition(id),
	message_id TEXT NOT NULL,
	state INTEGER NOT NULL,
	version INTEGER NOT NULL,
	business_id TEXT NOT NULL,
	topic TEXT NOT NULL,
	competitor TEXT NOT NULL,
	key TEXT NOT NULL,
	inserted_at INTEGER,
	expires_at INTEGER,
	attempts INTEGER NOT NULL,
	last_consumer TEXT NOT NULL,
	reason TEXT NOT NULL,
	keep_until INTEGER,
	checksum INTEGER NOT NULL,
	content_checksum INTEGER NOT NULL,
	headers TEXT,
	payload BLOB,
	UNIQUE (partition, message_id)
) STRICT`},
	{"custody_deadline", `CREATE INDEX custody_deadline ON custody_row (partition, expires_at) WHERE state=1 AND expires_at IS NOT NULL`},
	{"custody_processed", `CREATE INDEX custody_processed ON custody_row (partition, keep_until) WHERE state=2 AND keep_until IS NOT NULL`},
	{"custody_settled", `CREATE INDEX custody_settled ON custody_row (partition, keep_until) WHERE state=3 AND keep_until IS NOT NULL`},
	{"custody_dead", `CREATE INDEX custody_dead ON custody_row (partition) WHERE state=4`},
}

// prepareSchema creates the schema in an empty file, migrates an older one, and
// verifies it in any other.
func prepareSchema(conn *sqlite3.Conn) (err error) {
	tx, err := conn.BeginImmediate() // two brokers may start at once
	if err != nil {
		return err
	}
	defer tx.End(&err)

	found, application, version, err := readSchema(conn)
	if err != nil {
		return err
	}
	if len(found) == 0 && application == 0 && version == 0 {
		return create(conn)
	}
	if err := ours(application, version); err != nil {
		return err
	}
	if version == 1 {
		if err := altered(found, schema1, version); err != nil {
			return err
		}
		if err := migrate1(conn); err != nil {
			return fmt.Errorf("migrate from schema version 1: %w", err)
		}
		return nil
	}
	return altered(found, schema, version)
}

func readSchema(conn *sqlite3.Conn) (found map[string]string, application, version int, err error) {
	found = map[string]string{}
	err = query(conn, `SELECT name, coalesce(sql, '') FROM sqlite_schema`, func(stmt *sqlite3.Stmt) {
		found[stmt.ColumnText(0)] = stmt.ColumnText(1)
	})
	if err != nil {
		return nil, 0, 0, err
	}
	err = query(conn, `SELECT a.application_id, v.user_version FROM pragma_application_id a, pragma_user_version v`, func(stmt *sqlite3.Stmt) {
		application, version = stmt.ColumnInt(0), stmt.ColumnInt(1)
	})
	return found, application, version, err
}

func create(conn *sqlite3.Conn) error {
	for _, o := range schema {
		if err := conn.Exec(o.sql); err != nil {
			return fmt.Errorf("make %s: %w", o.name, err)
		}
	}
	return conn.Exec(fmt.Sprintf(`PRAGMA application_id=%d; PRAGMA user_version=%d`, applicationID, schemaVersion))
}

func ours(application, version int) error {
	switch {
	case application != applicationID:
		return fmt.Errorf("this SQLite file is not a broker's store (application_id %#x); name another path", application)
	case version > schemaVersion:
		return fmt.Errorf("schema version %d is newer than this build's %d: use a newer broker", version, schemaVersion)
	case version < 1:
		return fmt.Errorf("schema version %d is older than any: the file was altered; restore it from a backup", version)
	}
	return nil
}

func altered(found map[string]string, schema []object, version int) error {
	for _, o := range schema {
		sql, there := found[o.name]
		if !there {
			return fmt.Errorf("%s is missing: the file was tampered with; restore it from a backup", o.name)
		}
		if sql != o.sql {
			return fmt.Errorf("%s is not as schema version %d has it: the file was altered; restore it from a backup", o.name, version)
		}
	}
	return nil
}

// query prepares and runs a statement, calling row for each result.
func query(conn *sqlite3.Conn, sql string, row func(*sqlite3.Stmt)) error {
	stmt, _, err := conn.Prepare(sql)
	if err != nil {
		return err
	}
	for stmt.Step() {
		row(stmt)
	}
	return errors.Join(stmt.Err(), stmt.Close())
}
