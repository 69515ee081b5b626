package open

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/custodymq/custody/broker/store"
)

// A connection that does not open is never replaced by another: not by one of the
// same name in the second list, and not by one that is nearly right. Whatever the
// driver, the error names the connection, and shows no password.
func TestNoFallBack(t *testing.T) {
	misfits := map[string][]string{
		"sqlite":    {"/no/such/folder/rows.db", "", "postgres://u:secret@host/db"},
		"memory":    {"rows.db"},
		"postgres":  {"postgres://u:secret@127.0.0.1:1/db", "rows.db", "postgres://u:secret@ho st/db", ""},
		"mysql":     {"u:secret@tcp(127.0.0.1:1)/db", "rows.db", "u:secret@", ""},
		"sqlserver": {"sqlserver://u:secret@127.0.0.1:1?database=db", "sqlserver://u:secret@ho st"},
		"redis":     {"redis://u:secret@127.0.0.1:1/0", "rows.db", ""},
	}
	for driver := range drivers {
		if len(misfits[driver]) == 0 {
			t.Errorf("driver %s is not tried", driver)
		}
		for _, dsn := range misfits[driver] {
			t.Run(driver+" "+strings.ReplaceAll(dsn, "/", "_"), func(t *testing.T) {
				other := filepath.Join(t.TempDir(), "other.db")
				lists := store.Connections{
					First:  store.ConnectionList{Title: "flags", Entries: []store.Connection{{Name: "orders", Driver: driver, DSN: dsn}}},
					Second: store.ConnectionList{Title: "broker.json", Entries: []store.Connection{{Name: "orders", Driver: "sqlite", DSN: other}, {Name: "stock", Driver: driver, DSN: dsn}}},
				}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				s, err := Open(ctx, lists, "orders", identity, Options{})
				if err == nil {
					s.Close()
					t.Fatalf("%v was opened", s.Partition())
				}
				if text := err.Error(); !strings.Contains(text, `connection "orders", driver `+driver) || strings.Contains(text, "secret") {
					t.Errorf("the error is %q", text)
				}
				if _, err := os.Stat(other); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("the connection of the second list was tried: %v", err)
				}
				for _, name := range []string{"Orders", "orders ", "order", "Stock"} {
					_, err := Open(ctx, lists, name, identity, Options{})
					var missing *store.NoConnectionError
					if !errors.As(err, &missing) {
						t.Errorf("%q: %v", name, err)
						continue
					}
					for _, part := range []string{`flags has "orders"`, `broker.json has "orders", "stock"`} {
						if !strings.Contains(err.Error(), part) {
							t.Errorf("%q: %q is not in %q", name, part, err)
						}
					}
				}
			})
		}
	}
}
