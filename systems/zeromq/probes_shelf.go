package zeromq

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ncruces/go-sqlite3/vfs"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/faulty"
	"github.com/custodymq/custody/broker/store/sqlite"
	"github.com/custodymq/custody/tasks"
)

func checkInFull(s *shelf) error {
	const many = 1003 // a thousand damaged rows have names
	var ids []string
	for i := range many {
		ids = append(ids, fmt.Sprintf("m%d", i))
	}
	if err := s.filled(0, ids...); err != nil {
		return err
	}
	for i, identity := range []string{"node-z", "node-b"} {
		other := *s
		other.options.Partition.Identity = identity
		if err := other.filled(3, ids[:i+1]...); err != nil {
			return err
		}
	}
	var heard []int64
	report, err := sqlite.Check(s.ctx, s.path, func(done, all int64) {
		if heard = append(heard, done); all != many+3 {
			heard = append(heard, -1)
		}
	})
	if err != nil || !report.Sound() || slices.Contains(heard, -1) || !slices.IsSorted(heard) || len(heard) == 0 || heard[len(heard)-1] != many+3 {
		return fmt.Errorf("the check finds %+v and is heard of %d times, %w", report, len(heard), orNothing(err))
	}
	var partitions []string
	for _, p := range report.Partitions {
		partitions = append(partitions, fmt.Sprintf("%s %d %v", p.Partition, p.Pending, p.Owner != ""))
	}
	if err := equal("partitions", strings.Join(partitions, ", "), "orders@node-a 1003 true, orders@node-b 2 true, orders@node-z 1 true"); err != nil {
		return err
	}
	if err := s.alter(`UPDATE custody_row SET key='x' WHERE partition=1`); err != nil {
		return err
	}
	left, err := filepath.Glob(s.path + "*")
	if err != nil {
		return err
	}
	if report, err = s.check(); err != nil || report.Sound() {
		return fmt.Errorf("the check finds %+v, %w", report, orNothing(err))
	}
	after, err := filepath.Glob(s.path + "*")
	return errors.Join(err, equal("files", len(after), len(left)), equal("named", len(report.Damaged), 1000), equal("unnamed", report.Unnamed, 3),
		equal("damaged", report.Partitions[0].Damaged, many), equal("elsewhere", report.Partitions[1].Damaged, 0))
}

func checkWhileWritten(s *shelf) error {
	st, err := s.open()
	if err != nil {
		return err
	}
	stop, written := make(chan struct{}), make(chan error, 1)
	tasks.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				written <- nil
				return
			default:
			}
			if err := st.Apply(s.ctx, []store.Operation{inserting(fmt.Sprint(n), 10)}); err != nil {
				written <- err
				return
			}
		}
	})
	for range 10 {
		err = errors.Join(err, s.sound())
	}
	close(stop)
	return errors.Join(err, <-written, st.Close())
}

// flips are probes of kind storage that corrupt copies of a file at random.
var flips = func() (all []probe) {
	for n := range 5 {
		all = append(all, shelved(fmt.Sprintf("bits-flipped-%d", n+1), "whatever bits are flipped, what is given is what was written, and what is not given is told",
			func(s *shelf) error { return bitsFlipped(s, uint64(n)) }))
	}
	return all
}()

func bitsFlipped(s *shelf, seed uint64) error {
	var ids []string
	for i := range 30 {
		ids = append(ids, fmt.Sprintf("m%02d", i))
	}
	if err := s.filled(60, ids...); err != nil {
		return err
	}
	whole, err := os.ReadFile(s.path)
	if err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(seed, 0x666c6970))
	for n := range 8 {
		data := slices.Clone(whole)
		for range 1 + random.IntN(6) {
			data[random.IntN(len(data))] ^= 1 << random.IntN(8)
		}
		copied := s.anew(fmt.Sprintf("flipped-%d.db", n))
		if err := os.WriteFile(copied.path, data, 0o600); err != nil {
			return err
		}
		if err := copied.tells(ids); err != nil {
			return fmt.Errorf("copy %d: %w", n, err)
		}
	}
	return nil
}

