package relational

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/sqlite"
	"github.com/custodymq/custody/broker/store/storetest"
)

func TestHandover(t *testing.T) {
	for kind := range kinds {
		for where, inFile := range map[string]string{"in one server": "", "from a file": storetest.Source, "to a file": storetest.Target} {
			t.Run(kind+" "+where, func(t *testing.T) {
				server := running(t, kind)
				dsn, file := server.database(t), filepath.Join(t.TempDir(), "rows.db")
				storetest.Handover(t, func(ctx context.Context, p store.Partition) (store.Store, error) {
					if p.Connection == inFile {
						return sqlite.Open(ctx, sqlite.Options{Path: file, Partition: p})
					}
					return Open(ctx, server.dialect, Options{DSN: dsn, Partition: p})
				})
			})
		}
	}
}

func TestMaintenance(t *testing.T) {
	for kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			server := running(t, kind)
			dsn := server.database(t)
			storetest.Maintenance(t, func(ctx context.Context, p store.Partition) (store.Store, error) {
				return Open(ctx, server.dialect, Options{DSN: dsn, Partition: p})
			})
		})
	}
}
