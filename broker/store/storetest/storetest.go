// Package storetest is the conformance suite of store.Store backends.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/faulty"
	"github.com/custodymq/custody/broker/wire"
)

// Database is a new, empty database of a backend.
type Database struct {
	// Open opens the database for a partition. It may be called again, for the
	// same partition after closing it, and for another at any time.
	Open func(t *testing.T, partition store.Partition) store.Store
	// History is Open with full history kept.
	History func(t *testing.T, partition store.Partition) store.Store
	// Age makes a row look as if another payload version had written it, while s
	// is open.
	Age func(t *testing.T, s store.Store, messageID string, version uint8)
	// Bounded is Open with at most n settled IDs kept.
	Bounded func(t *testing.T, partition store.Partition, n int) store.Store
	// Damage modifies the row's topic behind the store's back, while s is open;
	// nil for a backend whose rows cannot be damaged.
	Damage func(t *testing.T, s store.Store, messageID string)
	// Durable says that rows survive Close and Open.
	Durable bool
}

// Exercise runs the suite. newDatabase releases its resources with t.Cleanup;
// Exercise closes every store that it opens.
func Exercise(t *testing.T, newDatabase func(t *testing.T) Database) {
	for _, obligation := range []struct {
		name  string
		check func(*testing.T, Database)
	}{
		{"a row comes back as it was inserted", rowComesBack},
		{"rows come in order of insertion", order},
		{"content comes in the order asked for", contents},
		{"rows are inspected by page, state and message ID", selections},
		{"the newest settled IDs are loaded first, up to the limit", newestSettled},
		{"a message ID is inserted once", insertedOnce},
		{"a batch is all or nothing", allOrNothing},
		{"a batch of thousands is all or nothing", largeBatch},
		{"100,000 pending rows are loaded in bounded memory", backlog},
		{"a malformed batch is refused", malformed},
		{"a change of a row in another state changes nothing", changes},
		{"a settled ID is kept until its time", settledWindow},
		{"history keeps the row", history},
		{"what ended a message is kept", endings},
		{"only expired rows expire, up to the limit", expired},
		{"time is the caller's, not the backend's", clocks},
		{"partitions do not see each other", isolation},
		{"partitions are written at once", together},
		{"only so many settled IDs are kept, the newest", bounded},
		{"a damaged row is named, kept and left alone", damaged},
		{"another payload version is refused by name and left alone", otherVersion},
		{"what was applied survives closing", reopen},
		{"calls from many goroutines", concurrency},
		{"a cancelled call does nothing", cancelled},
		{"a held operation gives way to its context", held},
		{"what became of the last write can be told", certified},
		{"a closed store says so", closed},
	} {
		t.Run(obligation.name, func(t *testing.T) { obligation.check(t, newDatabase(t)) })
	}
	for _, strike := range strikes {
		t.Run("a failure before "+strike.name+" changes nothing", func(t *testing.T) {
			s := struck(t, newDatabase(t), faulty.Unreachable(faulty.On(strike.name)))
			notWritten(t, strike.do(testContext(t), s))
			s.Disarm()
			wantRows(t, s, start...)
		})
		t.Run("a failure after "+strike.name+" hides what was done", func(t *testing.T) {
			s := struck(t, newDatabase(t), faulty.ReplyLost(faulty.On(strike.name)))
			uncertain(t, strike.do(testContext(t), s))
			if absent, err := s.Reestablish(testContext(t)); absent && err == nil {
				t.Error("a write that was done is called absent")
			}
			s.Disarm()
			wantRows(t, s, strike.after...)
			if err := strike.do(testContext(t), s); err != nil && !errors.Is(err, store.ErrExists) {
				t.Errorf("asked for again: %v", err)
			}
			wantRows(t, s, strike.after...)
		})
	}
}

var (
	home      = store.Partition{Connection: "orders", Identity: "node-a"}
	neighbour = store.Partition{Connection: "orders", Identity: "node-b"}
	stranger  = store.Partition{Connection: "Orders", Identity: "node-a"} // case is significant

	epoch = time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)
	// Load uses the backend's clock: these times are far away from it.
	longAgo = time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC)
	farOff  = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)
)

func row(id string) store.Row {
	return store.Row{
		MessageID: id, BusinessID: "business-" + id, Topic: "orders/new", Key: "customer-1",
		Headers: map[string]string{"content-type": "text/plain", "ä": "ö"},
		Payload: []byte("payload of " + id), Version: wire.Version,
		InsertedAt: epoch,
	}
}

func insert(id string) store.Operation { return store.Operation{Kind: store.Insert, Row: row(id)} }

func on(kind store.OperationKind, row store.Row) store.Operation {
	return store.Operation{Kind: kind, Row: row}
}

func open(t *testing.T, open func(*testing.T, store.Partition) store.Store, p store.Partition) store.Store {
	t.Helper()
	s := open(t, p)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	if s.Partition() != p {
		t.Fatalf("opened for %v, says %v", p, s.Partition())
	}
	return s
}

// testContext bounds every call, so that a test cannot hang.
func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func apply(t *testing.T, s store.Store, batch ...store.Operation) {
	t.Helper()
	if err := s.Apply(testContext(t), batch); err != nil {
		t.Fatalf("apply: %v", err)
	}
}

func notWritten(t *testing.T, err error) *store.Failure {
	t.Helper()
	var failure *store.Failure
	if !errors.As(err, &failure) || !failure.NotWritten {
		t.Fatalf("want a failure that is proven not written, got %v", err)
	}
	return failure
}

func uncertain(t *testing.T, err error) {
	t.Helper()
	var failure *store.Failure
	if !errors.As(err, &failure) || failure.NotWritten {
		t.Fatalf("want a failure that may be written, got %v", err)
	}
}

