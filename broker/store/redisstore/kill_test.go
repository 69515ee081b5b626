package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/storetest"
	"github.com/custodymq/custody/broker/wire"
)

func insertion(id string) store.Operation {
	return store.Operation{Kind: store.Insert, Row: store.Row{
		MessageID: id, BusinessID: "order", Topic: "orders", Version: wire.Version, Payload: []byte("payload of " + id), InsertedAt: time.Unix(1, 0),
	}}
}

// TestNothingAcceptedIsLostByKills kills a server at random moments under load:
// it must have every batch it confirmed, all or nothing of the others, and the
// store must be able to tell which.
func TestNothingAcceptedIsLostByKills(t *testing.T) {
	kills := 3
	if os.Getenv("CUSTODY_TORTURE") != "" {
		kills = 100
	}
	server := start(t, "redis-server")
	defer server.Stop()
	s := mustOpen(t, Options{DSN: server.dsn(0), Partition: orders})
	defer s.Close()
	stored, doubts := map[string]bool{}, 0
	for n := range kills {
		timer := time.AfterFunc(time.Duration(rand.IntN(150))*time.Millisecond, server.Kill)
		var err error
		var batch []store.Operation
		for i := 0; err == nil; i++ {
			batch = batch[:0:0]
			for k := range 1 + rand.IntN(8) {
				batch = append(batch, insertion(fmt.Sprintf("%d-%d-%d", n, i, k)))
			}
			if err = s.Apply(t.Context(), batch); err == nil {
				for _, op := range batch {
					stored[op.Row.MessageID] = true
				}
			}
		}
		timer.Stop()
		server.Kill() // it may have been asked to by the timer alone
		server.Start(t)
		var failure *store.Failure
		if !errors.As(err, &failure) {
			t.Fatalf("kill %d: %v", n, err)
		}
		absent := failure.NotWritten
		if !absent {
			doubts++
			if absent, err = s.Reestablish(t.Context()); err != nil {
				t.Fatalf("kill %d: %v", n, err)
			}
		}
		for _, op := range batch {
			if !absent {
				stored[op.Row.MessageID] = true
			}
		}
		found := map[string]bool{}
		if err := s.Load(t.Context(), 0, func(r store.Row) error { found[r.MessageID] = r.State == store.Pending; return nil }); err != nil {
			t.Fatalf("kill %d: %v", n, err)
		}
		for id := range stored {
			if !found[id] {
				t.Errorf("kill %d: %s was confirmed, and is lost", n, id)
			}
		}
		if len(found) != len(stored) {
			t.Errorf("kill %d: %d rows, and %d were confirmed", n, len(found), len(stored))
		}
	}
	t.Logf("%d kills, %d confirmed, %d in doubt for a time", kills, len(stored), doubts)
}

func TestWriteInDoubt(t *testing.T) {
	for how, swallow := range map[string]func(*storetest.Link, string){"command": (*storetest.Link).SwallowCommand, "reply": (*storetest.Link).SwallowReply} {
		t.Run(how, func(t *testing.T) {
			server := running(t, "redis-server")
			direct := server.database(t)
			address := fmt.Sprintf("127.0.0.1:%d", server.port)
			link := storetest.NewLink(t, address)
			s := mustOpen(t, Options{DSN: strings.Replace(direct, address, link.Address(), 1), Partition: orders})
			if err := s.Apply(t.Context(), []store.Operation{insertion("before")}); err != nil {
				t.Fatal(err)
			}
			swallow(link, "evalsha")
			short, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			err := s.Apply(short, []store.Operation{insertion("doubtful")})
			var failure *store.Failure
			if !errors.As(err, &failure) || failure.NotWritten {
				t.Fatalf("a script without an answer: %v", err)
			}
			wantAbsent := how == "command"
			for range 2 {
				absent, err := s.Reestablish(t.Context())
				if err != nil || absent != wantAbsent {
					t.Fatalf("absent %v, %v; want %v", absent, err, wantAbsent)
				}
			}
			if err := s.Apply(t.Context(), []store.Operation{insertion("after")}); err != nil {
				t.Fatal(err)
			}
			want := "before doubtful after"
			if wantAbsent {
				want = "before after"
			}
			if got := ids(t, s); got != want {
				t.Errorf("rows %s; want %s", got, want)
			}
		})
	}
}

