package zeromq

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/disk"
	"github.com/custodymq/custody/broker/store/sqlite"
	"github.com/custodymq/custody/broker/wire"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/tasks"
)

// storage is the kind of the probes of the broker's store: how it handles
// damaged, missing and moved files, files that are not its own, and a second
// owner.
const storage = "storage"

// shelf holds a probe's own files.
type shelf struct {
	ctx     context.Context
	in      *instance
	folder  string
	path    string // of a database
	options sqlite.Options
	disk    *disk.Disk // does not really sync, because the probes would wait for the machine's disk
}

var shelves atomic.Uint64

// shelved returns a probe that is accepted if try finds that the store keeps its
// promises.
func shelved(name, text string, try func(*shelf) error) probe {
	return listed(storage, name, text, evidence.ProbeAccepted, func(a *attempt) (systems.Probed, error) {
		folder, err := os.MkdirTemp(filepath.Dir(a.in.path()), "probe-")
		if err != nil {
			return systems.Probed{}, fmt.Errorf("zeromq: probe: %w", err)
		}
		s := &shelf{ctx: a.ctx, in: a.in, folder: folder, path: filepath.Join(folder, "store.db")}
		s.disk = disk.New(fmt.Sprintf("custody-shelf-%d", shelves.Add(1)))
		defer s.disk.Close()
		s.options = sqlite.Options{Path: s.path, VFS: s.disk.Name(), Partition: store.Partition{Connection: "orders", Identity: "node-a"}, Reserve: 1, BusyTimeout: time.Second}
		done := make(chan error, 1)
		tasks.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					done <- fmt.Errorf("the store panicked: %v", p)
				}
			}()
			done <- try(s)
		})
		select {
		case err = <-done:
		case <-a.ctx.Done():
			// The work, and possibly the delay, is this process's, so it proves
			// nothing.
			return systems.Probed{}, errors.New("zeromq: probe: the store did not end within the bound")
		}
		if a.ctx.Err() != nil {
			return systems.Probed{}, fmt.Errorf("zeromq: probe: %w", context.Cause(a.ctx))
		}
		if err != nil {
			return came(evidence.ProbeMisanswered, "%v", err), nil
		}
		return came(evidence.ProbeAccepted, "as promised"), nil
	})
}

// keepings are the probes of kind storage.
var keepings = []probe{
	shelved("second-broker", "a second broker on the partition is refused and told who has it, one on another partition of the same file is served, and a closed partition is free", ownership),
	shelved("partition-taken-over", "a broker whose lock was taken away and whose partition another has taken writes nothing any more, and says why", fencing),
	shelved("damaged-marker", "an altered row of a settled message is named, and not taken for a settled one", damagedMarkers),
	shelved("missing-row", "rows that are gone, or too many, are counted and told", missingRows),
	shelved("unreadable-page", "a page that cannot be read costs its own rows only, and these are named", unreadablePage),
	shelved("damaged-index", "an index entry that leads to another row strikes and gives no other row", damagedIndex),
	shelved("lost-log", "transactions that are missing with a deleted log are told", lostLog),
	shelved("moved-files", "files that are moved, deleted or exchanged under a running store end acceptance", movedFiles),
	shelved("private-files", "its files are for their owner only", privateFiles),
	shelved("foreign-file", "a file that is no store, is of a newer version, or was altered is refused and left as it is", foreignFiles),
	shelved("reserve", "inserts leave the reserve of the disk, and what frees room may use it", reserve),
	shelved("check-in-full", "the check counts and names what it finds of each partition, tells how far it is, and leaves nothing behind", checkInFull),
	shelved("check-while-written", "the check of a file that a broker writes to finds it sound", checkWhileWritten),
	shelved("cancelled", "a call that is given up, or comes after the end, says whether it was done, and one that is held up is left by its caller", cancelled),
	shelved("side-by-side", "no read waits for a write or for another kind of read", sideBySide),
	shelved("second-writer", "what became of a write is not claimed when another has written since", secondWriter),
	shelved("bounded-markers", "of settled messages as many IDs are kept as the bound says, and these are the newest", boundedMarkers),
	shelved("old-version", "a row of another protocol version is refused by name, and counted", refusedVersion),
}

// contentGone deletes a row's content, so that nothing can be read.
const contentGone = `NULL, headers=NULL`

