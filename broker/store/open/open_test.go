package open

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/wire"
)

func identity() (string, error) { return "node-a", nil }

func TestOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	connections := store.Connections{First: store.ConnectionList{Title: "flags", Entries: []store.Connection{
		{Name: "file", Driver: "sqlite", DSN: path},
		{Name: "fleeting", Driver: "memory"},
		{Name: "unknown", Driver: "sqlite3", DSN: path},
		{Name: "misfit", Driver: "sqlite", DSN: "postgres://user:secret@host/db"},
		{Name: "uri", Driver: "sqlite", DSN: "file:store.db?mode=ro"},
		{Name: "elsewhere", Driver: "redis", DSN: "rediss://user:secret@ho st/db"},
		{Name: "placed", Driver: "memory", DSN: path},
		{Name: "blank", Driver: "sqlite"},
		{Name: "periodic", Driver: "sqlite", DSN: path, Flush: "periodic"},
		{Name: "strict", Driver: "sqlite", DSN: path, Flush: "every-commit"},
		{Name: "seldom", Driver: "sqlite", DSN: path, Flush: "seldom"},
		{Name: "never", Driver: "sqlite", DSN: path, Flush: "never"},
		{Name: "flushed", Driver: "memory", Flush: "every-commit"},
	}}}
	for _, test := range []struct {
		name, err string
		flush     store.Flush
	}{
		{name: "file"},
		{name: "fleeting", flush: store.FlushNever},
		{name: "periodic", flush: store.FlushPeriodic},
		{name: "strict"},
		{name: "seldom", err: `connection "seldom", driver sqlite: store: no flush policy is called "seldom"; there are every-commit and periodic`},
		{name: "never", err: `no flush policy is called "never"`},
		{name: "flushed", err: "never flushed"},
		{name: "unknown", err: `unknown driver "sqlite3"; known are memory, mysql, postgres, redis, sqlite, sqlserver`},
		{name: "misfit", err: "another driver's"},
		{name: "uri", err: "path of a file"},
		{name: "elsewhere", err: "no URL of Redis"},
		{name: "placed", err: "takes no DSN"},
		{name: "blank", err: "no path"},
		{name: "File", err: "nearly right"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, err := Open(context.Background(), connections, test.name, identity, Options{})
			if test.err == "" {
				if err != nil {
					t.Fatal(err)
				}
				if want := (store.Partition{Connection: test.name, Identity: "node-a"}); s.Partition() != want {
					t.Errorf("partition %v", s.Partition())
				}
				if flush := s.(store.Durable).Flush(); flush != test.flush {
					t.Errorf("flushed %v, want %v", flush, test.flush)
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				return
			}
			if err == nil {
				s.Close()
				t.Fatal("opened")
			}
			if !strings.Contains(err.Error(), test.err) || strings.Contains(err.Error(), "secret") {
				t.Fatalf("got %q, want %q in it, and no password", err, test.err)
			}
			if s != nil {
				t.Error("a store beside an error")
			}
		})
	}
}

// The field of a connection has the effect of the option.
func TestHistoryOfAConnection(t *testing.T) {
	for _, kept := range []bool{false, true} {
		connections := store.Connections{First: store.ConnectionList{Entries: []store.Connection{{Name: "b", Driver: "memory", KeepHistory: kept}}}}
		s, err := Open(t.Context(), connections, "b", identity, Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		row := store.Row{MessageID: "a", Version: wire.Version}
		if err := s.Apply(t.Context(), []store.Operation{{Kind: store.Insert, Row: row}, {Kind: store.Delete, Row: row}}); err != nil {
			t.Fatal(err)
		}
		left := 0
		if err := s.Rows(t.Context(), store.Selection{}, func(store.Row) error { left++; return nil }); err != nil || left == 1 != kept {
			t.Errorf("history %v: %d rows are left, %v", kept, left, err)
		}
	}
}