// TestDoubtOfAnEarlierCall checks that a call which writes nothing preserves the
// doubt about an earlier one.
func TestDoubtOfAnEarlierCall(t *testing.T) {
	server := running(t, "redis-server")
	direct := server.database(t)
	address := fmt.Sprintf("127.0.0.1:%d", server.port)
	link := storetest.NewLink(t, address)
	s := mustOpen(t, Options{DSN: strings.Replace(direct, address, link.Address(), 1), Partition: orders})
	ops := []store.Operation{insertion("before")}
	if err := s.Apply(t.Context(), ops); err != nil {
		t.Fatal(err)
	}
	link.SwallowReply("evalsha")
	short, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if err := s.Apply(short, []store.Operation{insertion("doubtful")}); err == nil {
		t.Fatal("an answer came")
	}
	if err := s.Apply(t.Context(), []store.Operation{{}}); err == nil {
		t.Fatal("a malformed batch")
	}
	if absent, err := s.Reestablish(t.Context()); err != nil || !absent {
		t.Errorf("the malformed batch: absent %v, %v", absent, err)
	}
	if err := s.Apply(t.Context(), []store.Operation{insertion("after")}); err != nil {
		t.Fatal(err)
	}
	if got := ids(t, s); got != "before doubtful after" {
		t.Errorf("rows %s", got)
	}
}

func ids(t *testing.T, s *Store) string {
	t.Helper()
	var list []string
	if err := s.Rows(t.Context(), store.Selection{}, func(r store.Row) error { list = append(list, r.MessageID); return nil }); err != nil {
		t.Fatal(err)
	}
	return strings.Join(list, " ")
}

// TestLateScript checks that a script which was certified absent while in flight
// changes nothing when it arrives.
func TestLateScript(t *testing.T) {
	server := running(t, "redis-server")
	s := mustOpen(t, Options{DSN: server.database(t), Partition: orders})
	w := <-s.writer
	late := &writer{store: s, token: w.token, claimed: true, mark: w.mark, fences: w.fences}
	w.doubt = &doubt{after: mark{batch: w.mark.batch + 1, order: 1}}
	s.writer <- w
	if absent, err := s.Reestablish(t.Context()); err != nil || !absent {
		t.Fatalf("absent %v, %v", absent, err)
	}
	defer late.drop()
	err := late.transact(t.Context(), func(b *batchArgs) error { return b.apply([]store.Operation{insertion("late")}) })
	if !errors.Is(err, store.ErrFenced) {
		t.Fatalf("the late script: %v", err)
	}
	if got := ids(t, s); got != "" {
		t.Fatalf("rows %s", got)
	}
	if err := late.certify(t.Context()); err == nil {
		t.Error("a late certificate moved the fence back")
	}
	if err := s.Apply(t.Context(), []store.Operation{insertion("a")}); err != nil {
		t.Fatal(err)
	}
}

// TestFence checks that the store is fenced by another broker that writes the
// partition, and by a server that lost confirmed writes.
func TestFence(t *testing.T) {
	for name, test := range map[string]struct {
		strike func(c *redis.Client) error
		want   string
	}{
		"another broker": {func(c *redis.Client) error {
			return c.HSet(context.Background(), keysOf(orders)[partitionKey], "writer", "another").Err()
		}, "two brokers share"},
		"a server that forgot": {func(c *redis.Client) error { return c.FlushDB(context.Background()).Err() }, "has lost what it had confirmed"},
	} {
		t.Run(name, func(t *testing.T) {
			server := running(t, "redis-server")
			dsn := server.database(t)
			s := mustOpen(t, Options{DSN: dsn, Partition: orders})
			if err := s.Apply(t.Context(), []store.Operation{insertion("a")}); err != nil {
				t.Fatal(err)
			}
			server.with(t, dsn, test.strike)
			for range 2 {
				err := s.Apply(t.Context(), []store.Operation{insertion("b")})
				var failure *store.Failure
				if !errors.As(err, &failure) || !failure.NotWritten || !errors.Is(err, store.ErrFenced) || !strings.Contains(err.Error(), test.want) {
					t.Fatalf("got %v", err)
				}
			}
		})
	}
}

