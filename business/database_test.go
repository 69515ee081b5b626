package business

import (
	"path/filepath"
	"sync"
	"testing"

	"github.com/custodymq/custody/evidence"
)

func open(t *testing.T) *Database {
	t.Helper()
	d, err := Open(t.Context(), filepath.Join(t.TempDir(), "business.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func effects(t *testing.T, d *Database) int {
	t.Helper()
	s, err := d.Rows(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, r := range s.Rows {
		if r.State == evidence.RowEffect {
			n++
		}
	}
	return n
}

func TestLogAbsorbsARepeatAndOnlyTheLogDoes(t *testing.T) {
	m := Delivery{Subscriber: "orders", BusinessID: "order-1", PublishID: "p1-1-1", MessageID: "m-1", LogKey: "m-1"}
	for _, c := range []struct {
		name    string
		log     bool
		second  Delivery
		outcome Outcome
		effects int
	}{
		{"same message", true, m, Absorbed, 1},
		{"without the log", false, m, Committed, 2},
		{"a new key passes", true, Delivery{"orders", "order-1", "p1-1-2", "m-2", "", "m-2"}, Committed, 2},
		{"a new message ID under the same key", true, Delivery{"orders", "order-1", "p1-1-2", "m-2", "", "m-1"}, Absorbed, 1},
		{"another subscriber", true, Delivery{"mail", "order-1", "p1-1-1", "m-1", "", "m-1"}, Committed, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := open(t)
			if got, err := d.Apply(t.Context(), m, c.log); got != Committed || err != nil {
				t.Fatalf("first: %v, %v", got, err)
			}
			if got, err := d.Apply(t.Context(), c.second, c.log); got != c.outcome || err != nil {
				t.Errorf("second: %v, %v; want %v", got, err, c.outcome)
			}
			if n := effects(t, d); n != c.effects {
				t.Errorf("%d effects, want %d", n, c.effects)
			}
		})
	}
}

func TestTwoInstancesAtOnceHaveOneEffect(t *testing.T) {
	d := open(t)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if _, err := d.Apply(t.Context(), Delivery{Subscriber: "orders", BusinessID: "order-1", MessageID: "m-1", LogKey: "m-1"}, true); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if n := effects(t, d); n != 1 {
		t.Errorf("%d effects, want 1", n)
	}
}

func TestRestorePutsBackEffectsAndLog(t *testing.T) {
	d := open(t)
	apply := func(id string) Outcome {
		t.Helper()
		outcome, err := d.Apply(t.Context(), Delivery{Subscriber: "orders", BusinessID: id, PublishID: "p1-1-1", MessageID: id, LogKey: id}, true)
		if err != nil {
			t.Fatal(err)
		}
		return outcome
	}
	backup := filepath.Join(t.TempDir(), "it's a backup.db")
	apply("order-1")
	if err := d.Backup(t.Context(), backup); err != nil {
		t.Fatal(err)
	}
	apply("order-2")
	for range 2 { // a backup can be restored repeatedly
		if err := d.Restore(t.Context(), backup); err != nil {
			t.Fatal(err)
		}
		if n := effects(t, d); n != 1 {
			t.Fatalf("%d effects after the restore, want 1", n)
		}
	}
	if got := apply("order-1"); got != Absorbed {
		t.Errorf("what the backup holds: %v, want absorbed", got)
	}
	if got := apply("order-2"); got != Committed {
		t.Errorf("what it does not hold: %v, want committed", got)
	}
	if err := d.Restore(t.Context(), backup+".missing"); err == nil {
		t.Error("restored from a file that is not there")
	}
	if n := effects(t, d); n != 2 {
		t.Errorf("%d effects after a restore that failed, want 2", n)
	}
}
