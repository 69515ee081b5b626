package sqlite

import (
	"fmt"

	"github.com/custodymq/custody/broker/store"
	"github.com/ncruces/go-sqlite3"
)

// schema1 had neither checksums nor counts.
var schema1 = []object{
	{"custody_partition", `CREATE TABLE custody_partition (
	id INTEGER PRIMARY KEY,
	connection TEXT NOT NULL,
	identity TEXT NOT NULL,
	writer INTEGER NOT NULL DEFAULT 0,
	batch INTEGER NOT NULL DEFAULT 0,
	fence INTEGER NOT NULL DEFAULT 0,
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
	headers TEXT,
	inserted_at INTEGER,
	expires_at INTEGER,
	attempts INTEGER NOT NULL,
	last_consumer TEXT NOT NULL,
	reason TEXT NOT NULL,
	keep_until INTEGER,
	payload BLOB,
	UNIQUE (partition, message_id)
) STRICT`},
	{"custody_deadline", `CREATE INDEX custody_deadline ON custody_row (partition, expires_at) WHERE expires_at IS NOT NULL`},
	{"custody_window", `CREATE INDEX custody_window ON custody_row (partition, keep_until) WHERE keep_until IS NOT NULL`},
}

// migrate1 copies every row into this version's tables, within the caller's
// transaction. It needs free space equal to the size of the file.
func migrate1(conn *sqlite3.Conn) error {
	err := conn.Exec(`DROP INDEX custody_deadline; DROP INDEX custody_window;
		ALTER TABLE custody_row RENAME TO custody_row_1;
		ALTER TABLE custody_partition RENAME TO custody_partition_1`)
	if err != nil {
		return err
	}
	for _, o := range schema {
		if err := conn.Exec(o.sql); err != nil {
			return fmt.Errorf("make %s: %w", o.name, err)
		}
	}
	content := fmt.Sprintf(`CASE state WHEN %d THEN 0 ELSE custody_content_checksum(message_id, headers, payload) END`, store.SettledMarker)
	return conn.Exec(fmt.Sprintf(`
		INSERT INTO custody_partition (id, connection, identity, writer, batch, fence, live, settled)
			SELECT id, connection, identity, writer, batch, fence,
				(SELECT count(*) FROM custody_row_1 WHERE partition=p.id AND state IN (%d, %d)),
				(SELECT count(*) FROM custody_row_1 WHERE partition=p.id AND state=%d)
			FROM custody_partition_1 p;
		INSERT INTO custody_row (ord, %s, checksum, headers, payload)
			SELECT ord, %s, custody_checksum(%s), headers, payload
			FROM (SELECT *, %s AS content_checksum FROM custody_row_1) ORDER BY ord;
		DROP TABLE custody_row_1;
		DROP TABLE custody_partition_1;
		PRAGMA user_version=%d`,
		store.Pending, store.Dead, store.SettledMarker, head, head, head, content, schemaVersion))
}
