package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/faulty"
	"github.com/custodymq/custody/broker/store/storetest"
	"github.com/custodymq/custody/broker/wire"
	"github.com/ncruces/go-sqlite3"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(tortured); path != "" {
		if err := serveUntilKilled(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

var partition = store.Partition{Connection: "orders", Identity: "node-a"}

func mustOpen(t testing.TB, o Options) *Store {
	t.Helper()
	if o.Partition == (store.Partition{}) {
		o.Partition = partition
	}
	s, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() }) // checked where the test closes it itself
	return s
}

func TestStore(t *testing.T) {
	for name, sync := range map[string]store.Flush{"every commit": store.FlushEveryCommit, "periodic": store.FlushPeriodic} {
		t.Run(name, func(t *testing.T) {
			storetest.Exercise(t, func(t *testing.T) storetest.Database {
				path := filepath.Join(t.TempDir(), "a b?%#.db") // needs escaping in a URI
				open := func(history bool) func(*testing.T, store.Partition) store.Store {
					return func(t *testing.T, p store.Partition) store.Store {
						return mustOpen(t, Options{Path: path, Partition: p, Sync: sync, KeepHistory: history})
					}
				}
				return storetest.Database{
					Open: open(false), History: open(true), Durable: true,
					Bounded: func(t *testing.T, p store.Partition, n int) store.Store {
						return mustOpen(t, Options{Path: path, Partition: p, Sync: sync, MaxSettled: n})
					},
					Damage: func(t *testing.T, _ store.Store, id string) {
						alter(t, path, fmt.Sprintf(`UPDATE custody_row SET topic='elsewhere' WHERE message_id='%s'`, id))
					},
					Age: func(t *testing.T, s store.Store, id string, version uint8) {
						aging := change{"age", []field{versionField}}
						alterWith(t, path, aging.register, fmt.Sprintf(`UPDATE custody_row SET version=%d, %s WHERE message_id='%s'`,
							version, aging.set(fmt.Sprint(int64(versionField.int(int64(version))))), id))
					},
				}
			})
		})
	}
}

// alter modifies the file the way another program might.
func alter(t *testing.T, path, sql string) {
	t.Helper()
	alterWith(t, path, func(*sqlite3.Conn) error { return nil }, sql)
}