// collect returns the rows of a read.
func collect(t *testing.T, read func(fn func(store.Row) error) error) []store.Row {
	t.Helper()
	var rows []store.Row
	if err := read(func(r store.Row) error { rows = append(rows, r); return nil }); err != nil {
		t.Fatalf("read: %v", err)
	}
	return rows
}

const manySettled = 1000

func load(t *testing.T, s store.Store) []store.Row {
	t.Helper()
	return collect(t, func(fn func(store.Row) error) error { return s.Load(testContext(t), manySettled, fn) })
}

func content(t *testing.T, s store.Store, ids ...string) []store.Row {
	t.Helper()
	return collect(t, func(fn func(store.Row) error) error { return s.Content(testContext(t), ids, fn) })
}

func selected(t *testing.T, s store.Store, selection store.Selection) []store.Row {
	t.Helper()
	return collect(t, func(fn func(store.Row) error) error { return s.Rows(testContext(t), selection, fn) })
}

// rows returns all rows with content.
func rows(t *testing.T, s store.Store) []store.Row {
	t.Helper()
	return selected(t, s, store.Selection{Content: true})
}

// states summarises rows: "a:pending b:dead".
func states(rows []store.Row) string {
	var text []string
	for _, r := range rows {
		text = append(text, fmt.Sprintf("%s:%v", r.MessageID, r.State))
	}
	return fmt.Sprint(text)
}

func wantRows(t *testing.T, s store.Store, want ...string) {
	t.Helper()
	if got := states(rows(t, s)); got != fmt.Sprint(want) {
		t.Fatalf("rows: got %v, want %v", got, want)
	}
}

func wantLoad(t *testing.T, s store.Store, want ...string) {
	t.Helper()
	if got := states(load(t, s)); got != fmt.Sprint(want) {
		t.Fatalf("load: got %v, want %v", got, want)
	}
}

func rowComesBack(t *testing.T, db Database) {
	s := open(t, db.Open, home)
	full := row("full")
	full.Group, full.LastConsumer, full.Attempts, full.ExpiresAt = "g", "c1", 3, epoch.Add(time.Hour)
	bare := store.Row{MessageID: "bare", Version: wire.Version, InsertedAt: epoch}
	binary := row("binary\x00'; DROP TABLE custody_row")
	binary.Payload = []byte{0, 1, 0xff, 0, '\''}
	want := []store.Row{full, bare, binary}
	for _, r := range want {
		apply(t, s, on(store.Insert, r))
	}
	for name, got := range map[string][]store.Row{
		"Load": load(t, s), "Rows": rows(t, s), "Rows without content": selected(t, s, store.Selection{}),
		"Content": content(t, s, full.MessageID, bare.MessageID, binary.MessageID),
	} {
		if len(got) != len(want) {
			t.Fatalf("%s: %d rows, want %d", name, len(got), len(want))
		}
		for i, g := range got {
			w := want[i]
			w.Order, w.State, w.Partition, w.Size = g.Order, store.Pending, home, g.Size
			if g.Size < len(w.Payload) || g.Size > len(w.Payload)+100 {
				t.Errorf("%s: %s has %d bytes of payload, size says %d", name, w.MessageID, len(w.Payload), g.Size)
			}
			if name == "Load" || name == "Rows without content" {
				w.Payload, w.Headers = nil, nil
				if g.Payload != nil || g.Headers != nil {
					t.Errorf("%s: %s comes with content", name, w.MessageID)
				}
			}
			if !g.InsertedAt.Equal(w.InsertedAt) || !g.ExpiresAt.Equal(w.ExpiresAt) || !g.KeepUntil.IsZero() {
				t.Errorf("%s: times of %s: got %v", name, w.MessageID, g)
			}
			g.InsertedAt, g.ExpiresAt = w.InsertedAt, w.ExpiresAt
			if len(g.Payload) == 0 {
				g.Payload = w.Payload // nil and empty are equivalent
			}
			if !reflect.DeepEqual(g, w) {
				t.Errorf("%s: got %+v, want %+v", name, g, w)
			}
		}
	}
}

func order(t *testing.T, db Database) {
	s := open(t, db.Open, home)
	ids := []string{"z", "a", "m", "0", "y"}
	apply(t, s, insert(ids[0]), insert(ids[1]))
	apply(t, s, insert(ids[2]))
	apply(t, s, insert(ids[3]), insert(ids[4]))
	apply(t, s, on(store.Attempt, store.Row{MessageID: "z", Attempts: 1}), on(store.DeadLetter, store.Row{MessageID: "m"}))
	rows := load(t, s)
	wantLoad(t, s, "z:pending", "a:pending", "m:dead", "0:pending", "y:pending")
	if !slices.IsSortedFunc(rows, func(a, b store.Row) int { return int(int64(a.Order) - int64(b.Order)) }) || rows[0].Order == rows[1].Order {
		t.Fatalf("order does not ascend: %+v", rows)
	}
}

func insertedOnce(t *testing.T, db Database) {
	s := open(t, db.Open, home)
	apply(t, s, insert("a"), insert("b"), insert("c"))
	apply(t, s, on(store.Delete, store.Row{MessageID: "a", KeepUntil: farOff}), on(store.DeadLetter, store.Row{MessageID: "b"}))
	for _, id := range []string{"a", "b", "c"} {
		err := s.Apply(testContext(t), []store.Operation{insert("new-" + id), insert(id)})
		notWritten(t, err)
		var exists *store.ExistsError
		if !errors.Is(err, store.ErrExists) || !errors.As(err, &exists) || exists.MessageID != id {
			t.Fatalf("insert of %s again: %v", id, err)
		}
	}
	twice := s.Apply(testContext(t), []store.Operation{insert("d"), insert("d")})
	if notWritten(t, twice); !errors.Is(twice, store.ErrExists) {
		t.Fatalf("insert twice in a batch: %v", twice)
	}
	wantRows(t, s, "a:settled", "b:dead", "c:pending")
	apply(t, s, on(store.Delete, store.Row{MessageID: "c"}), insert("c"))
	wantRows(t, s, "a:settled", "b:dead", "c:pending")
}

