package relational

import (
	"context"
	"database/sql"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/storetest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	servers.Stop()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			println(err.Error())
			code = 1
		}
	}
	os.Exit(code)
}

func mustOpen(t testing.TB, d Dialect, o Options) *Store {
	t.Helper()
	s, err := Open(context.Background(), d, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() }) // checked where the test closes it itself
	return s
}

func TestStore(t *testing.T) {
	for kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			server := running(t, kind)
			storetest.Exercise(t, func(t *testing.T) storetest.Database {
				dsn := server.database(t)
				open := func(o Options) func(*testing.T, store.Partition) store.Store {
					return func(t *testing.T, p store.Partition) store.Store {
						o.DSN, o.Partition = dsn, p
						return mustOpen(t, server.dialect, o)
					}
				}
				return storetest.Database{
					Open: open(Options{}), History: open(Options{KeepHistory: true}), Durable: true,
					Bounded: func(t *testing.T, p store.Partition, n int) store.Store { return open(Options{MaxSettled: n})(t, p) },
					Damage: func(t *testing.T, _ store.Store, id string) {
						server.exec(t, dsn, "UPDATE custody_row SET topic = ? WHERE message_id = ?", []byte("elsewhere"), []byte(id))
					},
					Age: func(t *testing.T, _ store.Store, id string, version uint8) {
						server.with(t, dsn, func(db *sql.DB) error {
							var business, topic, key []byte
							var inserted, size, content int64
							err := db.QueryRow(server.dialect.bind("SELECT business_id, topic, routing_key, inserted_at, size, content_sum FROM custody_row WHERE message_id = ?"), []byte(id)).
								Scan(&business, &topic, &key, &inserted, &size, &content)
							if err != nil {
								return err
							}
							aged := store.Row{MessageID: id, BusinessID: string(business), Topic: string(topic), Key: string(key), Version: version, InsertedAt: time.Unix(0, inserted)}
							_, err = db.Exec(server.dialect.bind("UPDATE custody_row SET version = ?, head_sum = ? WHERE message_id = ?"),
								int64(version), headSum(&aged, size, content), []byte(id))
							return err
						})
					},
				}
			})
		})
	}
}

func TestStartRefusals(t *testing.T) {
	for kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			server := running(t, kind)
			refused := func(o Options, want string) {
				t.Helper()
				o.Partition = store.Partition{Connection: "orders", Identity: "node-a"}
				s, err := Open(t.Context(), server.dialect, o)
				if err == nil {
					s.Close()
					t.Fatalf("opened; want an error with %q", want)
				}
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %v; want %q", err, want)
				}
			}
			refused(Options{DSN: "no such://thing secret"}, "the DSN is no")
			dsn := server.empty(t)
			refused(Options{DSN: dsn}, "custody broker migrate")
			if _, err := Migrate(t.Context(), server.dialect, dsn); err != nil {
				t.Fatal(err)
			}
			if from, err := Migrate(t.Context(), server.dialect, dsn); err != nil || from != len(server.dialect.schema) {
				t.Errorf("again: from %d, %v", from, err)
			}
			first := mustOpen(t, server.dialect, Options{DSN: dsn, Partition: store.Partition{Connection: "orders", Identity: "node-a"}})
			refused(Options{DSN: dsn}, "is owned by broker orders (process ")
			mustOpen(t, server.dialect, Options{DSN: dsn, Partition: store.Partition{Connection: "orders", Identity: "node-b"}}).Close()
			if err := first.Close(); err != nil {
				t.Fatal(err)
			}
			mustOpen(t, server.dialect, Options{DSN: dsn, Partition: store.Partition{Connection: "orders", Identity: "node-a"}}).Close()
			server.exec(t, dsn, "UPDATE custody_schema SET version = 99")
			refused(Options{DSN: dsn}, "use a newer one")
		})
	}
}

// What the policy rests on is asked of the session where it has that, and of the
// server where it alone decides.
func TestFlushPolicies(t *testing.T) {
	home := store.Partition{Connection: "orders", Identity: "node-a"}
	t.Run("postgres", func(t *testing.T) {
		server := running(t, "postgres")
		dsn := server.database(t)
		for flush, want := range map[store.Flush]string{store.FlushEveryCommit: "on", store.FlushPeriodic: "off"} {
			s := mustOpen(t, server.dialect, Options{DSN: dsn, Partition: home, Sync: flush})
			w := <-s.writer
			got, err := setting(t.Context(), w.conn, "SHOW synchronous_commit")
			s.writer <- w
			if err != nil || got != want || s.Flush() != flush {
				t.Errorf("%v: synchronous_commit %s, %v; the store says %v", flush, got, err, s.Flush())
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
	t.Run("mariadb", func(t *testing.T) {
		server := running(t, "mariadb")
		dsn := server.database(t)
		set := func(level string) { server.exec(t, dsn, "SET GLOBAL innodb_flush_log_at_trx_commit = "+level) }
		t.Cleanup(func() { set("1") })
		for _, c := range []struct {
			level   string
			flush   store.Flush
			refusal string
		}{
			{level: "1"},
			{level: "1", flush: store.FlushPeriodic},
			{level: "2", refusal: "when power fails: set it to 1"},
			{level: "2", flush: store.FlushPeriodic},
			{level: "0", refusal: "when power fails: set it to 1"},
			{level: "0", flush: store.FlushPeriodic, refusal: "when its process ends: set it to 2"},
		} {
			set(c.level)
			s, err := Open(t.Context(), server.dialect, Options{DSN: dsn, Partition: home, Sync: c.flush})
			if c.refusal != "" {
				if err == nil || !strings.Contains(err.Error(), c.refusal) {
					t.Errorf("level %s, %v: got %v, want %q", c.level, c.flush, err, c.refusal)
				}
			} else if err != nil {
				t.Errorf("level %s, %v: %v", c.level, c.flush, err)
			}
			if s != nil {
				s.Close()
			}
		}
	})
}
