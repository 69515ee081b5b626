package zeromq

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/relational"
	wiremysql "github.com/custodymq/custody/links/mysql"
	wirepostgres "github.com/custodymq/custody/links/postgres"
)

// relationalEngine speaks SQL.
type relationalEngine struct {
	dialect  relational.Dialect
	admin    string      // database that is there from the start
	operator string      // who may do everything; the broker's user may not write to a server that is read-only
	full     string      // in the error of a server that gives no more connections
	readOnly [2][]string // statements that begin and end that the server takes no writes
}

// reload makes PostgreSQL read what ALTER SYSTEM has set.
const reload = "SELECT pg_reload_conf()"

var postgresEngine = relationalEngine{
	dialect: relational.Postgres, admin: "postgres", operator: brokerUser, full: "53300",
	readOnly: [2][]string{{"ALTER SYSTEM SET default_transaction_read_only = on", reload}, {"ALTER SYSTEM RESET default_transaction_read_only", reload}},
}

var postgres = &serverKind{
	name: "postgres", driver: "postgres", protocol: wirepostgres.Protocol{},
	program: "postgres", places: "/usr/lib/postgresql/*/bin", packaged: "postgresql", user: "postgres", end: syscall.SIGINT, volume: 160 << 20,
	engine: postgresEngine, replication: postgresReplication{postgresEngine},
	files: func(password string) map[string]string { return map[string]string{"password": password} },
	create: func(bin, dir string) []string {
		return []string{filepath.Join(bin, "initdb"), "-D", filepath.Join(dir, "data"), "-U", "custody", "-A", "scram-sha-256", "--pwfile", filepath.Join(dir, "password"), "--no-sync", "-E", "UTF8"}
	},
	args: func(dir, port string) []string {
		return []string{"-D", filepath.Join(dir, "data"), "-k", "", "-c", "listen_addresses=127.0.0.1", "-p", port, "-c", "timezone=UTC",
			"-c", fmt.Sprintf("max_connections=%d", maxConnections), "-c", "wal_retrieve_retry_interval=100ms"}
	},
	dsn: func(user, address, password, database string) string {
		return "postgres://" + user + ":" + password + "@" + address + "/" + database + "?sslmode=disable"
	},
}

var mariadbEngine = relationalEngine{
	dialect: relational.MySQL, admin: "mysql", operator: "operator", full: "1040",
	readOnly: [2][]string{{"SET GLOBAL read_only = 1"}, {"SET GLOBAL read_only = 0"}},
}

var mariadb = &serverKind{
	name: "mariadb", driver: "mysql", protocol: wiremysql.Protocol{},
	program: "mariadbd", places: "/usr/sbin", packaged: "mariadb-server", volume: 320 << 20,
	engine: mariadbEngine, replication: mariadbReplication{mariadbEngine},
	// Its users are its own: a standby makes them itself.
	files: func(password string) map[string]string {
		return map[string]string{"users.sql": fmt.Sprintf("SET SESSION sql_log_bin = 0;\n"+
			"CREATE OR REPLACE USER custody@'127.0.0.1' IDENTIFIED BY '%[1]s';\nCREATE OR REPLACE USER custody@localhost IDENTIFIED BY '%[1]s';\n"+
			"CREATE OR REPLACE USER operator@'127.0.0.1' IDENTIFIED BY '%[1]s';\nCREATE OR REPLACE USER operator@localhost IDENTIFIED BY '%[1]s';\n"+
			"GRANT ALL ON *.* TO custody@'127.0.0.1';\nGRANT ALL ON *.* TO custody@localhost;\nGRANT ALL ON *.* TO operator@'127.0.0.1';\nGRANT ALL ON *.* TO operator@localhost;\n"+
			"REVOKE READ_ONLY ADMIN, CONNECTION ADMIN ON *.* FROM custody@'127.0.0.1', custody@localhost;\nALTER USER root@localhost IDENTIFIED BY '%[1]s';\n", password)}
	},
	create: func(_, dir string) []string {
		return []string{"mariadb-install-db", "--no-defaults", "--datadir=" + filepath.Join(dir, "data"), "--tmpdir=" + dir, "--auth-root-authentication-method=normal", "--skip-test-db"}
	},
	args: func(dir, port string) []string {
		args := []string{"--no-defaults", "--datadir=" + filepath.Join(dir, "data"), "--port=" + port, "--bind-address=127.0.0.1",
			// Of its own: a server deletes what it finds in its temporary folder,
			// other servers' tables included.
			"--tmpdir=" + dir, "--socket=" + filepath.Join(dir, "socket"), "--init-file=" + filepath.Join(dir, "users.sql"), "--innodb-flush-log-at-trx-commit=1",
			fmt.Sprintf("--max-connections=%d", maxConnections)}
		if os.Getuid() == 0 {
			args = append(args, "--user=root")
		}
		return args
	},
	dsn: func(user, address, password, database string) string {
		return user + ":" + password + "@tcp(" + address + ")/" + database
	},
}