func allOrNothing(t *testing.T, db Database) {
	s := open(t, db.Open, home)
	apply(t, s, insert("pending"), insert("settle"), insert("delete"), insert("mark"), insert("dead"), insert("discard"))
	apply(t, s, on(store.DeadLetter, store.Row{MessageID: "dead"}), on(store.DeadLetter, store.Row{MessageID: "discard"}))
	before := rows(t, s)
	err := s.Apply(testContext(t), []store.Operation{
		insert("new"),
		on(store.Attempt, store.Row{MessageID: "pending", Attempts: 9}),
		on(store.Attempt, store.Row{MessageID: "pending", Attempts: 10}),
		on(store.Settle, store.Row{MessageID: "settle"}),
		on(store.Delete, store.Row{MessageID: "delete"}),
		insert("delete"),
		on(store.Delete, store.Row{MessageID: "mark", KeepUntil: farOff}),
		on(store.Redrive, store.Row{MessageID: "dead"}),
		on(store.Discard, store.Row{MessageID: "discard"}),
		insert("pending"),
	})
	notWritten(t, err)
	if after := rows(t, s); !reflect.DeepEqual(before, after) {
		t.Fatalf("a failed batch left something behind:\nbefore %+v\nafter  %+v", before, after)
	}
	apply(t, s) // an empty batch
}

func malformed(t *testing.T, db Database) {
	s := open(t, db.Open, home)
	old := row("old")
	old.Version = wire.OldestVersion - 1
	for name, op := range map[string]store.Operation{
		"no kind":      {Row: row("a")},
		"unknown kind": {Kind: store.Discard + 1, Row: row("a")},
		"no ID":        {Kind: store.Insert, Row: store.Row{Version: wire.Version}},
		"old version":  {Kind: store.Insert, Row: old},
	} {
		t.Run(name, func(t *testing.T) {
			notWritten(t, s.Apply(testContext(t), []store.Operation{insert("good"), op}))
			wantRows(t, s)
		})
	}
}

func changes(t *testing.T, db Database) {
	s := open(t, db.Open, home)
	all := []store.OperationKind{store.Attempt, store.Settle, store.Delete, store.DeadLetter, store.Redrive, store.Discard}
	for _, kind := range all {
		apply(t, s, on(kind, store.Row{MessageID: "absent", Reason: "r"}))
	}
	wantRows(t, s)

	apply(t, s, insert("a"))
	apply(t, s, on(store.Redrive, store.Row{MessageID: "a"}), on(store.Discard, store.Row{MessageID: "a"}))
	wantRows(t, s, "a:pending")

	apply(t, s, on(store.Attempt, store.Row{MessageID: "a", Attempts: 2, Group: "g", LastConsumer: "c1"}))
	got := content(t, s, "a")[0]
	if got.Attempts != 2 || got.Group != "g" || got.LastConsumer != "c1" || string(got.Payload) != "payload of a" {
		t.Fatalf("after attempt: %+v", got)
	}

	apply(t, s, on(store.DeadLetter, store.Row{MessageID: "a", Reason: "too many", LastConsumer: "c2"}))
	got = content(t, s, "a")[0]
	if got.State != store.Dead || got.Reason != "too many" || got.LastConsumer != "c2" || got.Attempts != 2 || len(got.Payload) == 0 {
		t.Fatalf("after dead letter: %+v", got)
	}
	apply(t, s,
		on(store.Attempt, store.Row{MessageID: "a", Attempts: 7}), on(store.Settle, store.Row{MessageID: "a"}),
		on(store.Delete, store.Row{MessageID: "a"}), on(store.DeadLetter, store.Row{MessageID: "a", Reason: "again"}))
	if again := content(t, s, "a")[0]; !reflect.DeepEqual(again, got) {
		t.Fatalf("a dead row was changed: %+v", again)
	}

	apply(t, s, on(store.Redrive, store.Row{MessageID: "a", ExpiresAt: farOff}))
	got = content(t, s, "a")[0]
	if got.State != store.Pending || got.Attempts != 0 || got.Reason != "" || !got.ExpiresAt.Equal(farOff) || string(got.Payload) != "payload of a" {
		t.Fatalf("after redrive: %+v", got)
	}
	apply(t, s, on(store.DeadLetter, store.Row{MessageID: "a"}), on(store.Discard, store.Row{MessageID: "a"}))
	wantRows(t, s)

	apply(t, s, insert("b"))
	apply(t, s, on(store.DeadLetter, store.Row{MessageID: "b"}), on(store.Discard, store.Row{MessageID: "b", KeepUntil: farOff}))
	wantRows(t, s, "b:settled")
	if kept := load(t, s)[0]; kept.BusinessID == "" || len(kept.Payload) > 0 {
		t.Fatalf("what is kept of a discarded row: %+v", kept)
	}
}