// TestIdleConnection checks that a connection closed by the server while idle has
// no effect.
func TestIdleConnection(t *testing.T) {
	server := running(t, "redis-server")
	dsn := server.database(t)
	s := mustOpen(t, Options{DSN: dsn, Partition: orders})
	for _, id := range []string{"a", "b", "c"} {
		if err := s.Apply(t.Context(), []store.Operation{insertion(id)}); err != nil {
			t.Fatal(err)
		}
		ids(t, s)
		server.with(t, dsn, func(c *redis.Client) error { return c.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal").Err() })
	}
	if got := ids(t, s); got != "a b c" {
		t.Errorf("rows %s", got)
	}
}

// TestKilledOwner checks that a broker can take over a killed one's partition at
// once.
func TestKilledOwner(t *testing.T) {
	server := running(t, "redis-server")
	dsn := server.database(t)
	first := mustOpen(t, Options{DSN: dsn, Partition: orders})
	w := <-first.writer
	w.session.sever()
	first.writer <- w
	second := mustOpen(t, Options{DSN: dsn, Partition: orders})
	if err := second.Apply(t.Context(), []store.Operation{insertion("a")}); err != nil {
		t.Fatal(err)
	}
	if err := first.Apply(t.Context(), []store.Operation{insertion("b")}); !errors.Is(err, store.ErrFenced) || !strings.Contains(err.Error(), "two brokers share") {
		t.Fatalf("got %v", err)
	}
}

// TestFull checks that a write refused for lack of memory leaves nothing behind.
func TestFull(t *testing.T) {
	server := start(t, "redis-server", "maxmemory", "3mb")
	defer server.Stop()
	s := mustOpen(t, Options{DSN: server.dsn(0), Partition: orders})
	defer s.Close()
	accepted := 0
	for n := range 100 {
		op := insertion(fmt.Sprint(n))
		op.Row.Payload = make([]byte, 100_000)
		err := s.Apply(t.Context(), []store.Operation{op})
		if err == nil {
			accepted++
			continue
		}
		var failure *store.Failure
		if !errors.Is(err, store.ErrFull) || !errors.As(err, &failure) || !failure.NotWritten {
			t.Fatalf("got %v", err)
		}
		break
	}
	if n, err := s.Count(t.Context(), 0); err != nil || n != accepted || n == 0 || n == 100 {
		t.Errorf("%d rows, %d accepted, %v", n, accepted, err)
	}
}

// TestRefusedWrites checks that a write refused by the server is absent, and is
// accepted once the cause is removed.
func TestRefusedWrites(t *testing.T) {
	for name, test := range map[string]struct{ refuse, mend []any }{
		"READONLY":   {[]any{"REPLICAOF", "127.0.0.1", "1"}, []any{"REPLICAOF", "NO", "ONE"}},
		"NOREPLICAS": {[]any{"CONFIG", "SET", "min-replicas-to-write", "1"}, []any{"CONFIG", "SET", "min-replicas-to-write", "0"}},
	} {
		t.Run(name, func(t *testing.T) {
			server := start(t, "redis-server")
			defer server.Stop()
			s := mustOpen(t, Options{DSN: server.dsn(0), Partition: orders})
			defer s.Close()
			server.with(t, server.dsn(0), func(c *redis.Client) error { return c.Do(t.Context(), test.refuse...).Err() })
			for range 2 {
				err := s.Apply(t.Context(), []store.Operation{insertion("a")})
				var failure *store.Failure
				if !errors.As(err, &failure) || !failure.NotWritten || errors.Is(err, store.ErrFenced) {
					t.Fatalf("got %v", err)
				}
			}
			server.with(t, server.dsn(0), func(c *redis.Client) error { return c.Do(t.Context(), test.mend...).Err() })
			if err := s.Apply(t.Context(), []store.Operation{insertion("a")}); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestHalfWritten checks that a script which failed halfway, and so wrote a part,
// is reported neither stored nor absent.
func TestHalfWritten(t *testing.T) {
	server := running(t, "redis-server")
	dsn := server.database(t)
	s := mustOpen(t, Options{DSN: dsn, Partition: orders})
	server.with(t, dsn, func(c *redis.Client) error { return c.Set(t.Context(), keysOf(orders)[pendingKey], "x", 0).Err() })
	err := s.Apply(t.Context(), []store.Operation{insertion("a")})
	var failure *store.Failure
	if !errors.As(err, &failure) || failure.NotWritten {
		t.Fatalf("got %v", err)
	}
	for range 2 {
		if absent, err := s.Reestablish(t.Context()); err == nil {
			t.Errorf("called absent: %v", absent)
		}
	}
}

func TestPlantAndAll(t *testing.T) {
	server := running(t, "redis-server")
	dsn := server.database(t)
	neighbour := store.Partition{Connection: "orders}:", Identity: "a\x00b"}
	for _, p := range []store.Partition{orders, neighbour} {
		s := mustOpen(t, Options{DSN: dsn, Partition: p})
		if err := s.Apply(t.Context(), []store.Operation{insertion("a")}); err != nil {
			t.Fatal(err)
		}
		s.Close()
	}
	for _, id := range []string{"old", "new"} {
		planted := insertion(id).Row
		planted.Version = map[string]uint8{"old": wire.OldestVersion - 1, "new": wire.Version + 1}[id]
		if err := Plant(t.Context(), dsn, neighbour, planted); err != nil {
			t.Fatal(err)
		}
	}
	if err := Plant(t.Context(), dsn, store.Partition{Connection: "x", Identity: "y"}, insertion("z").Row); err == nil {
		t.Error("planted into no partition")
	}
	var got []string
	err := All(t.Context(), dsn, func(r store.Row) error {
		got = append(got, fmt.Sprintf("%q %s %v %d %q", r.Partition, r.MessageID, r.State, r.Version, r.Payload))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("%q a pending %d \"payload of a\"\n", orders, wire.Version)
	for _, row := range []store.Row{{MessageID: "a", Version: wire.Version}, {MessageID: "old", Version: wire.OldestVersion - 1}, {MessageID: "new", Version: wire.Version + 1}} {
		want += fmt.Sprintf("%q %s pending %d \"payload of %s\"\n", neighbour, row.MessageID, row.Version, row.MessageID)
	}
	if strings.Join(got, "\n")+"\n" != want {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), want)
	}
	s := mustOpen(t, Options{DSN: dsn, Partition: neighbour})
	if err := s.Apply(t.Context(), []store.Operation{insertion("b")}); err != nil {
		t.Fatal(err)
	}
	if got := ids(t, s); got != "a b old new" {
		t.Errorf("rows %s", got)
	}
}

// TestPages checks that many rows are read page by page.
func TestPages(t *testing.T) {
	server := running(t, "redis-server")
	s := mustOpen(t, Options{DSN: server.database(t), Partition: orders})
	const n = 3*pageRows + 1
	names := make([]string, n)
	batch := make([]store.Operation, n)
	for i := range batch {
		names[i] = fmt.Sprint(i)
		batch[i] = insertion(names[i])
		batch[i].Row.Payload = make([]byte, 3000)
	}
	if err := s.Apply(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	next := 0
	inOrder := func(r store.Row) error {
		if r.MessageID != names[next] || r.State != store.Pending {
			return fmt.Errorf("row %d is %s, %v", next, r.MessageID, r.State)
		}
		next++
		return nil
	}
	for name, read := range map[string]func() error{
		"Load":    func() error { return s.Load(t.Context(), 0, inOrder) },
		"Rows":    func() error { return s.Rows(t.Context(), store.Selection{Content: true}, inOrder) },
		"Content": func() error { return s.Content(t.Context(), names, inOrder) },
	} {
		next = 0
		if err := read(); err != nil || next != n {
			t.Errorf("%s: %d rows, %v", name, next, err)
		}
	}
	for i := range batch {
		batch[i] = store.Operation{Kind: store.Delete, Row: store.Row{MessageID: names[i], KeepUntil: time.Now().Add(time.Hour)}}
	}
	if err := s.Apply(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	settled := 0
	if err := s.Load(t.Context(), n-1, func(r store.Row) error { settled++; return nil }); err != nil || settled != n-1 {
		t.Errorf("%d settled, %v", settled, err)
	}
	if count, err := s.Count(t.Context(), n-1); err != nil || count != n-1 {
		t.Errorf("count %d, %v", count, err)
	}
}

// TestLoadInBoundedMemory checks that a recovery's memory grows neither with the
// number of rows nor with their size.
func TestLoadInBoundedMemory(t *testing.T) {
	const n, each, bound = 100_000, 2000, 16 << 20
	server := running(t, "redis-server")
	s := mustOpen(t, Options{DSN: server.database(t), Partition: orders})
	payload := make([]byte, 500)
	for first := 0; first < n; first += each {
		batch := make([]store.Operation, each)
		for i := range batch {
			batch[i] = insertion(fmt.Sprint(first + i))
			batch[i].Row.Payload = payload
		}
		if err := s.Apply(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
	}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before, most, rows := heap(), uint64(0), 0
	err := s.Load(t.Context(), 0, func(store.Row) error {
		if rows++; rows%(n/20) == 0 {
			most = max(most, heap())
		}
		return nil
	})
	if err != nil || rows != n {
		t.Fatalf("%d rows, %v", rows, err)
	}
	if most > before+bound {
		t.Errorf("%d bytes more than before", most-before)
	}
}
