package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/faulty"
	"github.com/custodymq/custody/broker/wire"
)

// told summarises Load: "a:pending", and the reasons of rows without an ID.
func told(t *testing.T, s *Store) string {
	t.Helper()
	var text []string
	err := s.Load(t.Context(), 100, func(r store.Row) error {
		if r.MessageID == "" {
			text = append(text, r.Reason)
		} else {
			text = append(text, r.MessageID+":"+r.State.String())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(text, " ")
}

func message(id string, size int) store.Operation {
	return store.Operation{Kind: store.Insert, Row: store.Row{
		MessageID: id, BusinessID: "order", Topic: "orders", Key: "k", Headers: map[string]string{"a": "b"},
		Version: wire.Version, Payload: []byte(strings.Repeat(id[:1], size)), InsertedAt: time.Unix(1, 0),
	}}
}

func mustApply(t testing.TB, s *Store, batch ...store.Operation) {
	t.Helper()
	if err := s.Apply(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
}

// filled returns the path of a closed store with these pending messages.
func filled(t *testing.T, size int, ids ...string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "store.db")
	s := mustOpen(t, Options{Path: path})
	for _, id := range ids {
		mustApply(t, s, message(id, size))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDamageOfEachColumnIsSeen(t *testing.T) {
	for column, value := range map[string]string{
		"message_id": `'other'`, "state": `4`, "version": `version+1`, "business_id": `'x'`, "topic": `'elsewhere'`, "competitor": `'x'`,
		"key": `'x'`, "inserted_at": `inserted_at+1`, "expires_at": `1`, "attempts": `1`, "last_consumer": `'x'`, "reason": `'x'`,
		"keep_until": `1`, "checksum": `checksum+1`, "content_checksum": `content_checksum+1`, "headers": `'{"a":"c"}'`, "payload": `x'00'`,
		"partition": `2`,
	} {
		t.Run(column, func(t *testing.T) {
			path := filled(t, 10, "a", "b", "c")
			alter(t, path, fmt.Sprintf(`PRAGMA foreign_keys=OFF; UPDATE custody_row SET %s=%s WHERE message_id='b'`, column, value))
			report, err := Check(t.Context(), path, func(int64, int64) {})
			if err != nil || report.Sound() || len(report.Damaged) != 1 {
				t.Errorf("check: %+v %v", report, err)
			}
			s := mustOpen(t, Options{Path: path})
			want, id := "a:pending b:damaged c:pending", "b"
			switch column {
			case "message_id":
				want, id = "a:pending other:damaged c:pending", "other"
			case "headers", "payload": // detected when the content is read
				want = "a:pending b:pending c:pending"
			case "partition": // its index entry has changed too, so it has no ID here
				want, id = "a:pending c:pending 1 rows are missing: the partition counts 3, and has 2 that are sound and 0 that are damaged", ""
			}
			if got := told(t, s); got != want {
				t.Errorf("load: %s, want %s", got, want)
			}
			var found []store.Row
			if err := s.Content(t.Context(), []string{"a", id, "c"}, func(r store.Row) error { found = append(found, r); return nil }); err != nil {
				t.Fatal(err)
			}
			if id != "" && (len(found) != 3 || found[1].State != store.Damaged || found[1].MessageID != id || found[1].Payload != nil || found[1].Reason == "") {
				t.Errorf("content: %+v", found)
			}
			if string(found[0].Payload) != strings.Repeat("a", 10) {
				t.Errorf("a sound row: %+v", found[0])
			}
		})
	}
}

// TestDamagedIndexStrikesNoOtherRow checks that an index entry pointing to
// another row does not let a change hit that row.
func TestDamagedIndexStrikesNoOtherRow(t *testing.T) {
	path := filled(t, 10, "a", "b", "c")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// The index of message IDs holds (partition, ID, row): 1, "b", 2. Change it
	// to 1, "b", 3.
	key := []byte{1, 'b', 2}
	at := -1
	for i := range data[:len(data)-3] {
		if string(data[i:i+3]) == string(key) {
			at = i
		}
	}
	if at < 0 {
		t.Fatal("the index entry was not found")
	}
	data[at+2] = 3
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, Options{Path: path})
	mustApply(t, s, store.Operation{Kind: store.Delete, Row: store.Row{MessageID: "b"}}, store.Operation{Kind: store.DeadLetter, Row: store.Row{MessageID: "b"}})
	if got := told(t, s); got != "a:pending b:pending c:pending" {
		t.Errorf("load: %s", got)
	}
	if err := s.Content(t.Context(), []string{"b"}, func(r store.Row) error {
		if r.State != store.Damaged || r.MessageID != "b" || r.Payload != nil {
			t.Errorf("content: %+v", r)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

func TestMissingRowsAreCounted(t *testing.T) {
	path := filled(t, 10, "a", "b", "c")
	alter(t, path, `DELETE FROM custody_row WHERE message_id='b'`)
	s := mustOpen(t, Options{Path: path})
	if got := told(t, s); got != "a:pending c:pending 1 rows are missing: the partition counts 3, and has 2 that are sound and 0 that are damaged" {
		t.Error(got)
	}
	s.Close()
	report, err := Check(t.Context(), path, func(int64, int64) {})
	if err != nil || report.Sound() || report.Partitions[0].Missing != 1 {
		t.Errorf("check: %+v %v", report, err)
	}
	alter(t, path, `UPDATE custody_partition SET live=1`)
	if got := told(t, mustOpen(t, Options{Path: path})); !strings.Contains(got, "1 rows are more than the partition counts (1)") {
		t.Error(got)
	}
}

// TestUnreadablePageCostsItsRowsOnly checks that an unreadable table page loses
// only its own rows, whose IDs come from the index.
func TestUnreadablePageCostsItsRowsOnly(t *testing.T) {
	var all []string
	for i := range 40 {
		all = append(all, fmt.Sprintf("m%02d", i))
	}
	path := filled(t, 500, all...)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const size = 4096
	found := regexp.MustCompile(`(?s)m20.?orderorders`).FindIndex(data) // as stored in the table
	if found == nil {
		t.Fatal("row m20 was not found")
	}
	page := found[0] / size * size
	clear(data[page : page+size])
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, Options{Path: path})
	sound, damaged := 0, 0
	for i, row := range strings.Fields(told(t, s)) {
		id, state, _ := strings.Cut(row, ":")
		if id != all[i] {
			t.Fatalf("row %d is %s", i, row)
		}
		if state == "damaged" {
			damaged++
		} else {
			sound++
		}
	}
	if damaged == 0 || damaged > 10 || sound+damaged != 40 {
		t.Errorf("%d sound, %d damaged", sound, damaged)
	}
	if report, err := Check(t.Context(), path, func(int64, int64) {}); err != nil || len(report.Structure) == 0 || len(report.Damaged) != damaged {
		t.Errorf("check: %+v %v", report, err)
	}
}

// TestLostTransactionsAreTold deletes the WAL of a killed broker: the owner file
// knows of later transactions.
func TestLostTransactionsAreTold(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	s := mustOpen(t, Options{Path: path})
	mustApply(t, s, message("a", 10))
	if err := s.Close(); err != nil { // checkpoints into the database
		t.Fatal(err)
	}
	s = mustOpen(t, Options{Path: path})
	mustApply(t, s, message("b", 10))
	mustApply(t, s, message("c", 10))
	copied := filepath.Join(t.TempDir(), "store.db")
	for _, file := range []string{path, ownerPath(path, partition)} { // without the WAL
		data, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(strings.Replace(file, path, copied, 1), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	report, err := Check(t.Context(), copied, func(int64, int64) {})
	if err != nil || report.Sound() || report.Partitions[0].Lost != 3 { // reopening is a transaction too
		t.Errorf("check: %+v %v", report, err)
	}
	if got := told(t, mustOpen(t, Options{Path: copied})); !strings.HasPrefix(got, "a:pending 3 transactions are missing") {
		t.Error(got)
	}
	if report, err := Check(t.Context(), path, func(int64, int64) {}); err != nil || !report.Sound() { // a running broker's file
		t.Errorf("check: %+v %v", report, err)
	}
}

func TestMovedFilesEndAcceptance(t *testing.T) {
	for name, move := range map[string]func(path string) error{
		"database deleted": os.Remove,
		"log deleted":      func(path string) error { return os.Remove(path + "-wal") },
		"index deleted":    func(path string) error { return os.Remove(path + "-shm") },
		"database renamed": func(path string) error { return os.Rename(path, path+".old") },
		"folder renamed":   func(path string) error { return os.Rename(filepath.Dir(path), filepath.Dir(path)+"-old") },
		"database replaced": func(path string) error {
			return errors.Join(os.WriteFile(path+".new", []byte("x"), 0o600), os.Rename(path+".new", path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			folder := filepath.Join(t.TempDir(), "data")
			if err := os.Mkdir(folder, 0o700); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(folder, "store.db")
			s := mustOpen(t, Options{Path: path})
			mustApply(t, s, message("a", 10))
			if err := move(path); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				err := s.Apply(t.Context(), []store.Operation{message("b", 10)})
				if failure(t, err, true); !errors.Is(err, store.ErrMoved) {
					t.Fatalf("after it was moved: %v", err)
				}
			}
			if _, err := s.Expired(t.Context(), time.Now(), time.Time{}, 1); !errors.Is(err, store.ErrMoved) {
				t.Errorf("expired: %v", err)
			}
		})
	}
}

func TestOnePartitionHasOneOwner(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	first := mustOpen(t, Options{Path: path})
	neighbour := mustOpen(t, Options{Path: path, Partition: store.Partition{Connection: "orders", Identity: "node-b"}})
	mustApply(t, first, message("a", 10))
	refused(t, Options{Path: path, Partition: partition}, fmt.Sprintf("partition orders@node-a is owned by broker orders (process %d, since 2", os.Getpid()))

	// Someone removes the lock file: the second store fences the first.
	if err := os.Remove(ownerPath(path, partition)); err != nil {
		t.Fatal(err)
	}
	second := mustOpen(t, Options{Path: path})
	if got := told(t, second); got != "a:pending" {
		t.Error(got)
	}
	for range 2 {
		err := first.Apply(t.Context(), []store.Operation{message("b", 10)})
		if failure(t, err, true); !errors.Is(err, store.ErrFenced) {
			t.Fatalf("the first: %v", err)
		}
	}
	mustApply(t, second, message("c", 10))
	mustApply(t, neighbour, message("d", 10))
	if got := told(t, second); got != "a:pending c:pending" {
		t.Errorf("the second: %s", got)
	}
	second.Close()
	third := mustOpen(t, Options{Path: path}) // closing the store releases the partition
	if _, err := third.Expired(t.Context(), time.Now(), time.Time{}, 1); err != nil {
		t.Error(err)
	}
}

// TestIdleStoreLearnsThatItIsFenced checks that a write that changes nothing also
// detects the fencing.
func TestIdleStoreLearnsThatItIsFenced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	s := mustOpen(t, Options{Path: path})
	alter(t, path, `UPDATE custody_partition SET writer=1`)
	if _, err := s.Expired(t.Context(), time.Now(), time.Time{}, 1); !errors.Is(err, store.ErrFenced) {
		t.Fatalf("got %v", err)
	}
}

func TestFilesAreForTheirOwnerOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	s := mustOpen(t, Options{Path: path})
	mustApply(t, s, message("a", 10))
	for _, file := range []string{path, path + "-wal", path + "-shm", ownerPath(path, partition)} {
		info, err := os.Stat(file)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", file, info.Mode(), err)
		}
	}
}

func TestMigratesTheFirstSchema(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	var sql []string
	for _, o := range schema1 {
		sql = append(sql, o.sql)
	}
	alter(t, path, strings.Join(sql, ";\n")+fmt.Sprintf(`;
		PRAGMA application_id=%[1]d; PRAGMA user_version=1; PRAGMA journal_mode=WAL;
		INSERT INTO custody_partition (id, connection, identity, writer, batch) VALUES (1, 'orders', 'node-a', 7, 9), (2, 'orders', 'node-b', 7, 9);
		INSERT INTO custody_row VALUES
			(1, 1, 'a', 1, %[2]d, 'order', 'orders', '', 'k', '{"a":"b"}', 1, NULL, 2, 'c1', '', NULL, x'0102'),
			(2, 1, 'b', 3, %[2]d, 'order', '', '', '', NULL, 1, NULL, 0, '', '', 4102444800000000000, NULL),
			(3, 1, 'c', 4, %[2]d, 'order', 'orders', '', '', NULL, 1, 5, 3, 'c1', 'why', NULL, x'03'),
			(4, 2, 'd', 1, %[2]d, 'order', 'orders', '', '', NULL, 1, NULL, 0, '', '', NULL, x'04'),
			(9, 1, 'e', 1, 0, 'order', 'orders', '', '', NULL, 1, NULL, 0, '', '', NULL, x'05')`, applicationID, wire.Version))
	if _, err := Check(t.Context(), path, func(int64, int64) {}); err == nil || !strings.Contains(err.Error(), "migrates it") {
		t.Errorf("check of the older file: %v", err)
	}
	s := mustOpen(t, Options{Path: path})
	if got := told(t, s); got != "b:settled a:pending c:dead e:refused-version" {
		t.Error(got)
	}
	if err := s.Content(t.Context(), []string{"a"}, func(r store.Row) error {
		if string(r.Payload) != "\x01\x02" || r.Headers["a"] != "b" || r.Attempts != 2 || r.Order != 1 {
			t.Errorf("content: %+v", r)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	mustApply(t, s, message("f", 10), store.Operation{Kind: store.Delete, Row: store.Row{MessageID: "a"}})
	s.Close()
	if got := told(t, mustOpen(t, Options{Path: path})); got != "b:settled c:dead e:refused-version f:pending" {
		t.Error(got)
	}
	if got := told(t, mustOpen(t, Options{Path: path, Partition: store.Partition{Connection: "orders", Identity: "node-b"}})); got != "d:pending" {
		t.Error(got)
	}
	if report, err := Check(t.Context(), path, func(int64, int64) {}); err != nil || !report.Sound() {
		t.Errorf("check: %+v %v", report, err)
	}
}

// panicking panics the way SQLite does when it runs out of memory.
type panicking struct{ on func(faulty.Op) bool }

func (p panicking) Before(op faulty.Op) error {
	if p.on(op) {
		panic("out of memory")
	}
	return nil
}
func (panicking) After(_ faulty.Op, err error) error { return err }

func TestPanicOfSQLiteIsAnError(t *testing.T) {
	s, vfs := struck(t, Options{})
	vfs.Arm(panicking{faulty.OnFile("write", faulty.WAL)})
	failure(t, s.Apply(t.Context(), []store.Operation{message("a", 10)}), true)
	vfs.Arm(panicking{faulty.OnFile("sync", faulty.WAL)})
	failure(t, s.Apply(t.Context(), []store.Operation{message("b", 10)}), false)
	vfs.Disarm()
	if absent, err := s.Reestablish(t.Context()); err != nil || !absent {
		t.Fatalf("absent %v, %v", absent, err)
	}
	mustApply(t, s, message("c", 10))
	if got := told(t, s); got != "before-0:pending c:pending" {
		t.Error(got)
	}

	// A row that is in no cache.
	mustApply(t, s, message("d", 8<<20))
	vfs.Arm(panicking{func(op faulty.Op) bool { return op.Name == "read" }})
	for range 2 {
		if err := s.Content(t.Context(), []string{"d"}, func(store.Row) error { return nil }); err == nil || !strings.Contains(err.Error(), "panicked") {
			t.Errorf("content: %v", err)
		}
	}
	vfs.Disarm()
	if got := told(t, s); got != "before-0:pending c:pending d:pending" {
		t.Error(got)
	}
	mustApply(t, s, message("e", 10))
}

func TestFreePagesCountAsSpace(t *testing.T) {
	free := uint64(1 << 40)
	s := mustOpen(t, Options{
		Path: filepath.Join(t.TempDir(), "store.db"), Reserve: 1 << 20,
		free: func(string) (uint64, error) { return free, nil },
	})
	mustApply(t, s, message("big", 8<<20))
	free = 0
	err := s.Apply(t.Context(), []store.Operation{message("next", 1<<20)})
	if failure(t, err, true); !errors.Is(err, store.ErrFull) {
		t.Fatal(err)
	}
	mustApply(t, s, store.Operation{Kind: store.Delete, Row: store.Row{MessageID: "big"}})
	mustApply(t, s, message("next", 1<<20)) // drained, and no longer full
	if err := s.Apply(t.Context(), []store.Operation{message("too big", 4<<20)}); !errors.Is(err, store.ErrFull) {
		t.Fatal(err)
	}
}

// TestLargeContentTakesBoundedMemory checks that rows whose content exceeds
// SQLite's memory are loaded, listed and read one by one in constant memory.
func TestLargeContentTakesBoundedMemory(t *testing.T) {
	for _, c := range []struct{ rows, size int }{{120, 1 << 20}, {60, 4 << 20}} {
		if testing.Short() && c.rows*c.size > 128<<20 {
			continue
		}
		t.Run(fmt.Sprintf("%dx%dMiB", c.rows, c.size>>20), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "store.db")
			s := mustOpen(t, Options{Path: path, Sync: store.FlushPeriodic})
			for i := range c.rows {
				mustApply(t, s, message(fmt.Sprintf("m%d", i), c.size))
			}
			mustApply(t, s, store.Operation{Kind: store.DeadLetter, Row: store.Row{MessageID: "m0"}})
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			before := heldMemory()
			s = mustOpen(t, Options{Path: path})
			if n := len(strings.Fields(told(t, s))); n != c.rows {
				t.Fatalf("%d rows", n)
			}
			for _, selection := range []store.Selection{{}, {State: store.Dead}, {MessageID: "m1"}} {
				if err := s.Rows(t.Context(), selection, func(store.Row) error { return nil }); err != nil {
					t.Fatal(err)
				}
			}
			for i := range c.rows {
				if err := s.Content(t.Context(), []string{fmt.Sprintf("m%d", i)}, func(r store.Row) error {
					if len(r.Payload) != c.size {
						return fmt.Errorf("%d bytes", len(r.Payload))
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
			}
			if grown := heldMemory() - before; grown > 64<<20 {
				t.Errorf("%d MiB are held", grown>>20)
			}
		})
	}
}

func heldMemory() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestCheckIsReadOnly(t *testing.T) {
	path := filled(t, 10, "a", "b")
	listing := func() string {
		var text []string
		entries, err := os.ReadDir(filepath.Dir(path))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			data, err := os.ReadFile(filepath.Join(filepath.Dir(path), e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			text = append(text, fmt.Sprintf("%s %x", e.Name(), data))
		}
		return strings.Join(text, "\n")
	}
	before := listing()
	if report, err := Check(context.Background(), path, func(int64, int64) {}); err != nil || !report.Sound() {
		t.Errorf("check: %+v %v", report, err)
	}
	if listing() != before {
		t.Error("it changed a file")
	}
	if _, err := Check(context.Background(), t.TempDir(), func(int64, int64) {}); err == nil {
		t.Error("a folder was checked")
	}
}