func settledWindow(t *testing.T, db Database) {
	s := open(t, db.Open, home)
	apply(t, s, insert("gone"), insert("kept"), insert("over"), insert("processed"), insert("pending"))
	apply(t, s,
		on(store.Delete, store.Row{MessageID: "gone"}),
		on(store.Delete, store.Row{MessageID: "kept", KeepUntil: farOff}),
		on(store.Delete, store.Row{MessageID: "over", KeepUntil: longAgo}),
		on(store.Settle, store.Row{MessageID: "processed", KeepUntil: farOff}))
	wantRows(t, s, "kept:settled", "over:settled", "processed:processed", "pending:pending")
	wantLoad(t, s, "kept:settled", "processed:settled", "pending:pending")
	for _, r := range load(t, s)[:2] {
		if len(r.Payload) > 0 || len(r.Headers) > 0 || r.BusinessID != "business-"+r.MessageID || !r.KeepUntil.Equal(farOff) {
			t.Errorf("a marker has the IDs and the time only: %+v", r)
		}
	}
	apply(t, s, on(store.Delete, store.Row{MessageID: "kept"})) // settled already
	ids, err := s.Expired(testContext(t), epoch, time.Time{}, 10)
	if err != nil || len(ids) > 0 {
		t.Fatalf("markers are not reported as expired: %v %v", ids, err)
	}
	wantRows(t, s, "kept:settled", "processed:processed", "pending:pending")
}

func history(t *testing.T, db Database) {
	s := open(t, db.History, home)
	apply(t, s, insert("a"), insert("b"))
	apply(t, s, on(store.Delete, store.Row{MessageID: "a", KeepUntil: farOff}), on(store.Delete, store.Row{MessageID: "b", KeepUntil: longAgo}))
	if _, err := s.Expired(testContext(t), farOff.Add(time.Hour), time.Time{}, 10); err != nil {
		t.Fatal(err)
	}
	wantRows(t, s, "a:processed", "b:processed")
	wantLoad(t, s, "a:settled")
	if got := rows(t, s)[0]; string(got.Payload) != "payload of a" || got.Topic != "orders/new" {
		t.Fatalf("history lost the row: %+v", got)
	}
}

// endings are kept of every row that is kept, over a restart, whichever way it went.
// A row without one, as of a build that did not record it, has none.
func endings(t *testing.T, db Database) {
	want := map[string]string{"settled": store.EndAcknowledged, "deleted": store.EndAcknowledged, "expired": store.EndExpired,
		"purged": store.EndExpired, "discarded": store.EndDiscarded, "unrecorded": ""}
	for name, opened := range map[string]func(*testing.T, store.Partition) store.Store{"markers": db.Open, "history": db.History} {
		p := store.Partition{Connection: "orders", Identity: name}
		s := opened(t, p)
		purged := insert("purged")
		purged.Row.ExpiresAt = longAgo
		apply(t, s, insert("settled"), insert("deleted"), insert("expired"), purged, insert("discarded"), insert("unrecorded"), insert("gone"))
		end := func(kind store.OperationKind, id, reason string) store.Operation {
			return on(kind, store.Row{MessageID: id, Reason: reason, KeepUntil: farOff})
		}
		apply(t, s,
			on(store.DeadLetter, store.Row{MessageID: "discarded", Reason: "poison"}),
			end(store.Settle, "settled", store.EndAcknowledged), end(store.Delete, "deleted", store.EndAcknowledged),
			end(store.Delete, "expired", store.EndExpired), end(store.Discard, "discarded", store.EndDiscarded),
			end(store.Delete, "unrecorded", ""), end(store.Delete, "deleted", store.EndExpired)) // which has ended before
		if ids, err := s.Expired(testContext(t), epoch, farOff, 10); err != nil || !slices.Equal(ids, []string{"purged"}) {
			t.Fatalf("%s: expired: %v %v", name, ids, err)
		}
		if db.Durable {
			shut(t, s)
			s = opened(t, p)
		}
		for read, rows := range map[string][]store.Row{"Load": load(t, s), "Rows": rows(t, s)} {
			got := map[string]string{}
			for _, r := range rows {
				if r.State == store.SettledMarker || r.State == store.Processed {
					got[r.MessageID] = r.Reason
				}
				if r.State == store.SettledMarker && (r.BusinessID == "" || r.Topic != "" || len(r.Payload) > 0 || !r.KeepUntil.Equal(farOff)) {
					t.Errorf("%s, %s: of an ended message only the IDs, the end and the time are given: %+v", name, read, r)
				}
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s, %s: ended by %q, want %q", name, read, got, want)
			}
		}
		shut(t, s)
	}
}

func expired(t *testing.T, db Database) {
	s := open(t, db.Open, home)
	at := func(id string, deadline time.Time) store.Operation {
		op := insert(id)
		op.Row.ExpiresAt = deadline
		return op
	}
	apply(t, s, at("third", epoch), at("first", epoch.Add(-2*time.Hour)), at("second", epoch.Add(-time.Hour)),
		at("later", epoch.Add(time.Nanosecond)), insert("never"), at("dead", longAgo))
	apply(t, s, on(store.DeadLetter, store.Row{MessageID: "dead"}))
	for _, step := range []struct {
		now   time.Time
		limit int
		want  []string
	}{
		{epoch, 0, nil},
		{longAgo, 10, nil},
		{epoch, 2, []string{"first", "second"}},
		{epoch, 10, []string{"third"}},
		{epoch, 10, nil},
		{farOff, 10, []string{"later"}},
	} {
		got, err := s.Expired(testContext(t), step.now, time.Time{}, step.limit)
		if err != nil || !slices.Equal(got, step.want) {
			t.Fatalf("expired at %v, at most %d: got %v %v, want %v", step.now, step.limit, got, err, step.want)
		}
	}
	wantRows(t, s, "never:pending", "dead:dead")
}