// alterations are probes of kind storage, one per column and altered value.
var alterations = func() (all []probe) {
	for _, a := range []struct{ column, value string }{
		{"message_id", `'other'`}, {"state", `4`}, {"version", `version+1`}, {"business_id", `'x'`}, {"topic", `'elsewhere'`}, {"competitor", `'x'`},
		{"key", `'x'`}, {"inserted_at", `inserted_at+1`}, {"inserted_at", `NULL`}, {"expires_at", `1`}, {"expires_at", `NULL`}, {"attempts", `1`},
		{"last_consumer", `'x'`}, {"reason", `'x'`}, {"keep_until", `1`}, {"checksum", `checksum+1`}, {"content_checksum", `content_checksum+1`},
		{"headers", `'{"a":"c"}'`}, {"headers", `NULL`}, {"payload", `x'00'`}, {"payload", `NULL`}, {"payload", contentGone}, {"partition", `2`},
	} {
		name := "damaged-" + strings.ReplaceAll(a.column, "_", "-")
		switch a.value {
		case "NULL":
			name += "-gone"
		case contentGone:
			name += "-and-headers-gone"
		}
		all = append(all, shelved(name, "a row of which one column was altered is named as damaged, by the store and by the check, and never given",
			func(s *shelf) error { return damagedColumn(s, a.column, a.value) }))
	}
	return all
}()

func (s *shelf) open() (*sqlite.Store, error) { return sqlite.Open(s.ctx, s.options) }

// filled creates a closed store with these pending messages.
func (s *shelf) filled(size int, ids ...string) error {
	st, err := s.open()
	if err != nil {
		return err
	}
	var batch []store.Operation
	for _, id := range ids {
		batch = append(batch, inserting(id, size))
	}
	return errors.Join(st.Apply(s.ctx, batch), st.Close())
}

// anew returns the shelf with another path. Its disk would record both databases
// as one, but that record is not used.
func (s *shelf) anew(name string) *shelf {
	other := *s
	other.path = filepath.Join(s.folder, name)
	other.options.Path = other.path
	return &other
}

func inserting(id string, size int) store.Operation {
	return store.Operation{Kind: store.Insert, Row: store.Row{
		MessageID: id, BusinessID: "of-" + id, Topic: "orders", Key: "k", Headers: map[string]string{"a": "b"}, Version: wire.Version,
		Payload: bytes.Repeat([]byte(id), size), InsertedAt: time.Unix(1, 0), ExpiresAt: time.Unix(1<<33, 0),
	}}
}

// alter modifies the file behind the store's back.
func (s *shelf) alter(statements ...string) error {
	db, err := file{path: s.path}.open("rw")
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	for _, text := range append([]string{`PRAGMA foreign_keys=OFF`}, statements...) {
		if _, err := db.ExecContext(s.ctx, text); err != nil {
			return fmt.Errorf("%s: %w", text, err)
		}
	}
	return nil
}

func (s *shelf) check() (sqlite.Report, error) {
	return sqlite.Check(s.ctx, s.path, func(int64, int64) {})
}

// sound returns nil if the check finds nothing wrong.
func (s *shelf) sound() error {
	r, err := s.check()
	if err == nil && !r.Sound() {
		err = fmt.Errorf("the check finds a sound file damaged: %+v", r)
	}
	return err
}

// loaded summarises a load: "a:pending", and the reason for a row without an ID.
func loaded(ctx context.Context, st store.Store) (string, error) {
	var told []string
	err := st.Load(ctx, 100, func(r store.Row) error {
		if r.MessageID == "" {
			told = append(told, r.Reason)
		} else {
			told = append(told, r.MessageID+":"+r.State.String())
		}
		return nil
	})
	return strings.Join(told, " "), err
}

// loads opens the store and compares what it loads.
func (s *shelf) loads(want string) error {
	st, err := s.open()
	if err != nil {
		return err
	}
	got, err := loaded(s.ctx, st)
	if err == nil && got != want {
		err = fmt.Errorf("loaded %q, and there is %q", got, want)
	}
	return errors.Join(err, st.Close())
}

// proven returns nil if err is a failure for that reason which proves that
// nothing was written.
func proven(err, reason error) error {
	var f *store.Failure
	if errors.As(err, &f) && f.NotWritten && errors.Is(err, reason) {
		return nil
	}
	return fmt.Errorf("a write was answered with %w, where %w and not written are due", orNothing(err), reason)
}

var errNone = errors.New("no error")

