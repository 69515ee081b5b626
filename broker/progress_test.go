package broker

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/custodymq/custody/broker/core"
	"github.com/custodymq/custody/broker/store"
)

// slow is a store with many rows that it can count.
type slow struct {
	store.Store
	rows int
}

func (s slow) Partition() store.Partition { return store.Partition{Connection: "a", Identity: "b"} }

func (s slow) Count(context.Context, int) (int, error) { return s.rows, nil }

func (s slow) Load(_ context.Context, _ int, fn func(store.Row) error) error {
	for i := range s.rows {
		id := fmt.Sprint("m-", i)
		if err := fn(store.Row{MessageID: id, BusinessID: id, Topic: "orders", State: store.Pending, Version: 2, Order: uint64(i + 1)}); err != nil {
			return err
		}
	}
	return nil
}

// TestALongRecoveryTellsHowFarItIs checks that a slow start logs its progress
// once a second.
func TestALongRecoveryTellsHowFarItIs(t *testing.T) {
	for name, c := range map[string]struct {
		each time.Duration // per reading of the clock
		want string
	}{
		"slow":  {10 * time.Millisecond, "rows=128 of=1000"},
		"quick": {0, ""},
	} {
		var out bytes.Buffer
		e, err := NewEngine(Config{Store: slow{rows: 1000}, Log: slog.New(slog.NewTextHandler(&out, nil))}, "p-")
		if err != nil {
			t.Fatal(err)
		}
		at := time.Duration(0)
		err = e.Recover(t.Context(), func() core.Instant {
			at += c.each
			return core.Instant{Wall: time.Unix(0, 0), Elapsed: at}
		})
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Count(out.String(), "msg=recovering ")
		if !strings.Contains(out.String(), c.want) || (lines > 0) != (c.want != "") || lines > 15 {
			t.Errorf("%s: %d lines, want one with %q in\n%s", name, lines, c.want, out.String())
		}
	}
}
