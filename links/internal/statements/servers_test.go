package statements_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/custodymq/custody/broker/store/relational"
	"github.com/custodymq/custody/broker/store/servertest"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/mysql"
	"github.com/custodymq/custody/links/postgres"
)

// server is a database server shared by all tests, with the store's tables.
type server struct {
	dialect  relational.Dialect
	protocol links.Protocol
	capture  string
	dsn      func(address string) string
	create   func(t testing.TB, port int, password string) *servertest.Server

	address string
}

const password = "custody"

var servers = map[string]*server{
	"postgres": {
		dialect: relational.Postgres, protocol: postgres.Protocol{}, capture: "../../postgres/testdata/store.capture",
		dsn: func(address string) string {
			return "postgres://custody:" + password + "@" + address + "/postgres?sslmode=disable"
		},
		create: servertest.Postgres,
	},
	"mysql": {
		dialect: relational.MySQL, protocol: mysql.Protocol{}, capture: "../../mysql/testdata/store.capture",
		dsn:    func(address string) string { return "custody:" + password + "@tcp(" + address + ")/mysql" },
		create: servertest.MariaDB,
	},
}

var running servertest.Shared[*servertest.Server]

func TestMain(m *testing.M) {
	code := m.Run()
	running.Stop()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// run starts the server on first use and creates the store's tables.
func (s *server) run(t testing.TB) {
	t.Helper()
	running.Get(s.capture, func() *servertest.Server {
		port := servertest.FreePort(t)
		s.address = fmt.Sprintf("127.0.0.1:%d", port)
		one := s.create(t, port, password)
		one.Answers = func(ctx context.Context) error {
			db, err := s.dialect.Connect(s.dsn(s.address))
			if err != nil {
				return err
			}
			defer db.Close()
			return db.PingContext(ctx)
		}
		one.Start(t)
		if _, err := relational.Migrate(t.Context(), s.dialect, s.dsn(s.address)); err != nil {
			t.Fatal(err)
		}
		return one
	})
}

// patiently retries until try succeeds.
func patiently(ctx context.Context, try func() error) error {
	for {
		err := try()
		if err == nil || ctx.Err() != nil {
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}