func isolation(t *testing.T, db Database) {
	stores := []store.Store{open(t, db.Open, home), open(t, db.Open, neighbour), open(t, db.Open, stranger)}
	for _, s := range stores {
		doomed := insert("doomed")
		doomed.Row.ExpiresAt = longAgo
		apply(t, s, insert("same"), doomed, insert("dead"), insert("marker"))
		apply(t, s, on(store.DeadLetter, store.Row{MessageID: "dead"}), on(store.Delete, store.Row{MessageID: "marker", KeepUntil: longAgo}))
	}
	untouched := []string{"same:pending", "doomed:pending", "dead:dead", "marker:settled"}
	for _, s := range stores {
		for _, r := range rows(t, s) {
			if r.Partition != s.Partition() {
				t.Fatalf("%v shows a row of %v", s.Partition(), r.Partition)
			}
		}
		wantRows(t, s, untouched...)
	}
	first, before := stores[0], [][]store.Row{rows(t, stores[1]), rows(t, stores[2])}
	same := store.Row{MessageID: "same", Attempts: 7, Group: "g", LastConsumer: "c", Reason: "r"}
	apply(t, first, on(store.Attempt, same), on(store.DeadLetter, same), on(store.Redrive, same))
	ids, err := first.Expired(testContext(t), epoch, time.Time{}, 10)
	if err != nil || !slices.Equal(ids, []string{"doomed"}) {
		t.Fatalf("expired: %v %v", ids, err)
	}
	apply(t, first, on(store.Settle, store.Row{MessageID: "same"}), on(store.Discard, store.Row{MessageID: "dead"}), insert("only-here"))
	for i, s := range stores[1:] {
		if after := rows(t, s); !reflect.DeepEqual(before[i], after) {
			t.Fatalf("rows of %v were touched:\nbefore %+v\nafter  %+v", s.Partition(), before[i], after)
		}
		for _, kind := range []store.OperationKind{store.Attempt, store.Settle, store.Delete, store.DeadLetter} {
			apply(t, s, on(kind, store.Row{MessageID: "only-here"}))
		}
	}
	wantRows(t, first, "same:processed", "only-here:pending")
}

// together writes two partitions at once, by batches that would wait for each
// other if the backend locked more than its own rows, or in another order.
func together(t *testing.T, db Database) {
	ctx := testContext(t)
	var group sync.WaitGroup
	for _, p := range []store.Partition{home, neighbour, stranger} {
		s := open(t, db.Open, p)
		group.Go(func() {
			for i := range 10 {
				a, b := fmt.Sprint("a-", i), fmt.Sprint("b-", i)
				if i%2 == 1 {
					a, b = b, a
				}
				err := s.Apply(ctx, []store.Operation{insert(a), insert(b), on(store.Attempt, store.Row{MessageID: b, Attempts: 1}),
					on(store.Delete, store.Row{MessageID: a, KeepUntil: longAgo})})
				if err != nil {
					t.Errorf("%v: %v", p, err)
				}
				if _, err := s.Expired(ctx, epoch, time.Time{}, 10); err != nil {
					t.Errorf("%v: %v", p, err)
				}
			}
			pending := 0
			if err := s.Load(ctx, 0, func(store.Row) error { pending++; return nil }); err != nil || pending != 10 {
				t.Errorf("%v: %d rows are pending, %v", p, pending, err)
			}
		})
	}
	group.Wait()
}

// clocks asks at times on which no backend's clock agrees.
func clocks(t *testing.T, db Database) {
	s := open(t, db.Open, home)
	early, late := insert("early"), insert("late")
	early.Row.ExpiresAt, late.Row.ExpiresAt = longAgo.Add(time.Hour), farOff.Add(time.Hour)
	apply(t, s, early, late, insert("marker"))
	apply(t, s, on(store.Delete, store.Row{MessageID: "marker", KeepUntil: longAgo.Add(time.Hour)}))
	for _, step := range []struct {
		now  time.Time
		ids  string
		left []string
	}{
		{longAgo, "[]", []string{"early:pending", "late:pending", "marker:settled"}},
		{longAgo.Add(2 * time.Hour), "[early]", []string{"late:pending"}},
		{farOff, "[]", []string{"late:pending"}},
		{farOff.Add(2 * time.Hour), "[late]", nil},
	} {
		if ids, err := s.Expired(testContext(t), step.now, time.Time{}, 10); err != nil || fmt.Sprint(ids) != step.ids {
			t.Fatalf("expired at %v: %v, %v", step.now, ids, err)
		}
		wantRows(t, s, step.left...)
	}
}

// largeBatch is more than a backend would put into one statement.
func largeBatch(t *testing.T, db Database) {
	s := open(t, db.Open, home)
	var batch []store.Operation
	for i := range 1500 {
		batch = append(batch, insert(fmt.Sprint(i)))
	}
	for i := range 1500 {
		switch id := (store.Row{MessageID: fmt.Sprint(i), Attempts: 1, KeepUntil: farOff}); i % 3 {
		case 0:
			batch = append(batch, on(store.Attempt, id))
		case 1:
			batch = append(batch, on(store.Delete, id))
		}
	}
	notWritten(t, s.Apply(testContext(t), append(slices.Clone(batch), insert("7"))))
	wantRows(t, s)
	apply(t, s, batch...)
	count := map[string]int{}
	for _, r := range rows(t, s) {
		count[fmt.Sprintf("%v%d", r.State, r.Attempts)]++
	}
	if want := map[string]int{"pending1": 500, "pending0": 500, "settled0": 500}; !reflect.DeepEqual(count, want) {
		t.Fatalf("got %v, want %v", count, want)
	}
}