// tells returns nil if every row is returned as written or reported as damaged,
// or the file is refused.
func (s *shelf) tells(ids []string) error {
	report, failed := s.check()
	st, err := s.open()
	if err != nil {
		if failed == nil && report.Sound() {
			return fmt.Errorf("refused, and sound to the check: %w", err)
		}
		return nil
	}
	defer st.Close()
	given, told := map[string]bool{}, false
	give := func(r store.Row) error {
		switch want := inserting(r.MessageID, 60).Row; {
		case r.State == store.Damaged:
			told = true
		case r.State != store.Pending || !slices.Contains(ids, r.MessageID) || r.BusinessID != want.BusinessID || r.Topic != want.Topic || r.Key != want.Key:
			return fmt.Errorf("a row that nobody wrote: %+v", r)
		case len(r.Payload) > 0 && string(r.Payload) != string(want.Payload) || len(r.Headers) > 0 && r.Headers["a"] != "b":
			return fmt.Errorf("%s is given with the content %q, %v", r.MessageID, r.Payload, r.Headers)
		default:
			given[r.MessageID] = true
		}
		return nil
	}
	if err := st.Load(s.ctx, 100, give); err != nil {
		if len(given) > len(ids) {
			return err
		}
		return nil // refused while loading
	}
	if len(given) < len(ids) && !told {
		return fmt.Errorf("%d of %d rows are given, and nothing is told", len(given), len(ids))
	}
	err = errors.Join(st.Content(s.ctx, ids, give))
	if told && failed == nil && report.Sound() {
		return errors.New("damaged to the store, and sound to the check")
	}
	if err != nil && !strings.Contains(err.Error(), "sqlite3") {
		return err
	}
	return nil
}

// over opens the store on files that can be made to fail.
func (s *shelf) over() (*sqlite.Store, *faulty.VFS, error) {
	files := faulty.Over(vfs.Find(s.options.VFS), fmt.Sprintf("custody-shelf-files-%d", shelves.Add(1)))
	o := s.options
	o.VFS = files.Name()
	st, err := sqlite.Open(s.ctx, o)
	if err != nil {
		files.Close()
	}
	return st, files, err
}

func cancelled(s *shelf) error {
	st, files, err := s.over()
	if err != nil {
		return err
	}
	defer files.Close()
	defer st.Close()
	over, cancel := context.WithCancel(s.ctx)
	cancel()
	nothing := func(store.Row) error { return nil }
	calls := func(ctx context.Context, reason error) error {
		_, expired := st.Expired(ctx, time.Unix(2, 0), time.Time{}, 1)
		_, certain := st.Reestablish(ctx)
		_, counted := st.Count(ctx, 1)
		err := errors.Join(proven(st.Apply(ctx, []store.Operation{inserting("none", 1)}), reason), proven(expired, reason))
		for _, got := range []error{certain, counted, st.Load(ctx, 1, nothing), st.Content(ctx, []string{"a"}, nothing), st.Rows(ctx, store.Selection{}, nothing)} {
			if !errors.Is(got, reason) {
				err = errors.Join(err, fmt.Errorf("%w, where %w is due", orNothing(got), reason))
			}
		}
		return err
	}
	if err := errors.Join(st.Apply(s.ctx, []store.Operation{inserting("a", 1)}), calls(over, context.Canceled)); err != nil {
		return err
	}

	// While a sync is held.
	hold := faulty.Hold(faulty.OnFile("sync", faulty.WAL), time.Minute)
	defer hold.Release()
	files.Arm(hold)
	left, leave := context.WithCancel(s.ctx)
	result := make(chan error, 1)
	tasks.Go(func() { result <- st.Apply(left, []store.Operation{inserting("b", 1)}) })
	select {
	case <-hold.Fired():
	case <-s.ctx.Done():
		leave()
		return s.ctx.Err()
	}
	leave()
	var f *store.Failure
	if err := <-result; !errors.As(err, &f) || f.NotWritten || !errors.Is(err, context.Canceled) {
		return fmt.Errorf("a write that was left: %w", orNothing(err))
	}
	short, stop := context.WithTimeout(s.ctx, 10*time.Millisecond)
	defer stop()
	if err := proven(st.Apply(short, []store.Operation{inserting("c", 1)}), context.DeadlineExceeded); err != nil {
		return err
	}
	files.Disarm()
	hold.Release()
	absent, err := st.Reestablish(s.ctx)
	if err := errors.Join(err, equal("absent", absent, false)); err != nil {
		return err
	}
	got, err := loaded(s.ctx, st)
	if err := errors.Join(err, equal("loaded", got, "a:pending b:pending")); err != nil {
		return err
	}

	// An error of fn stops the read and is returned.
	enough := errors.New("enough")
	rows := 0
	stopping := func(store.Row) error { rows++; return enough }
	for _, got := range []error{st.Load(s.ctx, 1, stopping), st.Content(s.ctx, []string{"a", "b"}, stopping), st.Rows(s.ctx, store.Selection{}, stopping)} {
		if !errors.Is(got, enough) {
			return fmt.Errorf("a reading that was ended gives %w", orNothing(got))
		}
	}
	return errors.Join(equal("rows", rows, 3), st.Close(), calls(s.ctx, store.ErrClosed))
}

