package sqlite

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/handover"
	"github.com/custodymq/custody/broker/store/storetest"
	"github.com/custodymq/custody/broker/wire"
)

func TestHandover(t *testing.T) {
	for name, path := range map[string]func(connection string) string{
		"two files": func(connection string) string { return connection + ".db" },
		"one file":  func(string) string { return "rows.db" },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			storetest.Handover(t, func(ctx context.Context, p store.Partition) (store.Store, error) {
				return Open(ctx, Options{Path: filepath.Join(dir, path(p.Connection)), Partition: p})
			})
		})
	}
}

func TestMaintenance(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a[b.db")
	storetest.Maintenance(t, func(ctx context.Context, p store.Partition) (store.Store, error) {
		s, err := Open(ctx, Options{Path: path, Partition: p})
		if err != nil {
			return nil, err
		}
		return s, nil
	})
	// A broker on another partition of the file must not wait for a rewrite of it.
	s := mustOpen(t, Options{Path: path})
	other := mustOpen(t, Options{Path: path, Partition: store.Partition{Connection: "other", Identity: "i"}})
	if err := s.Compact(t.Context()); err == nil {
		t.Error("compacted under a neighbour that runs")
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Compact(t.Context()); err != nil {
		t.Error(err)
	}
}

// BenchmarkHandover is how long publishes wait for a swap between two files.
func BenchmarkHandover(b *testing.B) {
	const rows = 10_000
	for b.Loop() {
		b.StopTimer()
		dir := b.TempDir()
		from := mustOpen(b, Options{Path: filepath.Join(dir, "from.db"), Partition: store.Partition{Connection: "from", Identity: "i"}})
		to := mustOpen(b, Options{Path: filepath.Join(dir, "to.db"), Partition: store.Partition{Connection: "to", Identity: "i"}})
		var batch []store.Operation
		for i := range rows {
			batch = append(batch, store.Operation{Kind: store.Insert, Row: store.Row{MessageID: fmt.Sprint("m-", i), BusinessID: fmt.Sprint("b-", i),
				Topic: "orders", Payload: make([]byte, 256), Version: wire.Version, InsertedAt: time.Now()}})
		}
		if err := from.Apply(b.Context(), batch); err != nil {
			b.Fatal(err)
		}
		m, err := handover.Check(b.Context(), from, to)
		if err == nil {
			err = m.Prepare(b.Context())
		}
		b.StartTimer()
		if err == nil {
			_, err = m.Run(b.Context())
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N*rows)/b.Elapsed().Seconds(), "rows/s")
}
