package business

import (
	"context"
	"os"
	"strconv"
	"testing"

	"github.com/custodymq/custody/broker/store/servertest"
)

func init() {
	stores["postgres"] = func(t *testing.T, gate Gate) Store {
		usePostgres(t)
		d, err := CreatePostgres(t.Context(), gate)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
}

// servers is the one server of this test binary.
var servers servertest.Shared[*servertest.Server]

func TestMain(m *testing.M) {
	code := m.Run()
	servers.Stop()
	os.Exit(code)
}

// usePostgres makes the environment name a server: the one that it names already,
// or one started here.
func usePostgres(t *testing.T) {
	t.Helper()
	if os.Getenv("PGHOST") != "" {
		return
	}
	servers.Get("postgres", func() *servertest.Server {
		port := servertest.FreePort(t)
		server := servertest.Postgres(t, port, "")
		for name, value := range map[string]string{"PGHOST": "127.0.0.1", "PGPORT": strconv.Itoa(port), "PGUSER": "custody", "PGDATABASE": "postgres"} {
			if err := os.Setenv(name, value); err != nil { // beyond this test: the server is shared
				t.Fatal(err)
			}
		}
		server.Answers = func(ctx context.Context) error {
			db, err := postgres.open("")
			if err != nil {
				return err
			}
			defer db.Close()
			return db.PingContext(ctx)
		}
		server.Start(t)
		return server
	})
}

// Two relays of one server claim the same rows at the same moment.
func TestConcurrentClaimsOnAServer(t *testing.T) { testConcurrentClaims(t, "postgres") }

// On PostgreSQL transactions run beside each other, which SQLite never does.
func TestConcurrentInstancesOnAServer(t *testing.T) { testTwoInstances(t, "postgres") }