func orNothing(err error) error {
	if err == nil {
		return errNone
	}
	return err
}

// says returns nil if err's text contains all of these parts.
func says(err error, parts ...string) error {
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			return fmt.Errorf("%w, where %q is due", orNothing(err), part)
		}
	}
	return nil
}

func equal[T comparable](what string, got, want T) error {
	if got != want {
		return fmt.Errorf("%s: %v, where %v is due", what, got, want)
	}
	return nil
}

func ownership(s *shelf) error {
	// The running broker's partition.
	s.in.mu.Lock()
	name, identity := s.in.config.Name, s.in.identity
	s.in.mu.Unlock()
	o := sqlite.Options{Path: s.in.path(), Partition: store.Partition{Connection: name, Identity: identity}, BusyTimeout: time.Second}
	_, err := sqlite.Open(s.ctx, o)
	if err := says(err, "partition "+o.Partition.String()+" is owned by broker "+name+" (process ", ", since 20"); err != nil {
		return err
	}
	o.Partition.Identity = "another"
	other, err := sqlite.Open(s.ctx, o)
	if err != nil {
		return fmt.Errorf("another partition of its file: %w", err)
	}
	err = other.Apply(s.ctx, []store.Operation{inserting("a", 1), {Kind: store.Delete, Row: store.Row{MessageID: "a"}}})
	if err := errors.Join(err, other.Close()); err != nil {
		return err
	}
	// A store of the probe's own.
	first, err := s.open()
	if err != nil {
		return err
	}
	_, err = s.open()
	if err := says(err, "is owned by broker orders (process "+fmt.Sprint(os.Getpid())); err != nil {
		return err
	}
	if err := errors.Join(first.Apply(s.ctx, []store.Operation{inserting("a", 1)}), s.sound()); err != nil {
		return err // the partition is taken while the broker runs
	}
	report, err := s.check()
	if err == nil && len(report.Partitions) != 1 {
		err = fmt.Errorf("the check finds %+v", report)
	}
	if err == nil {
		err = says(errors.New(report.Partitions[0].Owner), fmt.Sprintf("broker orders (process %d, since 20", os.Getpid()))
	}
	return errors.Join(err, first.Close(), first.Close(), s.loads("a:pending"))
}

func (s *shelf) lock() (string, error) {
	found, err := filepath.Glob(s.path + "*.lock")
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("its owner's files are %v (%w)", found, err)
	}
	return found[0], nil
}

func fencing(s *shelf) error {
	first, err := s.open()
	if err != nil {
		return err
	}
	defer first.Close()
	if err := first.Apply(s.ctx, []store.Operation{inserting("a", 1)}); err != nil {
		return err
	}
	lock, err := s.lock()
	if err != nil {
		return err
	}
	if err := os.Remove(lock); err != nil {
		return err
	}
	second, err := s.open()
	if err != nil {
		return err
	}
	defer second.Close()
	for range 2 {
		if err := proven(first.Apply(s.ctx, []store.Operation{inserting("b", 1)}), store.ErrFenced); err != nil {
			return err
		}
		_, err := first.Expired(s.ctx, time.Unix(2, 0), time.Time{}, 1)
		if err := proven(err, store.ErrFenced); err != nil {
			return err
		}
	}
	if err := second.Apply(s.ctx, []store.Operation{inserting("c", 1)}); err != nil {
		return err
	}
	got, err := loaded(s.ctx, second)
	return errors.Join(err, equal("loaded", got, "a:pending c:pending"))
}

