package redisstore

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/sqlite"
	"github.com/custodymq/custody/broker/store/storetest"
)

func TestHandover(t *testing.T) {
	for _, program := range programs {
		for where, inFile := range map[string]string{"in one server": "", "from a file": storetest.Source, "to a file": storetest.Target} {
			t.Run(program+" "+where, func(t *testing.T) {
				server := running(t, program)
				dsn, file := server.database(t), filepath.Join(t.TempDir(), "rows.db")
				storetest.Handover(t, func(ctx context.Context, p store.Partition) (store.Store, error) {
					if p.Connection == inFile {
						return sqlite.Open(ctx, sqlite.Options{Path: file, Partition: p})
					}
					return Open(ctx, Options{DSN: dsn, Partition: p})
				})
			})
		}
	}
}

func TestMaintenance(t *testing.T) {
	for _, program := range programs {
		t.Run(program, func(t *testing.T) {
			dsn := running(t, program).database(t)
			storetest.Maintenance(t, func(ctx context.Context, p store.Partition) (store.Store, error) {
				return Open(ctx, Options{DSN: dsn, Partition: p})
			})
		})
	}
}