// backlog is what a broker finds after a long outage of its consumers.
func backlog(t *testing.T, db Database) {
	const rows, payload, most = 100_000, 512, 24 << 20 // bytes of memory: less than half of the payloads
	s := open(t, db.Open, home)
	batch := make([]store.Operation, 0, 2000)
	for i := range rows {
		op := insert(fmt.Sprintf("m-%06d", i))
		op.Row.Headers, op.Row.Payload = nil, make([]byte, payload)
		if batch = append(batch, op); len(batch) == cap(batch) {
			apply(t, s, batch...)
			batch = make([]store.Operation, 0, cap(batch)) // the one before is the store's
		}
	}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before, highest, seen := heap(), uint64(0), 0
	err := s.Load(testContext(t), manySettled, func(r store.Row) error {
		if want := fmt.Sprintf("m-%06d", seen); r.MessageID != want || r.Payload != nil || r.Size < payload {
			return fmt.Errorf("row %d is %s of %d bytes, with %d of payload", seen, r.MessageID, r.Size, len(r.Payload))
		}
		if seen++; seen%20_000 == 1 {
			highest = max(highest, heap())
		}
		return nil
	})
	if err != nil || seen != rows {
		t.Fatalf("%d rows, %v", seen, err)
	}
	if grown := int64(highest) - int64(before); grown > most {
		t.Errorf("loading took %d bytes of memory, more than %d", grown, most)
	}
}

func otherVersion(t *testing.T, db Database) {
	s := open(t, db.Open, home)
	old, future, late := insert("old"), insert("future"), insert("dead")
	old.Row.ExpiresAt = longAgo
	apply(t, s, old, insert("current"), future, late)
	apply(t, s, on(store.DeadLetter, store.Row{MessageID: "dead"}))
	db.Age(t, s, "old", wire.OldestVersion-1)
	db.Age(t, s, "future", wire.Version+1)
	db.Age(t, s, "dead", wire.OldestVersion-1)
	want := []string{"old:refused-version", "current:pending", "future:refused-version", "dead:refused-version"}
	wantLoad(t, s, want...)
	wantRows(t, s, want...)
	before := load(t, s)
	if r := before[0]; r.Version != wire.OldestVersion-1 || r.Topic != "orders/new" || r.BusinessID != "business-old" || len(r.Payload) > 0 || len(r.Headers) > 0 {
		t.Fatalf("a refused row is shown by name only: %+v", r)
	}
	for _, id := range []string{"old", "future", "dead"} {
		for kind := store.Attempt; kind <= store.Discard; kind++ {
			apply(t, s, on(kind, store.Row{MessageID: id, Attempts: 5}))
		}
	}
	if ids, err := s.Expired(testContext(t), epoch, time.Time{}, 10); err != nil || len(ids) > 0 {
		t.Fatalf("a refused row expired: %v %v", ids, err)
	}
	if after := load(t, s); !reflect.DeepEqual(before, after) {
		t.Fatalf("a refused row was touched: %+v", after)
	}
	db.Age(t, s, "old", wire.Version) // the newer broker reads it: nothing was lost
	if r := content(t, s, "old")[0]; r.State != store.Pending || string(r.Payload) != "payload of old" {
		t.Fatalf("back under its own version: %+v", r)
	}
}

func reopen(t *testing.T, db Database) {
	if !db.Durable {
		t.Skip("this backend's rows do not survive")
	}
	s := db.Open(t, home)
	apply(t, s, insert("a"), insert("b"), insert("c"), insert("d"))
	apply(t, s, on(store.Attempt, store.Row{MessageID: "a", Attempts: 4, LastConsumer: "c1"}),
		on(store.Delete, store.Row{MessageID: "b", KeepUntil: farOff}),
		on(store.DeadLetter, store.Row{MessageID: "c", Reason: "why"}))
	before := load(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, db.Open, home)
	if after := load(t, s); !reflect.DeepEqual(before, after) {
		t.Fatalf("before closing %+v\nafter opening %+v", before, after)
	}
	apply(t, s, insert("e"))
	rows := load(t, s)
	if last := rows[len(rows)-1]; last.MessageID != "e" || last.Order <= rows[len(rows)-2].Order {
		t.Fatalf("the order goes on: %v", states(rows))
	}
	wantLoad(t, open(t, db.Open, neighbour))
}

