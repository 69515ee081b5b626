package sqlite

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/custodymq/custody/broker/store"
)

// TestCountIsWhatLoadGives checks that Count matches the number of rows that Load
// returns.
func TestCountIsWhatLoadGives(t *testing.T) {
	now := time.Unix(1000, 0)
	s := mustOpen(t, Options{Path: filepath.Join(t.TempDir(), "rows.db"), Now: func() time.Time { return now }})
	batch := inserts(9, "m")
	settle := func(i int, keep time.Time) {
		batch = append(batch, store.Operation{Kind: store.Delete, Row: store.Row{MessageID: batch[i].Row.MessageID, KeepUntil: keep}})
	}
	for i := range 4 {
		settle(i, now.Add(time.Hour))
	}
	settle(4, now.Add(-time.Second))
	settle(5, time.Time{})
	batch = append(batch, store.Operation{Kind: store.DeadLetter, Row: store.Row{MessageID: batch[6].Row.MessageID, Reason: "r"}})
	if err := s.Apply(context.Background(), batch); err != nil {
		t.Fatal(err)
	}
	for _, settled := range []int{0, 2, 4, 100} {
		loaded := 0
		if err := s.Load(context.Background(), settled, func(store.Row) error { loaded++; return nil }); err != nil {
			t.Fatal(err)
		}
		n, err := s.Count(context.Background(), settled)
		if err != nil || n != loaded || loaded != 3+min(settled, 4) {
			t.Errorf("with %d settled: counted %d, loaded %d, %v", settled, n, loaded, err)
		}
	}
}