func sideBySide(s *shelf) error {
	st, files, err := s.over()
	if err != nil {
		return err
	}
	defer files.Close()
	defer st.Close()
	if err := st.Apply(s.ctx, []store.Operation{inserting("a", 1), inserting("b", 1)}); err != nil {
		return err
	}
	nothing := func(store.Row) error { return nil }
	// During a long inspection.
	rows := 0
	err = st.Rows(s.ctx, store.Selection{}, func(store.Row) error {
		rows++
		return errors.Join(st.Content(s.ctx, []string{"a"}, nothing), st.Load(s.ctx, 1, nothing), st.Apply(s.ctx, []store.Operation{inserting(fmt.Sprint("c", rows), 1)}))
	})
	if err := errors.Join(err, equal("rows", rows, 2)); err != nil { // a consistent snapshot
		return err
	}
	// While a write is held.
	hold := faulty.Hold(faulty.OnFile("sync", faulty.WAL), time.Minute)
	defer hold.Release()
	files.Arm(hold)
	result := make(chan error, 1)
	tasks.Go(func() { result <- st.Apply(s.ctx, []store.Operation{inserting("d", 1)}) })
	select {
	case <-hold.Fired():
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
	err = errors.Join(st.Content(s.ctx, []string{"a"}, nothing), st.Rows(s.ctx, store.Selection{}, nothing), st.Load(s.ctx, 1, nothing))
	hold.Release()
	return errors.Join(err, <-result)
}

func secondWriter(s *shelf) error {
	st, files, err := s.over()
	if err != nil {
		return err
	}
	defer files.Close()
	defer func() { _ = st.Close() }()
	files.Arm(faulty.FsyncError(faulty.Always))
	err = st.Apply(s.ctx, []store.Operation{inserting("a", 1)})
	files.Disarm()
	var f *store.Failure
	if !errors.As(err, &f) || f.NotWritten {
		return fmt.Errorf("a commit whose sync fails is answered with %w", orNothing(err))
	}
	if err := s.alter(`UPDATE custody_partition SET writer=1, batch=99`); err != nil {
		return err
	}
	if absent, err := st.Reestablish(s.ctx); err == nil || absent {
		return fmt.Errorf("it is said to be absent: %v, %w", absent, orNothing(err))
	}
	return proven(st.Apply(s.ctx, []store.Operation{inserting("b", 1)}), store.ErrFenced)
}