func alterWith(t *testing.T, path string, prepare func(*sqlite3.Conn) error, sql string) {
	t.Helper()
	conn, err := sqlite3.OpenFlags(path, sqlite3.OPEN_READWRITE|sqlite3.OPEN_CREATE)
	if err == nil {
		err = errors.Join(conn.BusyTimeout(5*time.Second), prepare(conn), conn.Exec(sql), conn.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

func inserts(n int, prefix string) []store.Operation {
	batch := make([]store.Operation, n)
	payload := make([]byte, 256)
	for i := range batch {
		batch[i] = store.Operation{Kind: store.Insert, Row: store.Row{
			MessageID: fmt.Sprintf("%s-%d", prefix, i), BusinessID: "order", Topic: "orders",
			Version: wire.Version, Payload: payload, InsertedAt: time.Unix(1, 0),
		}}
	}
	return batch
}

func ids(t *testing.T, s *Store) string {
	t.Helper()
	var ids []string
	if err := s.Rows(context.Background(), store.Selection{}, func(r store.Row) error { ids = append(ids, r.MessageID); return nil }); err != nil {
		t.Fatal(err)
	}
	return strings.Join(ids, " ")
}

func failure(t *testing.T, err error, notWritten bool) {
	t.Helper()
	var f *store.Failure
	if !errors.As(err, &f) || f.NotWritten != notWritten {
		t.Fatalf("want a failure with NotWritten %v, got %v", notWritten, err)
	}
}

// afterKill returns the rows that a new process would find on a killed process's
// files: the shared memory, with the dead process's view of the WAL, is gone.
func afterKill(t *testing.T, path string) string {
	t.Helper()
	copied := filepath.Join(t.TempDir(), "copy.db")
	for _, end := range []string{"", "-wal"} {
		data, err := os.ReadFile(path + end)
		if err == nil {
			err = os.WriteFile(copied+end, data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	s := mustOpen(t, Options{Path: copied})
	defer s.Close()
	return ids(t, s)
}

func struck(t *testing.T, o Options) (*Store, *faulty.VFS) {
	t.Helper()
	vfs := faulty.New(fmt.Sprintf("faulty-%d", vfsCount.Add(1)))
	t.Cleanup(vfs.Close)
	o.Path, o.VFS = filepath.Join(t.TempDir(), "store.db"), vfs.Name()
	s := mustOpen(t, o)
	t.Cleanup(vfs.Disarm) // before the store is closed
	if err := s.Apply(t.Context(), inserts(1, "before")); err != nil {
		t.Fatal(err)
	}
	return s, vfs
}

// TestFailedSyncIsUncertainUntilReestablished shows why Certifier exists: a row
// that reads as absent is back after a restart.
func TestFailedSyncIsUncertainUntilReestablished(t *testing.T) {
	s, vfs := struck(t, Options{})
	fault := faulty.FsyncError(faulty.OnFile("sync", faulty.WAL))
	vfs.Arm(fault)
	failure(t, s.Apply(t.Context(), inserts(1, "lost")), false)
	<-fault.Fired()
	if got := ids(t, s); got != "before-0" {
		t.Fatalf("read after the failed sync: %s", got)
	}
	if got := afterKill(t, s.options.Path); got != "before-0 lost-0" {
		t.Fatalf("SQLite no longer brings the row back after a kill: %s", got)
	}

	// While syncs fail nothing is certain, and no new write begins.
	if absent, err := s.Reestablish(t.Context()); err == nil || absent {
		t.Fatalf("re-established without a sync: %v %v", absent, err)
	}
	failure(t, s.Apply(t.Context(), inserts(1, "next")), true)

	vfs.Disarm()
	absent, err := s.Reestablish(t.Context())
	if err != nil || !absent {
		t.Fatalf("absent %v, %v", absent, err)
	}
	if got := afterKill(t, s.options.Path); got != "before-0" {
		t.Fatalf("proven absent, and back after a kill: %s", got)
	}
	if err := s.Apply(t.Context(), inserts(1, "after")); err != nil {
		t.Fatal(err)
	}
	if absent, err := s.Reestablish(t.Context()); err != nil || absent {
		t.Fatalf("the last write is stored: absent %v, %v", absent, err)
	}
	if got := afterKill(t, s.options.Path); got != "before-0 after-0" {
		t.Fatalf("at the end: %s", got)
	}
}

func TestApplyReestablishesByItself(t *testing.T) {
	s, vfs := struck(t, Options{})
	vfs.Arm(faulty.FsyncError(faulty.Always))
	failure(t, s.Apply(t.Context(), inserts(100, "lost")), false)
	vfs.Disarm()
	if err := s.Apply(t.Context(), inserts(1, "after")); err != nil {
		t.Fatal(err)
	}
	if got := afterKill(t, s.options.Path); got != "before-0 after-0" {
		t.Fatalf("after a kill: %s", got)
	}
}

func TestProvenNotWritten(t *testing.T) {
	for _, test := range []struct {
		name  string
		fault *faulty.Fault
		rows  int
		is    error
	}{
		{"full", faulty.Full(faulty.Always), 1, store.ErrFull},
		{"full, in a batch larger than the cache", faulty.Full(faulty.Always), 20_000, store.ErrFull},
		{"unreachable", faulty.Unreachable(faulty.Always), 1, sqlite3.IOERR},
		{"unreachable, many pages", faulty.Unreachable(faulty.Always), 100, sqlite3.IOERR},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, vfs := struck(t, Options{})
			vfs.Arm(test.fault)
			err := s.Apply(t.Context(), inserts(test.rows, "lost"))
			failure(t, err, true)
			if !errors.Is(err, test.is) {
				t.Errorf("got %v, want %v in it", err, test.is)
			}
			vfs.Disarm()
			if got := afterKill(t, s.options.Path); got != "before-0" {
				t.Fatalf("after a kill: %.100s", got)
			}
			if err := s.Apply(t.Context(), inserts(1, "after")); err != nil {
				t.Fatalf("healed: %v", err)
			}
			if got := ids(t, s); got != "before-0 after-0" {
				t.Fatalf("healed: %.100s", got)
			}
		})
	}
}

// TestFailureAtEachWrite fails each write of a transaction in turn: what is
// reported as not written must be absent after a kill, and what is uncertain must
// be certified correctly.
func TestFailureAtEachWrite(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run(map[bool]string{false: "before", true: "after"}[lost], func(t *testing.T) {
			finished := false
			for n := int64(1); n <= 40 && !finished; n++ {
				s, vfs := struck(t, Options{})
				var count atomic.Int64
				nth := func(op faulty.Op) bool {
					return op.File == faulty.WAL && (op.Name == "write" || op.Name == "sync") && count.Add(1) == n
				}
				fault := faulty.Unreachable(nth)
				if lost {
					fault = faulty.ReplyLost(nth)
				}
				vfs.Arm(fault)
				err := s.Apply(t.Context(), inserts(8, "x"))
				vfs.Disarm()
				var f *store.Failure
				switch {
				case err == nil:
					finished = true // the transaction has fewer than n operations
				case !errors.As(err, &f):
					t.Fatalf("operation %d: %v", n, err)
				case f.NotWritten:
					if got := afterKill(t, s.options.Path); got != "before-0" {
						t.Fatalf("operation %d: called not written, and there after a kill: %s", n, got)
					}
				default:
					if absent, err := s.Reestablish(t.Context()); err != nil || !absent {
						t.Fatalf("operation %d: absent %v, %v", n, absent, err)
					}
					if got := afterKill(t, s.options.Path); got != "before-0" {
						t.Fatalf("operation %d: proven absent, and there after a kill: %s", n, got)
					}
				}
				if err := s.Close(); err != nil {
					t.Fatalf("operation %d: close: %v", n, err)
				}
			}
			if !finished {
				t.Fatal("the transaction takes more operations than this test looks at")
			}
		})
	}
}

// TestCallerLeavesHeldSync checks that a hanging sync does not block its caller,
// and that the write completes.
func TestCallerLeavesHeldSync(t *testing.T) {
	s, vfs := struck(t, Options{})
	hold := faulty.Hold(faulty.OnFile("sync", faulty.WAL), time.Minute)
	t.Cleanup(hold.Release)
	vfs.Arm(hold)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- s.Apply(ctx, inserts(1, "slow")) }()
	<-hold.Fired()
	cancel()
	failure(t, <-result, false)

	waiting, stop := context.WithCancel(t.Context())
	stop()
	failure(t, s.Apply(waiting, inserts(1, "late")), true)

	hold.Release()
	if absent, err := s.Reestablish(t.Context()); err != nil || absent {
		t.Fatalf("the write was done in the end: absent %v, %v", absent, err)
	}
	if got := ids(t, s); got != "before-0 slow-0" {
		t.Fatal(got)
	}
}

// TestAnotherWriterHidesWhatBecameOfAWrite runs two brokers on one partition: the
// mark is the other's, so nothing is claimed.
func TestAnotherWriterHidesWhatBecameOfAWrite(t *testing.T) {
	s, vfs := struck(t, Options{})
	vfs.Arm(faulty.FsyncError(faulty.Always))
	failure(t, s.Apply(t.Context(), inserts(1, "lost")), false)
	vfs.Disarm()
	alter(t, s.options.Path, `UPDATE custody_partition SET writer=1, batch=99`)
	if absent, err := s.Reestablish(t.Context()); err == nil || absent {
		t.Fatalf("absent %v, %v", absent, err)
	}
	if err := s.Apply(t.Context(), inserts(1, "after")); !errors.Is(err, store.ErrFenced) {
		t.Fatalf("a fenced store writes: %v", err)
	}
}

func TestPeriodicFlushSyncsLater(t *testing.T) {
	s, vfs := struck(t, Options{Sync: store.FlushPeriodic, FlushInterval: time.Millisecond})
	synced := faulty.Hold(faulty.OnFile("sync", faulty.WAL), time.Minute)
	t.Cleanup(synced.Release)
	vfs.Arm(synced)
	if err := s.Apply(t.Context(), inserts(1, "soon")); err != nil {
		t.Fatal(err) // a commit does not wait for the held sync
	}
	<-synced.Fired()
	synced.Release()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestReserveIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	s := mustOpen(t, Options{Path: path})
	if err := s.Apply(t.Context(), inserts(1, "a")); err != nil {
		t.Fatal(err)
	}
	s.Close()
	s = mustOpen(t, Options{Path: path, Reserve: 1 << 62})
	err := s.Apply(t.Context(), inserts(1, "b"))
	if failure(t, err, true); !errors.Is(err, store.ErrFull) {
		t.Fatal(err)
	}
	// A full store can still be emptied.
	if err := s.Apply(t.Context(), []store.Operation{{Kind: store.Delete, Row: store.Row{MessageID: "a-0"}}}); err != nil {
		t.Fatal(err)
	}
	if got := ids(t, s); got != "" {
		t.Fatal(got)
	}
}

func TestOpenRefuses(t *testing.T) {
	for _, test := range []struct{ name, sql, want string }{
		{"a newer schema", `PRAGMA user_version=99`, "newer"},
		{"an older schema", `PRAGMA user_version=0`, "older"},
		{"a missing table", `DROP TABLE custody_row`, "custody_row is missing"},
		{"a missing index", `DROP INDEX custody_settled`, "custody_settled is missing"},
		{"an altered table", `ALTER TABLE custody_row ADD COLUMN x TEXT`, "custody_row is not as"},
		{"a foreign file", `PRAGMA application_id=7`, "not a broker's store"},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "store.db")
			if err := mustOpen(t, Options{Path: path}).Close(); err != nil {
				t.Fatal(err)
			}
			alter(t, path, test.sql)
			refused(t, Options{Path: path, Partition: partition}, test.want)
		})
	}
	foreign := filepath.Join(t.TempDir(), "foreign.db")
	alter(t, foreign, `CREATE TABLE custody_row (a)`)
	text := filepath.Join(t.TempDir(), "text.db")
	if err := os.WriteFile(text, []byte(strings.Repeat("not a database\n", 400)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		o    Options
		want string
	}{
		{"another program's tables", Options{Path: foreign, Partition: partition}, "not a broker's store"},
		{"a file that is no database", Options{Path: text, Partition: partition}, "not a database"},
		{"a folder that is not there", Options{Path: filepath.Join(t.TempDir(), "no", "x.db"), Partition: partition}, "open"},
		{"no path", Options{Partition: partition}, "no path"},
		{"memory", Options{Path: ":memory:", Partition: partition}, "memory store"},
		{"no partition", Options{Path: foreign}, "partition"},
		{"no such VFS", Options{Path: foreign, Partition: partition, VFS: "nobody"}, "nobody"},
		{"never flushed", Options{Path: foreign, Partition: partition, Sync: store.FlushNever}, "flushed"},
	} {
		t.Run(test.name, func(t *testing.T) { refused(t, test.o, test.want) })
	}
}

