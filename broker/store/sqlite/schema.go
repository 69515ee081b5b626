package sqlite

import (
	"fmt"

	"github.com/ncruces/go-sqlite3"
)

// schemaVersion is in PRAGMA user_version of every file. A change to the schema
// raises it; an older file is then refused, never guessed at.
const schemaVersion = 1

// applicationID tells our files from other SQLite files: "CUST".
const applicationID = 0x43555354

// schema has every table and index with the text that SQLite keeps of it. Times
// are Unix nanoseconds; NULL is none. There is no index on state: starting
// reads the partition once, and every index costs each write.
var schema = map[string]string{
	// writer, batch and fence: see mark and writer.certify.
	"custody_partition": `CREATE TABLE custody_partition (
	id INTEGER PRIMARY KEY,
	connection TEXT NOT NULL,
	identity TEXT NOT NULL,
	writer INTEGER NOT NULL DEFAULT 0,
	batch INTEGER NOT NULL DEFAULT 0,
	fence INTEGER NOT NULL DEFAULT 0,
	UNIQUE (connection, identity)
) STRICT`,
	"custody_row": `CREATE TABLE custody_row (
	ord INTEGER PRIMARY KEY,
	partition INTEGER NOT NULL REFERENCES custody_partition(id),
	message_id TEXT NOT NULL,
	state INTEGER NOT NULL,
	version INTEGER NOT NULL,
	business_id TEXT NOT NULL,
	topic TEXT NOT NULL,
	competitor TEXT NOT NULL,
	key TEXT NOT NULL,
	headers TEXT,
	inserted_at INTEGER,
	expires_at INTEGER,
	attempts INTEGER NOT NULL,
	last_consumer TEXT NOT NULL,
	reason TEXT NOT NULL,
	keep_until INTEGER,
	payload BLOB,
	UNIQUE (partition, message_id)
) STRICT`,
	"custody_deadline": `CREATE INDEX custody_deadline ON custody_row (partition, expires_at) WHERE expires_at IS NOT NULL`,
	"custody_window":   `CREATE INDEX custody_window ON custody_row (partition, keep_until) WHERE keep_until IS NOT NULL`,
}

var schemaOrder = []string{"custody_partition", "custody_row", "custody_deadline", "custody_window"}

// prepareSchema makes the schema in an empty file and checks it in any other.
func prepareSchema(conn *sqlite3.Conn) (err error) {
	tx, err := conn.BeginImmediate() // two brokers may start at once
	if err != nil {
		return err
	}
	defer tx.End(&err)

	found := map[string]string{}
	err = query(conn, `SELECT name, coalesce(sql, '') FROM sqlite_schema`, func(stmt *sqlite3.Stmt) {
		found[stmt.ColumnText(0)] = stmt.ColumnText(1)
	})
	if err != nil {
		return err
	}
	var application, version int
	err = query(conn, `SELECT a.application_id, v.user_version FROM pragma_application_id a, pragma_user_version v`, func(stmt *sqlite3.Stmt) {
		application, version = stmt.ColumnInt(0), stmt.ColumnInt(1)
	})
	if err != nil {
		return err
	}

	if len(found) == 0 && application == 0 && version == 0 {
		for _, name := range schemaOrder {
			if err := conn.Exec(schema[name]); err != nil {
				return fmt.Errorf("make %s: %w", name, err)
			}
		}
		return conn.Exec(fmt.Sprintf(`PRAGMA application_id=%d; PRAGMA user_version=%d`, applicationID, schemaVersion))
	}
	switch {
	case application != applicationID:
		return fmt.Errorf("this SQLite file is not a broker's store (application_id %#x); name another path", application)
	case version > schemaVersion:
		return fmt.Errorf("schema version %d is newer than this build's %d: use a newer broker", version, schemaVersion)
	case version < schemaVersion:
		return fmt.Errorf("schema version %d is older than this build's %d: drain it with the older broker, then use a new file", version, schemaVersion)
	}
	for _, name := range schemaOrder {
		sql, there := found[name]
		if !there {
			return fmt.Errorf("%s is missing: the file was tampered with; restore it from a backup", name)
		}
		if sql != schema[name] {
			return fmt.Errorf("%s is not as schema version %d has it: the file was altered; restore it from a backup", name, schemaVersion)
		}
	}
	return nil
}

// query runs a statement once.
func query(conn *sqlite3.Conn, sql string, row func(*sqlite3.Stmt)) error {
	stmt, _, err := conn.Prepare(sql)
	if err != nil {
		return err
	}
	defer stmt.Close()
	for stmt.Step() {
		row(stmt)
	}
	return stmt.Err()
}