func concurrency(t *testing.T, db Database) {
	s := open(t, db.Open, home)
	const writers, each = 4, 10
	ctx := testContext(t)
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			for i := range each {
				id := fmt.Sprintf("%d-%d", w, i)
				if err := s.Apply(ctx, []store.Operation{insert(id), on(store.Attempt, store.Row{MessageID: id, Attempts: 1})}); err != nil {
					t.Errorf("%s: %v", id, err)
				}
			}
		})
		group.Go(func() {
			for range each {
				err := s.Load(ctx, manySettled, func(r store.Row) error {
					if r.Attempts != 1 {
						return fmt.Errorf("half a batch is seen of %s", r.MessageID)
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
				if _, err := s.Expired(ctx, epoch, time.Time{}, 10); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if n := len(rows(t, s)); n != writers*each {
		t.Fatalf("%d rows, want %d", n, writers*each)
	}
}

func cancelled(t *testing.T, db Database) {
	s := open(t, db.Open, home)
	apply(t, s, insert("a"), insert("b"))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := s.Apply(ctx, []store.Operation{insert("c")})
	if notWritten(t, err); !errors.Is(err, context.Canceled) {
		t.Fatalf("apply: %v", err)
	}
	if _, err := s.Expired(ctx, farOff, time.Time{}, 10); !errors.Is(err, context.Canceled) {
		t.Fatalf("expired: %v", err)
	}
	if err := s.Load(ctx, manySettled, func(store.Row) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Fatalf("load: %v", err)
	}

	ctx, cancel = context.WithCancel(context.Background())
	seen := 0
	err = s.Rows(ctx, store.Selection{}, func(store.Row) error { seen++; cancel(); return nil })
	if !errors.Is(err, context.Canceled) || seen != 1 {
		t.Fatalf("rows cancelled after the first: %d seen, %v", seen, err)
	}
	enough := errors.New("enough")
	if err := s.Load(testContext(t), manySettled, func(store.Row) error { return enough }); !errors.Is(err, enough) {
		t.Fatalf("load ended by its caller: %v", err)
	}
	wantRows(t, s, "a:pending", "b:pending")
}

// strikes lists the writing operations of the contract, with the rows that result
// when each is applied to start.
var strikes = []struct {
	name  string
	do    func(context.Context, store.Store) error
	after []string
}{
	{"insert", applying(insert("new")), append(slices.Clone(start), "new:pending")},
	{"attempt", applying(on(store.Attempt, store.Row{MessageID: "a", Attempts: 1})), start},
	{"settle", applying(on(store.Settle, store.Row{MessageID: "a"})), []string{"a:processed", "d:dead", "x:pending"}},
	{"delete", applying(on(store.Delete, store.Row{MessageID: "a"})), []string{"d:dead", "x:pending"}},
	{"dead-letter", applying(on(store.DeadLetter, store.Row{MessageID: "a"})), []string{"a:dead", "d:dead", "x:pending"}},
	{"redrive", applying(on(store.Redrive, store.Row{MessageID: "d"})), []string{"a:pending", "d:pending", "x:pending"}},
	{"discard", applying(on(store.Discard, store.Row{MessageID: "d"})), []string{"a:pending", "x:pending"}},
	{"expire", func(ctx context.Context, s store.Store) error {
		_, err := s.Expired(ctx, epoch, time.Time{}, 10)
		return err
	}, []string{"a:pending", "d:dead"}},
}

var start = []string{"a:pending", "d:dead", "x:pending"}

func applying(op store.Operation) func(context.Context, store.Store) error {
	return func(ctx context.Context, s store.Store) error { return s.Apply(ctx, []store.Operation{op}) }
}

// struck returns a store that holds start and has the fault armed.
func struck(t *testing.T, db Database, fault *faulty.Fault) *faulty.Store {
	t.Helper()
	s := faulty.Wrap(open(t, db.Open, home))
	doomed := insert("x")
	doomed.Row.ExpiresAt = longAgo
	apply(t, s, insert("a"), insert("d"), doomed)
	apply(t, s, on(store.DeadLetter, store.Row{MessageID: "d"}))
	s.Arm(fault)
	t.Cleanup(fault.Release)
	t.Cleanup(func() {
		select {
		case <-fault.Fired():
		default:
			t.Error("the fault did not fire")
		}
	})
	return s
}

func held(t *testing.T, db Database) {
	fault := faulty.Hold(faulty.On("insert"), time.Minute)
	s := struck(t, db, fault)
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- s.Apply(ctx, []store.Operation{insert("held")}) }()
	<-fault.Fired()
	cancel()
	notWritten(t, <-result)
	fault.Release()
	wantRows(t, s, start...)
	apply(t, s, insert("free"))
	wantRows(t, s, append(slices.Clone(start), "free:pending")...)
}

func closed(t *testing.T, db Database) {
	s := db.Open(t, home)
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatalf("close: %v", err)
		}
	}
	err := s.Apply(testContext(t), []store.Operation{insert("a")})
	if notWritten(t, err); !errors.Is(err, store.ErrClosed) {
		t.Errorf("apply: %v", err)
	}
	if err := s.Load(testContext(t), manySettled, func(store.Row) error { return nil }); !errors.Is(err, store.ErrClosed) {
		t.Errorf("load: %v", err)
	}
	if _, err := s.Expired(testContext(t), epoch, time.Time{}, 1); !errors.Is(err, store.ErrClosed) {
		t.Errorf("expired: %v", err)
	}
}

// refuseBlindly refuses without saying that nothing was written.
type refuseBlindly struct{}

func (refuseBlindly) Before(op faulty.Op) error {
	if op.Name == "apply" {
		return &store.Failure{Err: errors.New("no answer")}
	}
	return nil
}
func (refuseBlindly) After(_ faulty.Op, err error) error { return err }

func certified(t *testing.T, db Database) {
	s := faulty.Wrap(open(t, db.Open, home))
	if _, err := s.Reestablish(testContext(t)); errors.Is(err, errors.ErrUnsupported) {
		t.Skip("this backend cannot tell")
	}
	want := func(what string, absent bool) {
		t.Helper()
		for range 2 { // asking has no effect
			if got, err := s.Reestablish(testContext(t)); err != nil || got != absent {
				t.Fatalf("%s: absent %v, %v; want %v", what, got, err, absent)
			}
		}
	}
	want("no write", true)
	apply(t, s, insert("a"))
	want("a write", false)
	notWritten(t, s.Apply(testContext(t), []store.Operation{insert("b"), insert("a")}))
	want("a refused write", true)
	apply(t, s, insert("b"))
	want("a write after it", false)
	notWritten(t, s.Apply(testContext(t), []store.Operation{{}}))
	want("a malformed write", true)
	apply(t, s, insert("c"))
	s.Arm(refuseBlindly{})
	uncertain(t, s.Apply(testContext(t), []store.Operation{insert("d")}))
	want("a write that never came", true)
	s.Disarm()
	wantRows(t, s, "a:pending", "b:pending", "c:pending")
}

func contents(t *testing.T, db Database) {
	s := open(t, db.Open, home)
	apply(t, s, insert("a"), insert("b"), insert("settled"), insert("dead"), insert("marker"))
	apply(t, s, on(store.Settle, store.Row{MessageID: "settled", KeepUntil: farOff}), on(store.DeadLetter, store.Row{MessageID: "dead", Reason: "r"}),
		on(store.Delete, store.Row{MessageID: "marker", KeepUntil: farOff}))
	apply(t, open(t, db.Open, neighbour), insert("elsewhere"))
	got := content(t, s, "b", "dead", "absent", "settled", "marker", "elsewhere", "a", "b")
	if states(got) != "[b:pending dead:dead a:pending b:pending]" {
		t.Fatalf("content of %v", states(got))
	}
	for _, r := range got {
		if string(r.Payload) != "payload of "+r.MessageID || r.Headers["ä"] != "ö" {
			t.Errorf("content of %s: %+v", r.MessageID, r)
		}
	}
	if got := content(t, s); got != nil {
		t.Errorf("nothing was asked for: %v", states(got))
	}
}

func selections(t *testing.T, db Database) {
	s := open(t, db.Open, home)
	apply(t, s, insert("a"), insert("b"), insert("c"), insert("d"), insert("e"))
	apply(t, s, on(store.DeadLetter, store.Row{MessageID: "b"}), on(store.DeadLetter, store.Row{MessageID: "d"}),
		on(store.Settle, store.Row{MessageID: "e", KeepUntil: farOff}))
	all := rows(t, s)
	for _, c := range []struct {
		name      string
		selection store.Selection
		want      string
	}{
		{"all", store.Selection{}, "[a:pending b:dead c:pending d:dead e:processed]"},
		{"first page", store.Selection{Limit: 2}, "[a:pending b:dead]"},
		{"next page", store.Selection{Limit: 2, After: all[1].Order}, "[c:pending d:dead]"},
		{"last page", store.Selection{Limit: 2, After: all[3].Order}, "[e:processed]"},
		{"behind the last", store.Selection{Limit: 2, After: all[4].Order}, "[]"},
		{"dead", store.Selection{State: store.Dead}, "[b:dead d:dead]"},
		{"dead, one", store.Selection{State: store.Dead, Limit: 1}, "[b:dead]"},
		{"dead, the next", store.Selection{State: store.Dead, Limit: 1, After: all[1].Order}, "[d:dead]"},
		{"processed", store.Selection{State: store.Processed}, "[e:processed]"},
		{"one", store.Selection{MessageID: "c"}, "[c:pending]"},
		{"one that is not dead", store.Selection{MessageID: "c", State: store.Dead}, "[]"},
		{"none", store.Selection{MessageID: "x"}, "[]"},
	} {
		if got := states(selected(t, s, c.selection)); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

func newestSettled(t *testing.T, db Database) {
	s := open(t, db.Open, home)
	for i, id := range []string{"a", "b", "c", "d"} {
		apply(t, s, insert(id), insert("pending-"+id))
		apply(t, s, on(store.Delete, store.Row{MessageID: id, KeepUntil: farOff.Add(time.Duration(i%3) * time.Hour)}))
	}
	for limit, want := range []string{"", "c:settled ", "b:settled c:settled ", "d:settled b:settled c:settled ", "a:settled d:settled b:settled c:settled "} {
		got := states(collect(t, func(fn func(store.Row) error) error { return s.Load(testContext(t), limit, fn) }))
		if want := "[" + want + "pending-a:pending pending-b:pending pending-c:pending pending-d:pending]"; got != want {
			t.Errorf("at most %d: got %v, want %v", limit, got, want)
		}
	}
}

func bounded(t *testing.T, db Database) {
	const limit = 5
	s := db.Bounded(t, home, limit)
	defer s.Close()
	for i := range 4 * limit {
		id := fmt.Sprint(i)
		apply(t, s, insert(id), insert("pending-"+id))
		apply(t, s, on(store.Delete, store.Row{MessageID: id, KeepUntil: farOff.Add(time.Duration(i) * time.Hour)}))
	}
	var kept []string
	for _, r := range rows(t, s) {
		if r.State == store.SettledMarker {
			kept = append(kept, r.MessageID)
		}
	}
	if fmt.Sprint(kept) != "[15 16 17 18 19]" {
		t.Fatalf("kept of %d settled: %v", 4*limit, kept)
	}
	if pending := len(rows(t, s)) - len(kept); pending != 4*limit {
		t.Fatalf("%d pending rows are left", pending)
	}
}

func damaged(t *testing.T, db Database) {
	if db.Damage == nil {
		t.Skip("this backend's rows cannot be damaged")
	}
	s := open(t, db.Open, home)
	expiring := insert("expiring")
	expiring.Row.ExpiresAt = longAgo
	apply(t, s, insert("a"), insert("pending"), insert("dead"), expiring, insert("z"))
	apply(t, s, on(store.DeadLetter, store.Row{MessageID: "dead"}))
	for _, id := range []string{"pending", "dead", "expiring"} {
		db.Damage(t, s, id)
	}
	want := "[a:pending pending:damaged dead:damaged expiring:damaged z:pending]"
	for name, got := range map[string][]store.Row{
		"Load": load(t, s), "Rows": rows(t, s), "Rows without content": selected(t, s, store.Selection{}),
		"Content": content(t, s, "a", "pending", "dead", "expiring", "z"),
	} {
		if states(got) != want {
			t.Fatalf("%s: %v", name, states(got))
		}
		for _, r := range got {
			if r.State == store.Damaged && (len(r.Payload)+len(r.Headers) > 0 || r.Reason == "") {
				t.Errorf("%s: a damaged row comes without content and with the reason: %+v", name, r)
			}
		}
	}
	if got := states(selected(t, s, store.Selection{State: store.Damaged, Limit: 2})); got != "[pending:damaged dead:damaged]" {
		t.Errorf("selected by state: %v", got)
	}
	// No change gives the damaged row a matching checksum.
	apply(t, s, on(store.Attempt, store.Row{MessageID: "pending", Attempts: 1}), on(store.Redrive, store.Row{MessageID: "dead", ExpiresAt: longAgo}))
	if ids, err := s.Expired(testContext(t), epoch, time.Time{}, 10); err != nil || len(ids) > 0 {
		t.Fatalf("expired: %v %v", ids, err)
	}
	wantLoad(t, s, "a:pending", "pending:damaged", "dead:damaged", "expiring:damaged", "z:pending")
}