func refused(t *testing.T, o Options, want string) {
	t.Helper()
	s, err := Open(t.Context(), o)
	if err == nil {
		s.Close()
		t.Fatal("opened")
	}
	if !strings.Contains(err.Error(), want) {
		t.Fatalf("got %q, want %q in it", err, want)
	}
}

func BenchmarkApply(b *testing.B) {
	for _, size := range []int{1, 64, 256} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			s := mustOpen(b, Options{Path: filepath.Join(b.TempDir(), "store.db")})
			batch := inserts(size, "b")
			n := 0
			for b.Loop() {
				for i := range batch {
					batch[i].Row.MessageID = fmt.Sprintf("message-%012d", n)
					n++
				}
				if err := s.Apply(b.Context(), batch); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}

// TestClosedPartitionIsFreeWhileProcessesAreStarted checks that a closed store
// releases its partition although a child process that is being started has
// copies of all open files until its program runs.
func TestClosedPartitionIsFreeWhileProcessesAreStarted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	ctx, stop := context.WithCancel(t.Context())
	var starting sync.WaitGroup
	for range 4 {
		starting.Go(func() {
			for ctx.Err() == nil {
				_ = exec.CommandContext(ctx, "/bin/true").Run() // its result does not matter
			}
		})
	}
	for range 50 {
		if err := mustOpen(t, Options{Path: path}).Close(); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	starting.Wait()
}
