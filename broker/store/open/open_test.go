package open

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/custodymq/custody/broker/store"
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
	}}}
	for _, test := range []struct{ name, err string }{
		{name: "file"},
		{name: "fleeting"},
		{"unknown", `unknown driver "sqlite3"; known are memory, mysql, postgres, redis, sqlite, sqlserver`},
		{"misfit", "another driver's"},
		{"uri", "path of a file"},
		{"elsewhere", "no URL of Redis"},
		{"placed", "takes no DSN"},
		{"blank", "no path"},
		{"File", "nearly right"},
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