// with runs do on a connection as the operator.
func (e relationalEngine) with(s *databaseServer, database string, do func(*sql.DB) error) error {
	db, err := e.dialect.Connect(s.kind.dsn(e.operator, s.address, s.password, database))
	if err != nil {
		return err
	}
	return errors.Join(do(db), db.Close())
}

// do runs statements as the operator, each by itself.
func (e relationalEngine) do(ctx context.Context, s *databaseServer, statements ...string) error {
	return e.with(s, e.admin, func(db *sql.DB) error {
		for _, statement := range statements {
			if _, err := db.ExecContext(ctx, statement); err != nil {
				return fmt.Errorf("zeromq: %s: %w", statement, err)
			}
		}
		return nil
	})
}

// await waits until a query says yes.
func (e relationalEngine) await(ctx context.Context, s *databaseServer, query string) error {
	return e.with(s, e.admin, func(db *sql.DB) error {
		return until(ctx, query, func() (yes bool, err error) {
			err = db.QueryRowContext(ctx, query).Scan(&yes)
			return yes, err
		})
	})
}

// until asks until the answer is yes.
func until(ctx context.Context, what string, ask func() (yes bool, err error)) error {
	tick := time.NewTicker(strikeEvery)
	defer tick.Stop()
	for {
		yes, err := ask()
		if yes {
			return nil
		}
		if err != nil {
			return fmt.Errorf("zeromq: %s: %w", what, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("zeromq: %s: %w", what, context.Cause(ctx))
		}
	}
}

func (e relationalEngine) ping(ctx context.Context, s *databaseServer) error {
	return e.with(s, e.admin, func(db *sql.DB) error { return db.PingContext(ctx) })
}

func (e relationalEngine) prepare(ctx context.Context, d *served) error {
	if err := e.do(ctx, d.databaseServer, "CREATE DATABASE "+d.name); err != nil {
		return err
	}
	_, err := relational.Migrate(ctx, e.dialect, d.dsn())
	return err
}

func (e relationalEngine) remove(ctx context.Context, d *served) error {
	return e.do(ctx, d.databaseServer, "DROP DATABASE "+d.name)
}

func (e relationalEngine) rows(ctx context.Context, d *served, fn func(store.Row) error) error {
	return e.with(d.databaseServer, d.name, func(db *sql.DB) error {
		return rowsOf(ctx, db, `SELECT p.connection_name, p.storage_identity, r.state, r.version, r.message_id, r.business_id, r.topic, r.competitor,
			r.routing_key, r.headers, coalesce(r.expires_at, 0), r.attempts, r.reason, r.payload
			FROM custody_row r JOIN custody_partition p ON p.id = r.part ORDER BY r.part, r.ord`, fn)
	})
}

func (e relationalEngine) plant(ctx context.Context, d *served, p store.Partition, row store.Row) error {
	return relational.Plant(ctx, e.dialect, d.dsn(), p, row)
}

func (e relationalEngine) damage(ctx context.Context, d *served, statement string) error {
	return e.with(d.databaseServer, d.name, func(db *sql.DB) error {
		_, err := db.ExecContext(ctx, statement)
		return err
	})
}

func (e relationalEngine) occupy(ctx context.Context, s *databaseServer) (io.Closer, error) {
	db, err := e.dialect.Connect(s.kind.dsn(e.operator, s.address, s.password, e.admin))
	if err != nil {
		return nil, err
	}
	return db, db.PingContext(ctx) // which keeps its connection
}

func (e relationalEngine) crowded(err error) bool { return strings.Contains(err.Error(), e.full) }

func (e relationalEngine) refuse(ctx context.Context, d *served) error {
	if err := e.do(ctx, d.databaseServer, e.readOnly[0]...); err != nil {
		return err
	}
	db, err := e.dialect.Connect(d.dsn())
	if err != nil {
		return err
	}
	defer db.Close()
	return until(ctx, "refuse a write", func() (bool, error) {
		if _, err := db.ExecContext(ctx, "CREATE TABLE custody_written (n INT)"); err != nil {
			return ctx.Err() == nil, ctx.Err()
		}
		_, err := db.ExecContext(ctx, "DROP TABLE custody_written")
		return false, err
	})
}

func (e relationalEngine) permit(ctx context.Context, d *served) error {
	return e.do(ctx, d.databaseServer, e.readOnly[1]...)
}
