package business

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/custodymq/custody/evidence"
)

// stores opens an empty database of every kind.
var stores = map[string]func(t *testing.T, gate Gate) Store{
	"sqlite": func(t *testing.T, gate Gate) Store {
		d, err := Open(t.Context(), filepath.Join(t.TempDir(), "business.db"), gate)
		if err != nil {
			t.Fatal(err)
		}
		return d
	},
	"memory": func(_ *testing.T, gate Gate) Store { return NewMemory(gate) },
}

// each runs a test on every kind of database.
func each(t *testing.T, test func(t *testing.T, open func(Gate) Store)) {
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			test(t, func(gate Gate) Store {
				d := open(t, gate)
				t.Cleanup(func() {
					if err := d.Close(); err != nil {
						t.Error(err)
					}
				})
				return d
			})
		})
	}
}

func count(t *testing.T, d Store, state evidence.RowState) int {
	t.Helper()
	return countOf(t, d, state, "")
}

// countOf counts the rows of one subscriber; of all, if it is empty.
func countOf(t *testing.T, d Store, state evidence.RowState, subscriber string) int {
	t.Helper()
	s, err := d.Rows(context.WithoutCancel(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	return len(slices.DeleteFunc(s.Rows, func(r evidence.StoredRow) bool {
		return r.State != state || subscriber != "" && r.Subscription != subscriber
	}))
}

// handle does what a consumer does with a delivery.
func handle(t *testing.T, d Store, p Pattern, m Delivery) (last Outcome) {
	t.Helper()
	m.LogKey = p.Key(m.LogKey)
	for _, ops := range append([][]Op{p.First}, p.Then...) {
		if ops == nil {
			continue
		}
		outcome, err := d.Apply(t.Context(), m, ops)
		if err != nil {
			t.Fatal(err)
		}
		if outcome != Committed {
			return outcome
		}
	}
	return Committed
}

func delivered(business, message string) Delivery {
	return Delivery{Subscriber: "orders", BusinessID: business, PublishID: "p1-1-1", MessageID: message, LogKey: message}
}

// Without any fault, a repeat is absorbed by every pattern with a log or the like.
func TestPatterns(t *testing.T) {
	each(t, func(t *testing.T, open func(Gate) Store) {
		d := open(nil)
		for _, p := range Patterns() {
			for _, c := range []struct {
				name          string
				first, second Delivery
				effects       int            // of a whole pattern
				others        map[string]int // of these
			}{
				{"the same message", delivered("order-1", "m-1"), delivered("order-1", "m-1"), 1, map[string]int{Plain: 2, "log-in-memory": 2}},
				{"two messages", delivered("order-1", "m-1"), delivered("order-2", "m-2"), 2, nil},
				{"two messages with one last character", delivered("order-1", "m-1"), delivered("order-11", "m-11"), 2, map[string]int{"log-key-too-short": 1}},
				{"the same business under a new ID", delivered("order-1", "m-1"), delivered("order-1", "m-2"), 1, map[string]int{
					Idempotent: 2, Plain: 2, "log-after-commit": 2, "log-before-commit": 2, "log-in-memory": 2, "log-without-constraint": 2,
					"log-key-too-short": 2, "log-pruned": 2, "ack-on-receipt": 2, "acks-failures": 2}},
			} {
				t.Run(p.Name+"/"+c.name, func(t *testing.T) {
					c.first.Subscriber, c.second.Subscriber = t.Name(), t.Name()
					if got := handle(t, d, p, c.first); got != Committed {
						t.Fatalf("first: %v", got)
					}
					handle(t, d, p, c.second)
					want := c.effects
					if n, other := c.others[p.Name]; other {
						want = n
					}
					if n := countOf(t, d, evidence.RowEffect, t.Name()); n != want {
						t.Errorf("%d effects, want %d", n, want)
					}
				})
			}
		}
	})
}

func TestAnotherSubscriberHasItsOwnEffect(t *testing.T) {
	each(t, func(t *testing.T, open func(Gate) Store) {
		d := open(nil)
		for _, p := range Patterns() {
			m := delivered("order-1", "m-1")
			for _, m.Subscriber = range []string{p.Name, p.Name + " mail"} {
				handle(t, d, p, m)
				if n := countOf(t, d, evidence.RowEffect, m.Subscriber); n != 1 {
					t.Errorf("%s: %d effects for %s, want 1", p.Name, n, m.Subscriber)
				}
			}
		}
	})
}

func TestPrunedLogKeepsItsNewestEntry(t *testing.T) {
	each(t, func(t *testing.T, open func(Gate) Store) {
		d := open(nil)
		p, err := FindPattern("log-pruned")
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []Outcome{Committed, Committed, Absorbed} {
			if got := handle(t, d, p, delivered(fmt.Sprint("order-", max(i, 1)), fmt.Sprint("m-", min(i+1, 2)))); got != want {
				t.Errorf("delivery %d: %v, want %v", i+1, got, want)
			}
		}
		if got := handle(t, d, p, delivered("order-1", "m-1")); got != Committed {
			t.Errorf("the pruned one: %v", got)
		}
	})
}

func TestTwoInstancesAtOnceHaveOneEffect(t *testing.T) { testTwoInstances(t, "sqlite") }

func testTwoInstances(t *testing.T, store string) {
	d := stores[store](t, nil)
	defer d.Close()
	for _, p := range Patterns() {
		if !p.Whole {
			continue
		}
		t.Run(p.Name, func(t *testing.T) {
			var group sync.WaitGroup
			m := delivered("order-1", "m-1")
			m.Subscriber = p.Name
			for range 8 {
				group.Go(func() { handle(t, d, p, m) })
			}
			group.Wait()
			if n := countOf(t, d, evidence.RowEffect, p.Name); n != 1 {
				t.Errorf("%d effects, want 1", n)
			}
		})
	}
}

// A database that fails at any operation leaves nothing behind before COMMIT, and
// everything after it.
func TestGate(t *testing.T) {
	each(t, func(t *testing.T, open func(Gate) Store) {
		var op Op
		var after bool
		d := open(func(_ context.Context, o Op, businessID string, a bool) error {
			if o == op && a == after && businessID == "order-1" {
				return fmt.Errorf("%w: struck", ErrUnavailable)
			}
			return nil
		})
		for _, p := range Patterns() {
			if !p.Whole {
				continue
			}
			for _, op = range append(slices.Clone(p.Then[0]), Commit) {
				for _, after = range []bool{false, true} {
					m := delivered("order-1", "m-1")
					m.Subscriber = fmt.Sprint(p.Name, op, after)
					outcome, err := d.Apply(t.Context(), m, p.Then[0])
					want, effects := Failed, 0
					if op == Commit && after {
						want, effects = Uncertain, 1
					}
					if n := countOf(t, d, evidence.RowEffect, m.Subscriber); err == nil || outcome != want || n != effects {
						t.Errorf("%s, %s, after %v: %v, %v, %d effects", p.Name, op, after, outcome, err, n)
					}
				}
			}
		}
	})
}

var now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func claim(relay string) Claim {
	return Claim{Relay: relay, Destination: "orders", Now: now, Lease: time.Second, Most: 10, After: -1}
}

// record stores a producer's business and its message.
func record(t *testing.T, d Store, business, key string) {
	t.Helper()
	if _, err := d.Record(t.Context(), "p1", business, Pending{BusinessID: business, MessageID: "m-" + business, Destination: "orders", Key: key,
		Headers: map[string]string{"h": "1"}, Body: []byte("body")}); err != nil {
		t.Fatal(err)
	}
}

func claimed(t *testing.T, d Store, c Claim) (ids []string) {
	t.Helper()
	rows, err := d.Claim(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		ids = append(ids, fmt.Sprintf("%s %d", r.BusinessID, r.Tries))
	}
	return ids
}

func TestOutbox(t *testing.T) {
	each(t, func(t *testing.T, open func(Gate) Store) {
		d := open(nil)
		record(t, d, "a-1", "a")
		record(t, d, "b-1", "b")
		record(t, d, "a-2", "a")
		record(t, d, "c-1", "")
		record(t, d, "c-2", "")
		steps := []struct {
			what string
			do   func() []string
			want []string
		}{
			{"the first of each key, and all without one", func() []string { return claimed(t, d, claim("r1")) }, []string{"a-1 1", "b-1 1", "c-1 1", "c-2 1"}},
			{"nothing is left for a second relay", func() []string { return claimed(t, d, claim("r2")) }, nil},
			{"the next of a key, once the first is sent", func() []string {
				if err := d.Mark(t.Context(), 1, "a-1"); err != nil {
					t.Fatal(err)
				}
				return claimed(t, d, claim("r2"))
			}, []string{"a-2 1"}},
			{"what is given back", func() []string {
				if err := d.Release(t.Context(), 2); err != nil {
					t.Fatal(err)
				}
				return claimed(t, d, claim("r2"))
			}, []string{"b-1 2"}},
			{"what was claimed for too long", func() []string {
				c := claim("r3")
				c.Now = now.Add(2 * time.Second)
				return claimed(t, d, c)
			}, []string{"b-1 3", "a-2 2", "c-1 2", "c-2 2"}},
			{"of another destination", func() []string {
				c := claim("r1")
				c.Destination, c.Now = "mail", now.Add(time.Hour)
				return claimed(t, d, c)
			}, nil},
			{"behind a position, sent or not", func() []string {
				c := claim("r1")
				c.After = 3
				return claimed(t, d, c)
			}, []string{"c-1 3", "c-2 3"}},
		}
		for _, s := range steps {
			if got := s.do(); !slices.Equal(got, s.want) {
				t.Errorf("%s: %q, want %q", s.what, got, s.want)
			}
		}
		if sent, unsent := count(t, d, evidence.RowSent), count(t, d, evidence.RowUnsent); sent != 1 || unsent != 4 {
			t.Errorf("%d sent, %d unsent", sent, unsent)
		}
	})
}

func TestClaimedRowIsWhole(t *testing.T) {
	each(t, func(t *testing.T, open func(Gate) Store) {
		d := open(nil)
		m := Pending{BusinessID: "order-1", MessageID: "m-1", Destination: "orders", Key: "k", Headers: map[string]string{"a": "b"}, Body: []byte{0, 1}, TTL: time.Minute}
		if _, err := d.Record(t.Context(), "p1", "order-1", m); err != nil {
			t.Fatal(err)
		}
		rows, err := d.Claim(t.Context(), claim("r1"))
		m.Seq, m.Tries = 1, 1
		if err != nil || len(rows) != 1 || fmt.Sprint(rows[0]) != fmt.Sprint(m) {
			t.Errorf("%v, %v; want %v", rows, err, m)
		}
	})
}

// Two relays at once are never given the same row.
func TestConcurrentClaims(t *testing.T) { testConcurrentClaims(t, "sqlite") }

func testConcurrentClaims(t *testing.T, store string) {
	d := stores[store](t, nil)
	defer d.Close()
	for i := range 40 {
		record(t, d, fmt.Sprint("order-", i), "")
	}
	var mu sync.Mutex
	var all []string
	var group sync.WaitGroup
	for r := range 4 {
		group.Go(func() {
			for range 4 {
				got := claimed(t, d, claim(fmt.Sprint("r", r)))
				mu.Lock()
				all = append(all, got...)
				mu.Unlock()
			}
		})
	}
	group.Wait()
	slices.Sort(all)
	if n := len(slices.Compact(slices.Clone(all))); len(all) != 40 || n != 40 {
		t.Errorf("%d claims of %d rows, want 40 of 40", len(all), n)
	}
}

// A number that was drawn first can commit last, and its row is claimed all the
// same.
func TestNumbersCommitOutOfOrder(t *testing.T) {
	each(t, func(t *testing.T, open func(Gate) Store) {
		var d Store
		d = open(func(_ context.Context, op Op, businessID string, after bool) error {
			if op == Record && businessID == "order-1" && !after {
				record(t, d, "order-2", "")
			}
			return nil
		})
		record(t, d, "order-1", "")
		rows, err := d.Claim(t.Context(), claim("r1"))
		if err != nil || len(rows) != 2 || rows[0].BusinessID != "order-1" || rows[0].Seq > rows[1].Seq {
			t.Errorf("%v, %v", rows, err)
		}
	})
}

func TestRestorePutsBackEffectsAndLog(t *testing.T) {
	each(t, func(t *testing.T, open func(Gate) Store) {
		d := open(nil)
		log := patterns[0]
		backup := filepath.Join(t.TempDir(), "it's a backup.db")
		handle(t, d, log, delivered("order-1", "m-1"))
		if err := d.Backup(t.Context(), backup); err != nil {
			t.Fatal(err)
		}
		handle(t, d, log, delivered("order-2", "m-2"))
		for range 2 { // a backup can be restored repeatedly
			if err := d.Restore(t.Context(), backup); err != nil {
				t.Fatal(err)
			}
			if n := count(t, d, evidence.RowEffect); n != 1 {
				t.Fatalf("%d effects after the restore, want 1", n)
			}
		}
		if got := handle(t, d, log, delivered("order-1", "m-1")); got != Absorbed {
			t.Errorf("what the backup holds: %v, want absorbed", got)
		}
		if got := handle(t, d, log, delivered("order-2", "m-2")); got != Committed {
			t.Errorf("what it does not hold: %v, want committed", got)
		}
		if err := d.Restore(t.Context(), backup+".missing"); err == nil {
			t.Error("restored from a file that is not there")
		}
		if n := count(t, d, evidence.RowEffect); n != 2 {
			t.Errorf("%d effects after a restore that failed, want 2", n)
		}
	})
}
