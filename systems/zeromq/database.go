package zeromq

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"time"

	_ "github.com/ncruces/go-sqlite3/driver" // registers "sqlite3"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/sqlite"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems"
)

// database is where a run's broker keeps its rows. It outlives the broker's
// process, and is read past it.
type database interface {
	// connection is what the broker opens: the driver's name and the DSN.
	connection() (driver, dsn string)
	// spare is another place, to which the rows can be swapped.
	spare() (driver, dsn string)
	// wire is the protocol between broker and server; nil if there is none.
	wire() links.Protocol
	// rows gives every row of every partition, whole, and as it is.
	rows(ctx context.Context, fn func(store.Row) error) error
	// plant writes a row of any payload version while the broker is down.
	plant(ctx context.Context, p store.Partition, row store.Row) error
	// damage changes rows by a statement of SQL's, past the broker.
	damage(ctx context.Context, statement string) error
	// faults are those of the server as a whole, by verb.
	faults() map[string]serverFault
	// release ends what it has for this run.
	release(ctx context.Context) error
}

// serverFault strikes a server, and returns what ends that. Its effect was seen.
type serverFault func(ctx context.Context) (heal func(context.Context) error, err error)

// databaseKind makes databases on a kind of server.
type databaseKind interface {
	title() string
	installed() error              // nil if the server is on this machine
	version() (program, of string) // as it is installed
	strikes() []string             // the verbs of its faults, but fill
	lacks() map[systems.Need]string
	open(ctx context.Context, env systems.Env) (database, error)
}

// FlushPolicy is when what the broker accepts is on disk.
func (p Profile) FlushPolicy() store.Flush {
	if p.server == (ownMemory{}) {
		return store.FlushNever
	}
	return p.flush
}

// open gives the profile's kind of database.
func (p Profile) open(ctx context.Context, env systems.Env) (database, error) {
	if p.server != nil {
		return p.server.open(ctx, env)
	}
	if !env.Volume {
		return file{path: filepath.Join(env.Dir, "broker.db")}, nil
	}
	dir := filepath.Join(env.Dir, "volume")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("zeromq: folder of the database: %w", err)
	}
	volume, err := process.Mount(dir, fileVolume)
	return file{filepath.Join(dir, "broker.db"), volume}, err
}

// Installed reports whether the server of the profile's database is on this machine.
func (p Profile) Installed() error {
	if p.server == nil {
		return nil
	}
	return p.server.installed()
}

const notInstalled = "not installed"

// installedWithin bounds asking a program for its version.
const installedWithin = 5 * time.Second

var printedVersion = regexp.MustCompile(`\d+\.\d[\w.]*`)

// versionOf asks a program for its version.
func versionOf(path string) string {
	ctx, cancel := context.WithTimeout(context.Background(), installedWithin)
	defer cancel()
	printed, err := exec.CommandContext(ctx, path, "--version").Output()
	if found := printedVersion.Find(printed); err == nil && found != nil {
		return string(found)
	}
	return "unknown"
}

// file is a database of SQLite's.
type file struct {
	path   string
	volume *process.Volume // nil: it lies where everything else does
}

const fileVolume = 8 << 20 // bytes

// path of the broker's database; empty if that is no file.
func (in *instance) path() string {
	f, _ := in.database.(file)
	return f.path
}

func (f file) connection() (driver, dsn string) { return "sqlite", f.path }

func (file) wire() links.Protocol { return nil }

func (f file) faults() map[string]serverFault {
	return map[string]serverFault{"fill": filling(f.volume, func(context.Context) error { return nil })}
}

// filling fills a volume; emptied, what fell for want of space is started again.
func filling(v *process.Volume, revive func(context.Context) error) serverFault {
	return func(context.Context) (func(context.Context) error, error) {
		if v == nil {
			return nil, errors.New("zeromq: the store has no file system of its own")
		}
		return func(ctx context.Context) error { return errors.Join(v.Empty(), revive(ctx)) }, v.Fill()
	}
}

// spareFile holds what was swapped out of the other one.
func (f file) spareFile() file { return file{f.path + "-spare", f.volume} }

func (f file) spare() (driver, dsn string) { return f.spareFile().connection() }

func (f file) open(mode string) (*sql.DB, error) {
	db, err := sql.Open("sqlite3", "file:"+f.path+"?mode="+mode+"&_pragma=busy_timeout(5000)")
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", f.path, err)
	}
	return db, nil
}

// rows are those of the other file too, if there is one.
func (f file) rows(ctx context.Context, fn func(store.Row) error) error {
	err := f.rowsHere(ctx, fn)
	if _, missing := os.Stat(f.spareFile().path); err == nil && missing == nil {
		err = f.spareFile().rowsHere(ctx, fn)
	}
	return err
}

func (f file) rowsHere(ctx context.Context, fn func(store.Row) error) error {
	db, err := f.open("ro")
	if err != nil {
		return err
	}
	defer db.Close()
	return rowsOf(ctx, db, `SELECT p.connection, p.identity, r.state, r.version, r.message_id, r.business_id, r.topic, r.competitor,
		r.key, coalesce(r.headers, ''), coalesce(r.expires_at, 0), r.attempts, r.reason, coalesce(r.payload, x'')
		FROM custody_row r JOIN custody_partition p ON p.id = r.partition ORDER BY r.ord`, fn)
}

func (f file) plant(ctx context.Context, p store.Partition, row store.Row) error {
	return sqlite.Plant(ctx, f.path, p, row)
}

func (f file) damage(ctx context.Context, statement string) error {
	db, err := f.open("rw")
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = db.ExecContext(ctx, statement)
	return err
}

func (f file) release(context.Context) error { return f.volume.Close() }

// rowsOf scans what a statement selects.
func rowsOf(ctx context.Context, db *sql.DB, statement string, fn func(store.Row) error) error {
	rows, err := db.QueryContext(ctx, statement)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var (
			r       store.Row
			headers string
			expires int64
		)
		if err := rows.Scan(&r.Partition.Connection, &r.Partition.Identity, &r.State, &r.Version, &r.MessageID, &r.BusinessID, &r.Topic, &r.Group,
			&r.Key, &headers, &expires, &r.Attempts, &r.Reason, &r.Payload); err != nil {
			return err
		}
		r.Headers = headersOf(headers)
		if expires != 0 {
			r.ExpiresAt = time.Unix(0, expires)
		}
		if err := fn(r); err != nil {
			return err
		}
	}
	return rows.Err()
}

func headersOf(text string) map[string]string {
	if text == "" {
		return nil
	}
	var h map[string]string
	if json.Unmarshal([]byte(text), &h) != nil {
		return map[string]string{"": text} // corrupted: makes the digest differ
	}
	return h
}