func damagedColumn(s *shelf, column, value string) error {
	if err := errors.Join(s.filled(5, "a", "b", "c"), s.sound()); err != nil {
		return err
	}
	if err := s.alter(fmt.Sprintf(`UPDATE custody_row SET %s=%s WHERE message_id='b'`, column, value)); err != nil {
		return err
	}
	want, id := "a:pending b:damaged c:pending", "b"
	switch column {
	case "message_id":
		want, id = "a:pending other:damaged c:pending", "other"
	case "headers", "payload": // noticed when the content is read, if there is any
		if value != contentGone {
			want = "a:pending b:pending c:pending"
		}
	case "partition": // the row has no ID in this partition
		want, id = "a:pending c:pending 1 rows are missing: the partition counts 3, and has 2 that are sound and 0 that are damaged", ""
	}
	report, err := s.check()
	if err != nil || report.Sound() || len(report.Damaged) != 1 || report.Partitions[0].Pending != 2 {
		return fmt.Errorf("the check finds %+v, %w", report, orNothing(err))
	}
	if d := report.Damaged[0]; id != "" && (d.MessageID != id || d.Order != 2 || d.Reason == "" || d.Partition != s.options.Partition.String()) {
		return fmt.Errorf("the check names %+v", d)
	}
	if err := s.loads(want); err != nil {
		return err
	}
	st, err := s.open()
	if err != nil {
		return err
	}
	defer st.Close()
	var found []store.Row
	take := func(r store.Row) error { found = append(found, r); return nil }
	if err := st.Content(s.ctx, []string{"a", id, "c", "nobody"}, take); err != nil {
		return err
	}
	if id != "" && (len(found) != 3 || found[1].State != store.Damaged || found[1].MessageID != id || found[1].Payload != nil || found[1].Headers != nil || found[1].Reason == "") {
		return fmt.Errorf("its content is given as %+v", found)
	}
	if string(found[0].Payload) != "aaaaa" || found[len(found)-1].MessageID != "c" {
		return fmt.Errorf("the sound rows are given as %+v", found)
	}
	if column == "partition" {
		return nil
	}
	found = nil
	if err := st.Rows(s.ctx, store.Selection{Content: true}, take); err != nil {
		return err
	}
	if len(found) != 3 || found[1].State != store.Damaged || found[1].Partition != s.options.Partition || found[2].State != store.Pending {
		return fmt.Errorf("the rows are shown as %+v", found)
	}
	// A damaged deadline does not get the row deleted, and no change affects it.
	gone, err := st.Expired(s.ctx, time.Unix(2, 0), time.Time{}, 10)
	if err != nil || len(gone) > 0 {
		return fmt.Errorf("expired are %v, %w", gone, orNothing(err))
	}
	err = st.Apply(s.ctx, []store.Operation{{Kind: store.Attempt, Row: store.Row{MessageID: id, Attempts: 3, Group: "g", LastConsumer: "c1"}}})
	if err != nil {
		return err
	}
	if report, err := s.check(); err != nil || len(report.Damaged) != 1 {
		return fmt.Errorf("after an attempt the check finds %+v, %w", report, orNothing(err))
	}
	return nil
}

func damagedMarkers(s *shelf) error {
	for _, history := range []bool{false, true} {
		s := s.anew(fmt.Sprintf("history-%v.db", history))
		s.options.KeepHistory = history
		s.options.Now = func() time.Time { return time.Unix(100, 0) }
		if err := s.filled(5, "a", "b", "c", "d"); err != nil {
			return err
		}
		st, err := s.open()
		if err != nil {
			return err
		}
		var batch []store.Operation
		for i, id := range []string{"a", "b", "c"} {
			batch = append(batch, store.Operation{Kind: store.Delete, Row: store.Row{MessageID: id, KeepUntil: time.Unix(int64(200+i), 0)}})
		}
		if err := errors.Join(st.Apply(s.ctx, batch), st.Close(), s.loads("a:settled b:settled c:settled d:pending"), s.sound()); err != nil {
			return err
		}
		if err := s.alter(`UPDATE custody_row SET business_id='x' WHERE message_id='b'`); err != nil {
			return err
		}
		if err := s.loads("a:settled c:settled d:pending b:damaged"); err != nil {
			return err
		}
		report, err := s.check()
		if err != nil || len(report.Damaged) != 1 || report.Damaged[0].MessageID != "b" || report.Partitions[0].Settled+report.Partitions[0].Processed != 2 {
			return fmt.Errorf("the check finds %+v, %w", report, orNothing(err))
		}
	}
	return nil
}

func missingRows(s *shelf) error {
	if err := errors.Join(s.filled(5, "a", "b", "c"), s.alter(`DELETE FROM custody_row WHERE message_id='b'`)); err != nil {
		return err
	}
	if err := s.loads("a:pending c:pending 1 rows are missing: the partition counts 3, and has 2 that are sound and 0 that are damaged"); err != nil {
		return err
	}
	report, err := s.check()
	if err != nil || report.Sound() || report.Partitions[0].Missing != 1 || report.Partitions[0].Pending != 2 || report.Partitions[0].Bytes != 2*(5+int64(len(`{"a":"b"}`))) {
		return fmt.Errorf("the check finds %+v, %w", report, orNothing(err))
	}
	if err := s.alter(`UPDATE custody_partition SET live=1`); err != nil {
		return err
	}
	return s.loads("a:pending c:pending 1 rows are more than the partition counts (1): rows that were settled may be back")
}

