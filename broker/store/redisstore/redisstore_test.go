package redisstore

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/storetest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	stopServers()
	if code == 0 {
		// The client looks once more, up to a second after Close, whether a server
		// that was killed is back.
		err := goleak.Find()
		for deadline := time.Now().Add(5 * time.Second); err != nil && time.Now().Before(deadline); {
			err = goleak.Find()
		}
		if err != nil {
			println(err.Error())
			code = 1
		}
	}
	os.Exit(code)
}

var orders = store.Partition{Connection: "orders", Identity: "node-a"}

func mustOpen(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() }) // checked where the test closes it itself
	return s
}

func TestStore(t *testing.T) {
	for _, program := range programs {
		t.Run(program, func(t *testing.T) {
			server := running(t, program)
			storetest.Exercise(t, func(t *testing.T) storetest.Database {
				dsn := server.database(t)
				open := func(o Options) func(*testing.T, store.Partition) store.Store {
					return func(t *testing.T, p store.Partition) store.Store {
						o.DSN, o.Partition = dsn, p
						return mustOpen(t, o)
					}
				}
				return storetest.Database{
					Open: open(Options{}), History: open(Options{KeepHistory: true}), Durable: true,
					Bounded: func(t *testing.T, p store.Partition, n int) store.Store { return open(Options{MaxSettled: n})(t, p) },
					Damage: func(t *testing.T, s store.Store, id string) {
						server.alter(t, dsn, s.Partition(), "heads", id, func(_ string, head string) string {
							return strings.Replace(head, "orders/new", "orders/old", 1)
						})
					},
					Age: func(t *testing.T, s store.Store, id string, version uint8) {
						server.alter(t, dsn, s.Partition(), "states", id, func(order, state string) string {
							fields, err := fieldsOf(order, state, stateFields)
							if err != nil {
								t.Fatal(err)
							}
							fields[stateVersion] = decimal(version)
							return string(seal(order, fields...))
						})
					},
				}
			})
		})
	}
}

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	server := start(t, "redis-server", "unixsocket", path)
	defer server.stop()
	s := mustOpen(t, Options{DSN: "unix://" + path + "?db=3&appendfsync=always", Partition: orders})
	defer s.Close()
	if err := s.Apply(t.Context(), []store.Operation{insertion("a")}); err != nil {
		t.Fatal(err)
	}
	server.with(t, server.dsn(3), func(c *redis.Client) error {
		n, err := c.Exists(t.Context(), s.keys...).Result()
		if n == 0 {
			t.Error("the rows are in another database")
		}
		return err
	})
}

// TestDamage checks that damage to each of a row's three values is detected, and
// that changes leave the row alone.
func TestDamage(t *testing.T) {
	server := running(t, "redis-server")
	for _, key := range []string{"heads", "states", "contents"} {
		for name, damage := range map[string]func(_, value string) string{
			"a bit":   func(_, v string) string { return v[:5] + string(v[5]^1) + v[6:] },
			"cut":     func(_, v string) string { return v[:len(v)/2] },
			"missing": func(_, v string) string { return "" },
		} {
			t.Run(key+" "+name, func(t *testing.T) {
				dsn := server.database(t)
				s := mustOpen(t, Options{DSN: dsn, Partition: orders})
				a := insertion("a")
				if err := s.Apply(t.Context(), []store.Operation{a, insertion("b")}); err != nil {
					t.Fatal(err)
				}
				server.alter(t, dsn, orders, key, "a", damage)
				if err := s.Apply(t.Context(), []store.Operation{{Kind: store.Attempt, Row: store.Row{MessageID: "a", Attempts: 1}}}); err != nil {
					t.Fatal(err)
				}
				var got []store.Row
				if err := s.Rows(t.Context(), store.Selection{Content: true}, func(r store.Row) error { got = append(got, r); return nil }); err != nil {
					t.Fatal(err)
				}
				if len(got) != 2 || got[0].State != store.Damaged || got[1].State != store.Pending {
					t.Errorf("got %+v", got)
				}
			})
		}
	}
}

func TestStartRefusals(t *testing.T) {
	refused := func(t *testing.T, o Options, want string) {
		t.Helper()
		o.Partition = orders
		s, err := Open(t.Context(), o)
		if err == nil {
			s.Close()
			t.Fatalf("opened; want an error with %q", want)
		}
		if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("got %v; want %q, and no password", err, want)
		}
	}
	refused(t, Options{DSN: "postgres://u:secret@h/d"}, "no URL of Redis")
	refused(t, Options{DSN: "redis://u:secret@127.0.0.1:1/0"}, "connection refused")
	server := running(t, "redis-server")
	dsn := server.database(t)
	refused(t, Options{DSN: dsn, Sync: store.FlushNever}, "for memory")

	first := mustOpen(t, Options{DSN: dsn, Partition: orders})
	refused(t, Options{DSN: dsn}, "is owned by broker orders (process ")
	mustOpen(t, Options{DSN: dsn, Partition: store.Partition{Connection: "orders", Identity: "node-b"}}).Close()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	mustOpen(t, Options{DSN: dsn, Partition: orders}).Close()
	server.with(t, dsn, func(c *redis.Client) error {
		return c.HSet(t.Context(), keysOf(orders)[partitionKey], "layout", "99").Err()
	})
	refused(t, Options{DSN: dsn}, "layout 99")
	server.with(t, dsn, func(c *redis.Client) error { return c.Del(t.Context(), keysOf(orders)[partitionKey]).Err() })
	server.with(t, dsn, func(c *redis.Client) error { return c.Set(t.Context(), keysOf(orders)[pendingKey], "x", 0).Err() })
	refused(t, Options{DSN: dsn}, "is a string")

	for _, test := range []struct {
		name     string
		settings []string
		sync     store.Flush
		query    string
		err      string
	}{
		{name: "no AOF", settings: []string{"appendonly", "no"}, err: "appendonly no"},
		{name: "no AOF, periodic", settings: []string{"appendonly", "no"}, sync: store.FlushPeriodic, err: "appendonly no"},
		{name: "every second", settings: []string{"appendfsync", "everysec"}, err: "appendfsync everysec"},
		{name: "every second, periodic", settings: []string{"appendfsync", "everysec"}, sync: store.FlushPeriodic},
		{name: "never, periodic", settings: []string{"appendfsync", "no"}, sync: store.FlushPeriodic, err: "appendfsync no"},
		{name: "not while rewriting", settings: []string{"no-appendfsync-on-rewrite", "yes"}, err: "no-appendfsync-on-rewrite yes"},
		{name: "evicting", settings: []string{"maxmemory-policy", "allkeys-lru"}, err: "maxmemory-policy allkeys-lru"},
		{name: "replica", settings: []string{"replicaof", "127.0.0.1 1"}, err: "is a slave"},
		{name: "CONFIG forbidden", settings: []string{"rename-command", "CONFIG \"\""}, err: "add appendfsync=always"},
		{name: "CONFIG forbidden, vouched for", settings: []string{"rename-command", "CONFIG \"\""}, query: "?appendfsync=always"},
		{name: "CONFIG forbidden, no", settings: []string{"rename-command", "CONFIG \"\""}, query: "?appendfsync=everysec", err: "appendfsync everysec"},
		{name: "password", settings: []string{"requirepass", "other"}, err: "NOAUTH"},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := start(t, "redis-server", test.settings...)
			defer server.stop()
			o := Options{DSN: server.dsn(0) + test.query, Sync: test.sync}
			if test.err != "" {
				refused(t, o, test.err)
				return
			}
			o.Partition = orders
			mustOpen(t, o).Close()
		})
	}
}
