package relational

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"

	"github.com/custodymq/custody/broker/store/servertest"
)

// server is a database server of the tests.
type server struct {
	*servertest.Server
	dialect Dialect
	dsn     func(database string) string
}

// kinds are the servers that can be started here.
var kinds = map[string]func(t testing.TB, port int) *server{"postgres": postgresServer, "mariadb": mariadbServer}

var servers servertest.Shared[*server]

// running returns the server of that kind, started once for all tests.
func running(t testing.TB, kind string) *server {
	t.Helper()
	return servers.Get(kind, func() *server {
		s := kinds[kind](t, servertest.FreePort(t))
		s.Answers = func(ctx context.Context) error {
			db, err := s.dialect.open(s.dsn("postgres"))
			if err != nil {
				return err
			}
			defer db.Close()
			return db.PingContext(ctx)
		}
		s.Start(t)
		return s
	})
}

func postgresServer(t testing.TB, port int) *server {
	return &server{servertest.Postgres(t, port, ""), Postgres, func(database string) string {
		return fmt.Sprintf("postgres://custody@127.0.0.1:%d/%s?sslmode=disable", port, database)
	}}
}

func mariadbServer(t testing.TB, port int) *server {
	return &server{servertest.MariaDB(t, port, ""), MySQL, func(database string) string {
		if database == "postgres" {
			database = "mysql"
		}
		return fmt.Sprintf("custody@tcp(127.0.0.1:%d)/%s", port, database)
	}}
}

var databases struct {
	sync.Mutex
	made int
}

// database returns the DSN of a new database with the tables.
func (s *server) database(t testing.TB) string {
	t.Helper()
	dsn := s.empty(t)
	if from, err := Migrate(t.Context(), s.dialect, dsn); err != nil || from != 0 {
		t.Fatalf("migrate: from %d, %v", from, err)
	}
	return dsn
}

func (s *server) empty(t testing.TB) string {
	t.Helper()
	databases.Lock()
	databases.made++
	name := fmt.Sprintf("custody_%d", databases.made)
	databases.Unlock()
	s.exec(t, s.dsn("postgres"), "CREATE DATABASE "+name)
	t.Cleanup(func() { s.exec(t, s.dsn("postgres"), "DROP DATABASE "+name) })
	return s.dsn(name)
}

// exec runs a statement, as another program might.
func (s *server) exec(t testing.TB, dsn, statement string, args ...any) {
	t.Helper()
	s.with(t, dsn, func(db *sql.DB) error {
		_, err := db.ExecContext(context.WithoutCancel(t.Context()), s.dialect.bind(statement), args...)
		return err
	})
}

func (s *server) with(t testing.TB, dsn string, do func(*sql.DB) error) {
	t.Helper()
	db, err := s.dialect.open(dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := do(db); err != nil {
		t.Fatal(err)
	}
}