const pageSize = 4096

// overwrite damages the page that contains this text.
func (s *shelf) overwrite(pattern string) error {
	data, err := os.ReadFile(s.path)
	if err != nil {
		return err
	}
	found := regexp.MustCompile("(?s)" + pattern).FindIndex(data)
	if found == nil {
		return fmt.Errorf("%q is not in the file", pattern)
	}
	page := found[0] / pageSize * pageSize
	clear(data[page : page+pageSize])
	return os.WriteFile(s.path, data, 0o600)
}

func unreadablePage(s *shelf) error {
	var all []string
	for i := range 40 {
		all = append(all, fmt.Sprintf("m%02d", i))
	}
	if err := errors.Join(s.filled(170, all...), s.overwrite(`m20.?of-m20orders`)); err != nil {
		return err
	}
	report, err := s.check()
	if err != nil || len(report.Structure) == 0 || len(report.Damaged) == 0 || int(report.Partitions[0].Pending)+len(report.Damaged) != 40 {
		return fmt.Errorf("the check finds %+v, %w", report, orNothing(err))
	}
	st, err := s.open()
	if err != nil {
		return err
	}
	defer st.Close()
	told, err := loaded(s.ctx, st)
	if err != nil {
		return err
	}
	rows := strings.Fields(told)
	slices.Sort(rows)
	damaged := 0
	for i, row := range rows {
		id, state, _ := strings.Cut(row, ":")
		if i >= len(all) || id != all[i] {
			return fmt.Errorf("loaded %s", told)
		}
		if state != "damaged" {
			continue
		}
		if damaged++; !slices.ContainsFunc(report.Damaged, func(d sqlite.DamagedRow) bool { return d.Order == uint64(i+1) && d.Reason != "" }) {
			return fmt.Errorf("the check does not name %s: %+v", id, report.Damaged)
		}
		err := st.Content(s.ctx, []string{id}, func(r store.Row) error {
			if r.MessageID != id || r.State != store.Damaged {
				return fmt.Errorf("its content is given as %+v", r)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return errors.Join(equal("damaged rows", damaged, len(report.Damaged)), equal("rows", len(rows), 40))
}

func damagedIndex(s *shelf) error {
	if err := s.filled(5, "a", "b", "c"); err != nil {
		return err
	}
	data, err := os.ReadFile(s.path)
	if err != nil {
		return err
	}
	at := bytes.LastIndex(data, []byte{1, 'b', 2}) // partition, ID, row
	if at < 0 {
		return errors.New("the entry is not in the file")
	}
	data[at+2] = 3
	if err := os.WriteFile(s.path, data, 0o600); err != nil {
		return err
	}
	st, err := s.open()
	if err != nil {
		return err
	}
	defer st.Close()
	err = st.Apply(s.ctx, []store.Operation{{Kind: store.Delete, Row: store.Row{MessageID: "b"}}, {Kind: store.DeadLetter, Row: store.Row{MessageID: "b"}}})
	if err != nil {
		return err
	}
	err = st.Content(s.ctx, []string{"b"}, func(r store.Row) error {
		if r.State != store.Damaged || r.MessageID != "b" || r.Payload != nil {
			return fmt.Errorf("another row is given as b: %+v", r)
		}
		return nil
	})
	if err != nil {
		return err
	}
	told, err := loaded(s.ctx, st)
	if err != nil {
		return err
	}
	report, err := s.check()
	if err == nil && len(report.Structure) == 0 {
		err = fmt.Errorf("the check finds %+v", report)
	}
	return errors.Join(err, equal("loaded", told, "a:pending b:pending c:pending"))
}

// copied copies the store's files with these suffixes to another path.
func (s *shelf) copied(name string, endings ...string) (*shelf, error) {
	lock, err := s.lock()
	if err != nil {
		return nil, err
	}
	other := s.anew(name)
	for _, ending := range append(endings, strings.TrimPrefix(lock, s.path)) {
		data, err := os.ReadFile(s.path + ending)
		if err == nil {
			err = os.WriteFile(other.path+ending, data, 0o600)
		}
		if err != nil {
			return nil, err
		}
	}
	return other, nil
}

func lostLog(s *shelf) error {
	if err := s.filled(5, "a"); err != nil {
		return err
	}
	st, err := s.open()
	if err != nil {
		return err
	}
	defer st.Close()
	for _, id := range []string{"b", "c"} {
		if err := st.Apply(s.ctx, []store.Operation{inserting(id, 5)}); err != nil {
			return err
		}
	}
	whole, err := s.copied("whole.db", "", "-wal")
	if err != nil {
		return err
	}
	if err := errors.Join(whole.sound(), whole.loads("a:pending b:pending c:pending")); err != nil {
		return err
	}
	other, err := s.copied("without.db", "")
	if err != nil {
		return err
	}
	report, err := other.check()
	if err != nil || report.Sound() || len(report.Partitions) != 1 || report.Partitions[0].Lost != 3 { // reopening is a transaction too
		return fmt.Errorf("the check finds %+v, %w", report, orNothing(err))
	}
	const lost = "3 transactions are missing: the database is older than what this broker last wrote; its log was deleted or damaged, or an older copy was put in its place"
	if err := errors.Join(other.loads("a:pending "+lost), other.loads("a:pending")); err != nil { // reported once
		return err
	}
	if report, err = other.check(); err != nil || report.Partitions[0].Lost != 3 { // and recorded
		return fmt.Errorf("later the check finds %+v, %w", report, orNothing(err))
	}
	return nil
}

func movedFiles(s *shelf) error {
	for name, move := range map[string]func(path string) error{
		"database deleted": os.Remove,
		"log deleted":      func(path string) error { return os.Remove(path + "-wal") },
		"index deleted":    func(path string) error { return os.Remove(path + "-shm") },
		"database renamed": func(path string) error { return os.Rename(path, path+".old") },
		"database replaced": func(path string) error {
			return errors.Join(os.WriteFile(path+".new", []byte("x"), 0o600), os.Rename(path+".new", path))
		},
	} {
		s := s.anew(name + ".db")
		st, err := s.open()
		if err != nil {
			return err
		}
		err = errors.Join(st.Apply(s.ctx, []store.Operation{inserting("a", 1)}), move(s.path))
		for i := range 2 {
			err = errors.Join(err, proven(st.Apply(s.ctx, []store.Operation{inserting(fmt.Sprint(i), 1)}), store.ErrMoved))
			_, expired := st.Expired(s.ctx, time.Unix(2, 0), time.Time{}, 1)
			err = errors.Join(err, proven(expired, store.ErrMoved))
		}
		_ = st.Close() // errors about missing files do not matter
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func privateFiles(s *shelf) error {
	st, err := s.open()
	if err != nil {
		return err
	}
	defer st.Close()
	lock, err := s.lock()
	if err != nil {
		return err
	}
	for _, file := range []string{s.path, s.path + "-wal", s.path + "-shm", lock} {
		info, err := os.Stat(file)
		if err != nil || info.Mode().Perm() != 0o600 {
			return fmt.Errorf("%s is for others too: %w", filepath.Base(file), orNothing(err))
		}
	}
	return nil
}

func foreignFiles(s *shelf) error {
	for name, one := range map[string]struct {
		make func(*shelf) error
		says []string
	}{
		"another's database": {func(s *shelf) error { return s.create(`CREATE TABLE theirs (a)`) }, []string{"is not a broker's store"}},
		"no database": {func(s *shelf) error {
			return os.WriteFile(s.path, bytes.Repeat([]byte("no database at all "), 300), 0o600)
		}, []string{"not a database"}},
		"a newer version": {made(`PRAGMA user_version=3`), []string{"schema version 3 is newer than this build's 2"}},
		"an older number": {made(`PRAGMA user_version=1`), []string{"is not as schema version 1 has it"}},
		"no version":      {made(`PRAGMA user_version=0`), []string{"schema version 0 is older than any"}},
		"a table gone":    {made(`DROP TABLE custody_row`), []string{"custody_row is missing: the file was tampered with"}},
		"an index gone":   {made(`DROP INDEX custody_deadline`), []string{"custody_deadline is missing"}},
		"a table altered": {made(`ALTER TABLE custody_row ADD COLUMN more TEXT`), []string{"custody_row is not as schema version 2 has it"}},
	} {
		s := s.anew(name + ".db")
		if err := one.make(s); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		before, err := os.ReadFile(s.path)
		if err != nil {
			return err
		}
		_, err = s.open()
		if err := says(err, one.says...); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		report, err := s.check()
		if err == nil && report.Sound() {
			return fmt.Errorf("%s: the check finds it sound", name)
		}
		after, err := os.ReadFile(s.path)
		if err != nil || len(after) != len(before) {
			return fmt.Errorf("%s: it was not left as it is: %w", name, orNothing(err))
		}
	}
	for name, path := range map[string]string{"no path": "", "memory": ":memory:", "no folder": filepath.Join(s.folder, "none", "store.db"), "a folder": s.folder} {
		o := s.options
		o.Path = path
		if _, err := sqlite.Open(s.ctx, o); err == nil {
			return fmt.Errorf("%s: it was opened", name)
		}
		if _, err := sqlite.Check(s.ctx, path, func(int64, int64) {}); err == nil {
			return fmt.Errorf("%s: it was checked", name)
		}
	}
	for _, p := range []store.Partition{{}, {Connection: "orders"}, {Identity: "node-a"}} {
		o := s.anew("partitions.db").options
		o.Partition = p
		_, err := sqlite.Open(s.ctx, o)
		if err := says(err, "lacks its connection's name or its identity"); err != nil {
			return fmt.Errorf("partition %v: %w", p, err)
		}
	}
	return nil
}

// create creates a SQLite file.
func (s *shelf) create(statement string) error {
	db, err := sql.Open("sqlite3", "file:"+s.path)
	if err != nil {
		return err
	}
	_, err = db.ExecContext(s.ctx, statement)
	return errors.Join(err, db.Close())
}

// made creates a store and alters it.
func made(statement string) func(*shelf) error {
	return func(s *shelf) error { return errors.Join(s.filled(1, "a"), s.alter(statement)) }
}

func reserve(s *shelf) error {
	if err := s.filled(pageSize, "a", "b"); err != nil {
		return err
	}
	s.options.Reserve = 1 << 60
	st, err := s.open()
	if err != nil {
		return err
	}
	full := st.Apply(s.ctx, []store.Operation{inserting("c", 1)})
	if err := errors.Join(proven(full, store.ErrFull), says(full, "bytes free on the disk", "in the file", fmt.Sprintf("%d kept in reserve, 1 to be written", uint64(1<<60)))); err != nil {
		return err
	}
	err = st.Apply(s.ctx, []store.Operation{{Kind: store.Delete, Row: store.Row{MessageID: "a"}}, {Kind: store.Attempt, Row: store.Row{MessageID: "b", Attempts: 1}}})
	return errors.Join(err, st.Close(), s.loads("b:pending"))
}

func boundedMarkers(s *shelf) error {
	s.options.MaxSettled = 3
	s.options.Now = func() time.Time { return time.Unix(100, 0) }
	ids := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	if err := s.filled(1, ids...); err != nil {
		return err
	}
	settle := func(ids []string) error {
		st, err := s.open()
		if err != nil {
			return err
		}
		var batch []store.Operation
		for _, id := range ids {
			batch = append(batch, store.Operation{Kind: store.Delete, Row: store.Row{MessageID: id, KeepUntil: time.Unix(1000, 0)}})
		}
		return errors.Join(st.Apply(s.ctx, batch), st.Close())
	}
	return errors.Join(
		settle(ids[:5]), s.loads("c:settled d:settled e:settled f:pending g:pending h:pending"),
		settle(ids[5:6]), s.loads("d:settled e:settled f:settled g:pending h:pending"),
		settle(ids[6:]), s.loads("f:settled g:settled h:settled"), s.sound())
}

func refusedVersion(s *shelf) error {
	if err := s.filled(5, "a", "c"); err != nil {
		return err
	}
	row := inserting("b", 5).Row
	row.Version = wire.OldestVersion - 1
	if err := errors.Join(sqlite.Plant(s.ctx, s.path, s.options.Partition, row), s.sound()); err != nil {
		return err
	}
	report, err := s.check()
	if err != nil || report.Partitions[0].Refused != 1 || report.Partitions[0].Pending != 2 {
		return fmt.Errorf("the check finds %+v, %w", report, orNothing(err))
	}
	err = sqlite.Plant(s.ctx, s.path, store.Partition{Connection: "nobody", Identity: "x"}, row)
	if err := says(err, "it is not in this file"); err != nil {
		return err
	}
	return s.loads("a:pending c:pending b:refused-version")
}
