package zeromq

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"

	_ "github.com/ncruces/go-sqlite3/driver" // registers "sqlite3"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/sqlite"
	"github.com/custodymq/custody/systems"
)

// database is where a run's broker keeps its rows. It outlives the broker's
// process, and is read past it.
type database interface {
	// connection is what the broker opens: the driver's name and the DSN.
	connection() (driver, dsn string)
	// reader gives it for reading, and the statement for all rows: see rowsOf.
	reader() (db *sql.DB, rows string, err error)
	// plant writes a row of any payload version while the broker is down.
	plant(ctx context.Context, p store.Partition, row store.Row) error
	// release ends what it has for this run.
	release(ctx context.Context) error
}

// open gives the profile's kind of database.
func (p Profile) open(ctx context.Context, env systems.Env) (database, error) {
	if p.server != nil {
		return p.server.open(ctx, env)
	}
	return file(filepath.Join(env.Dir, "broker.db")), nil
}

// file is a database of SQLite's.
type file string

func (f file) connection() (driver, dsn string) { return "sqlite", string(f) }

func (f file) reader() (*sql.DB, string, error) {
	db, err := sql.Open("sqlite3", "file:"+string(f)+"?mode=ro&_pragma=busy_timeout(5000)")
	if err != nil {
		return nil, "", fmt.Errorf("zeromq: open %s: %w", string(f), err)
	}
	return db, `SELECT p.connection, p.identity, r.state, r.version, r.message_id, r.business_id, r.topic, r.competitor,
		r.key, coalesce(r.headers, ''), coalesce(r.expires_at, 0), r.attempts, r.reason, coalesce(r.payload, x'')
		FROM custody_row r JOIN custody_partition p ON p.id = r.partition ORDER BY r.ord`, nil
}

func (f file) plant(ctx context.Context, p store.Partition, row store.Row) error {
	return sqlite.Plant(ctx, string(f), p, row)
}

func (file) release(context.Context) error { return nil }
