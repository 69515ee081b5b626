package sqlite

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/disk"
	"github.com/custodymq/custody/broker/store/handover"
	"github.com/custodymq/custody/broker/wire"
)

var drives atomic.Int64

// TestHandoverOverPowerCuts cuts the power of both disks at any step. Whichever
// store is in charge then has all rows, in order.
func TestHandoverOverPowerCuts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ctx, dir := context.Background(), folder(t)
		disks := map[string]*disk.Disk{}
		for _, name := range []string{"source", "target"} {
			disks[name] = disk.New(fmt.Sprintf("handover-%d", drives.Add(1)))
			defer disks[name].Close()
		}
		path := func(name string) string { return filepath.Join(dir, name+".db") }
		open := func(ctx context.Context, name string) (store.Store, error) {
			return Open(ctx, Options{Path: path(name), VFS: disks[name].Name(), Partition: store.Partition{Connection: name, Identity: "i"}})
		}
		both := func() (from, to store.Store) {
			from, err := open(ctx, "source")
			if err == nil {
				to, err = open(ctx, "target")
			}
			if err != nil {
				t.Fatal(err)
			}
			return from, to
		}
		from, to := both()
		var batch []store.Operation
		var want []string
		for i := range rapid.IntRange(1, 1100).Draw(t, "rows") {
			id := fmt.Sprint("m-", i)
			want = append(want, id)
			batch = append(batch, store.Operation{Kind: store.Insert, Row: store.Row{MessageID: id, Topic: "orders", Version: wire.Version}})
			if i%7 == 0 {
				batch = append(batch, store.Operation{Kind: store.DeadLetter, Row: store.Row{MessageID: id, Reason: "poison"}})
			}
		}
		if err := from.Apply(ctx, batch); err != nil {
			t.Fatal(err)
		}
		left := rapid.IntRange(0, 20).Draw(t, "steps before the cut")
		m, err := handover.Check(ctx, from, to)
		if err != nil {
			t.Fatal(err)
		}
		m.Step = func(string) error {
			if left--; left >= 0 {
				return nil
			}
			for _, d := range disks {
				d.Off()
			}
			return errors.New("the power is cut")
		}
		if err := m.Prepare(ctx); err == nil {
			_, _ = m.Run(ctx) // however it ends
		}
		_, _ = from.Close(), to.Close() // without power
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "what the disks keep"), 0))
		for _, name := range []string{"source", "target"} {
			if err := disks[name].On(random, path(name)); err != nil {
				t.Fatal(err)
			}
		}
		s, err := handover.Open(ctx, open, "source")
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		var got []string
		err = s.Load(ctx, 0, func(r store.Row) error {
			if r.State == store.Damaged {
				return fmt.Errorf("damage: %s", r.Reason)
			}
			got = append(got, r.MessageID)
			return nil
		})
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("%v has %d rows, want %d, in order; %v", s.Partition(), len(got), len(want), err)
		}
	})
}

func folder(t *rapid.T) string {
	dir, err := os.MkdirTemp("", "custody-handover-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
