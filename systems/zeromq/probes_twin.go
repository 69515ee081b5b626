package zeromq

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ncruces/go-sqlite3/vfs"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/faulty"
	"github.com/custodymq/custody/broker/store/memory"
	"github.com/custodymq/custody/broker/store/sqlite"
)

// A store's twin keeps the same rows in memory, where nothing fails. After each
// change both must return the same.

// twins are probes of kind storage that compare the store with its twin. Each
// runs several times with different work, so that no single one takes long.
var twins = slices.Concat(
	compared(6, "work-at-random", "whatever is written, expired, paged and restarted, all that the store gives is what was written", twin{}),
	compared(3, "work-with-history", "the same with settled rows kept as history", twin{history: true}),
	compared(8, "failing-files", "while its files fail, every write is stored or not as the store says, and what is read is right or an error", twin{failing: true}),
	compared(6, "power-cuts", "whatever a power cut leaves of what was not synced, each write that was answered is there, and each of the others whole or not at all",
		twin{failing: true, cuts: true}),
	[]probe{
		shelved("periodic-flush", "flushed from time to time, a commit survives the power after the interval, and a closed store's at once", periodically),
	},
)

const rounds = 12

func compared(times int, name, text string, t twin) (all []probe) {
	for n := range times {
		all = append(all, shelved(fmt.Sprintf("%s-%d", name, n+1), text, func(s *shelf) error { return s.compare(uint64(n), t) }))
	}
	return all
}

type twin struct {
	failing, cuts, history bool

	*shelf
	random *rand.Rand
	files  *faulty.VFS
	real   *sqlite.Store
	model  *memory.Store
	now    time.Time
	keep   time.Duration // of what is finished
	known  []string      // message IDs

	finished int // messages
}

// maxSettled is small, so that old markers must be swept.
const maxSettled = 4

func (s *shelf) compare(seed uint64, t twin) (err error) {
	t.shelf, t.random, t.now = s, rand.New(rand.NewPCG(seed, 0x7477696e)), time.Unix(1000, 0)
	t.keep = 40 * time.Second
	if seed%2 == 1 { // it ends while the work goes on
		t.keep = 3 * time.Second
	}
	t.files = faulty.Over(vfs.Find(s.options.VFS), s.options.VFS+"-files")
	defer t.files.Close()
	s.options.VFS, s.options.MaxSettled, s.options.KeepHistory = t.files.Name(), maxSettled, t.history
	now := func() time.Time { return t.now }
	s.options.Now = now
	t.model = memory.New(s.options.Partition, memory.Options{KeepHistory: s.options.KeepHistory, MaxSettled: maxSettled, Now: now})
	if t.real, err = s.open(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.real.Close()) }()
	for round := range rounds {
		if err := t.round(round); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		if err := s.ctx.Err(); err != nil {
			return err
		}
	}
	if err := t.restart(); err != nil {
		return err
	}
	return errors.Join(t.same(), s.sound())
}

func (t *twin) round(n int) error {
	t.now = t.now.Add(time.Second)
	disarm := func() {}
	if t.failing && t.random.IntN(2) == 0 {
		disarm = t.fail()
	}
	var err error
	switch {
	case t.random.IntN(6) == 0:
		err = t.expire()
	default:
		err = t.write(t.batch(n))
	}
	if err == nil && t.random.IntN(3) == 0 {
		err = t.look()
	}
	disarm()
	switch {
	case err != nil:
		return err
	case t.cuts && t.random.IntN(4) == 0:
		return t.cut()
	case t.random.IntN(10) == 0:
		if err := t.restart(); err != nil {
			return err
		}
	}
	return t.same()
}

// batch draws operations. Some concern rows that do not exist or are in another
// state, and now and then one inserts an existing ID.
func (t *twin) batch(n int) []store.Operation {
	var batch []store.Operation
	for i := range 1 + t.random.IntN(6) {
		op := inserting(fmt.Sprintf("m%d-%d", n, i), t.random.IntN(1500))
		op.Row.InsertedAt = t.now
		op.Row.ExpiresAt = time.Time{}
		switch t.random.IntN(4) {
		case 0:
			op.Row.Headers = nil
		case 1:
			op.Row.Key, op.Row.Payload = "", nil
		case 2: // at their limits, and nothing that may be trimmed or folded
			op.Row.Key, op.Row.Topic, op.Row.BusinessID = long(128), long(255), long(128)
			op.Row.Headers = map[string]string{"A": " v\t", "a": "", "é": "É", long(500): long(500)}
		}
		if t.random.IntN(3) == 0 {
			op.Row.ExpiresAt = t.now.Add(time.Duration(t.random.IntN(30)) * time.Second)
		}
		if len(t.known) > 3 && t.random.IntN(3) > 0 {
			op = t.change(t.known[t.random.IntN(len(t.known))], n)
		}
		if len(t.known) > 2*maxSettled && t.random.IntN(12) == 0 { // many end at once
			for _, id := range t.known[len(t.known)-2*maxSettled:] {
				batch = append(batch, store.Operation{Kind: store.Delete, Row: store.Row{MessageID: id, KeepUntil: t.keepUntil()}})
			}
		}
		if op.Kind == store.Insert {
			t.known = append(t.known, op.Row.MessageID)
		}
		batch = append(batch, op)
	}
	if len(t.known) > 40 {
		t.known = t.known[len(t.known)-40:]
	}
	return batch
}

// keepUntil is later for what is finished later; with history several may be kept
// until the same moment.
func (t *twin) keepUntil() time.Time {
	if t.history {
		return t.now.Add(t.keep)
	}
	t.finished++
	return t.now.Add(t.keep + time.Duration(t.finished))
}

func (t *twin) change(id string, n int) store.Operation {
	row := store.Row{MessageID: id, Attempts: n, Group: fmt.Sprintf("g%d", n%3), LastConsumer: fmt.Sprintf("c%d", n%2), Reason: fmt.Sprintf("reason %d", n)}
	kind := store.Attempt + store.OperationKind(t.random.IntN(int(store.Discard-store.Attempt)+1))
	if t.random.IntN(40) == 0 {
		op := inserting(id, 3)
		return op
	}
	switch kind {
	case store.Settle, store.Delete, store.Discard:
		if kind == store.Settle || t.options.KeepHistory || t.random.IntN(4) > 0 {
			row.KeepUntil = t.keepUntil()
		}
	case store.Redrive:
		if t.random.IntN(2) == 0 {
			row.ExpiresAt = t.now.Add(20 * time.Second)
		}
	}
	return store.Operation{Kind: kind, Row: row}
}

// write applies a batch to the store and, if the store says that it is stored, to
// the twin.
func (t *twin) write(batch []store.Operation) error {
	got := t.real.Apply(t.ctx, batch)
	var exists *store.ExistsError
	if errors.As(got, &exists) || got == nil {
		want := t.model.Apply(t.ctx, batch)
		if fmt.Sprint(existing(got)) != fmt.Sprint(existing(want)) {
			return fmt.Errorf("a batch was answered with %w, where %w is due", orNothing(got), orNothing(want))
		}
		return nil
	}
	return t.settle(got, func() error { return t.model.Apply(t.ctx, batch) })
}

// existing returns the ID that exists already, or "".
func existing(err error) string {
	var exists *store.ExistsError
	var f *store.Failure
	if errors.As(err, &exists) && errors.As(err, &f) && f.NotWritten {
		return exists.MessageID
	}
	return ""
}

func (t *twin) expire() error {
	limit := t.random.IntN(4)
	got, err := t.real.Expired(t.ctx, t.now, time.Time{}, limit)
	if err != nil {
		return t.settle(err, func() error { _, err := t.model.Expired(t.ctx, t.now, time.Time{}, limit); return err })
	}
	want, err := t.model.Expired(t.ctx, t.now, time.Time{}, limit)
	return errors.Join(err, equal("expired", fmt.Sprint(got), fmt.Sprint(want)))
}

// settle determines what became of a failed write, and applies it to the twin if
// it was stored.
func (t *twin) settle(failed error, apply func() error) error {
	var f *store.Failure
	if !t.failing || !errors.As(failed, &f) {
		return fmt.Errorf("a write failed by itself: %w", failed)
	}
	if t.cuts && !f.NotWritten && t.random.IntN(2) == 0 {
		return t.doubtful(apply)
	}
	for range 10 {
		absent, err := t.real.Reestablish(t.ctx)
		switch {
		case err != nil: // the files still fail
			t.files.Disarm()
		case f.NotWritten && !absent:
			return fmt.Errorf("said to be not written, and is: %w", failed)
		case absent:
			return nil
		default:
			return apply()
		}
	}
	return fmt.Errorf("nobody can say what became of it: %w", failed)
}

// doubtful cuts the power while a write is uncertain. Afterwards it must be
// stored entirely or not at all.
func (t *twin) doubtful(apply func() error) error {
	t.files.Disarm()
	if err := t.dark(); err != nil {
		return err
	}
	if t.same() == nil {
		return nil
	}
	return errors.Join(apply(), t.same())
}

// cut cuts the power while nothing is uncertain.
func (t *twin) cut() error { return errors.Join(t.dark(), t.same()) }

func (t *twin) dark() error {
	t.disk.Off()
	_ = t.real.Close() // fails: the power is off
	if err := t.disk.On(t.random, t.path); err != nil {
		return err
	}
	return t.reopen()
}

func (t *twin) restart() error {
	if err := t.real.Close(); err != nil {
		return err
	}
	return t.reopen()
}

// reopen keeps the closed store if opening fails, because it can be closed again.
func (t *twin) reopen() error {
	opened, err := t.open()
	if err == nil {
		t.real = opened
	}
	return err
}

// fail makes the files fail in one way until disarmed.
func (t *twin) fail() (disarm func()) {
	operation := fileOperations[t.random.IntN(len(fileOperations))]
	file := []faulty.File{faulty.WAL, faulty.WAL, faulty.Database}[t.random.IntN(3)]
	nth, lasts, seen := 1+t.random.IntN(5), t.random.IntN(2) == 0, 0
	strikes := func(op faulty.Op) bool {
		if op.Layer != faulty.Files || op.Name != operation || op.File != file {
			return false
		}
		seen++
		return seen == nth || lasts && seen > nth
	}
	var hook faulty.Hook
	switch t.random.IntN(4) {
	case 0:
		hook = faulty.ReplyLost(strikes)
	case 1:
		hook = faulty.Full(strikes)
	case 2:
		hook = failing{strikes, syscall.EIO}
	default:
		hook = faulty.Unreachable(strikes)
	}
	t.files.Arm(hook)
	return t.files.Disarm
}

// failing fails operations before they are performed.
type failing struct {
	strikes func(faulty.Op) bool
	err     error
}

func (f failing) Before(op faulty.Op) error {
	if f.strikes(op) {
		return f.err
	}
	return nil
}

func (f failing) After(_ faulty.Op, err error) error { return err }

// look reads while the files may fail. Whatever it reads must be right, or an
// error.
func (t *twin) look() error {
	for _, read := range t.reads() {
		got, err := read.of(t.real)
		if err != nil {
			if !t.failing {
				return fmt.Errorf("%s: %w", read.name, err)
			}
			continue
		}
		want, err := read.of(t.model)
		if err := errors.Join(err, differ(read.name, got, want)); err != nil {
			return err
		}
	}
	return nil
}

// same compares everything that both return; no faults are armed.
func (t *twin) same() error {
	for _, read := range t.reads() {
		got, err := read.of(t.real)
		if err != nil {
			return fmt.Errorf("%s: %w", read.name, err)
		}
		want, err := read.of(t.model)
		if err := errors.Join(err, differ(read.name, got, want)); err != nil {
			return err
		}
	}
	settled := t.random.IntN(3 * maxSettled)
	loaded := 0
	if err := t.model.Load(t.ctx, settled, func(store.Row) error { loaded++; return nil }); err != nil {
		return err
	}
	counted, err := t.real.Count(t.ctx, settled)
	return errors.Join(err, equal("rows counted", counted, loaded))
}

func differ(what, got, want string) error {
	if got == want {
		return nil
	}
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range max(len(g), len(w)) {
		a, b := "nothing", "nothing"
		if i < len(g) {
			a = g[i]
		}
		if i < len(w) {
			b = w[i]
		}
		if a != b {
			return fmt.Errorf("%s gives %.200s, where %.200s is due", what, cmp.Or(a, "nothing"), cmp.Or(b, "nothing"))
		}
	}
	return nil
}

type reading struct {
	name string
	of   func(store.Store) (string, error)
}

// reads returns ways to read a store, drawn anew each time.
func (t *twin) reads() []reading {
	settled, limit := t.random.IntN(3*maxSettled), 1+t.random.IntN(4)
	ids := slices.Clone(t.known[max(0, len(t.known)-10):])
	t.random.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	ids = append(ids, "nobody")
	state := store.State(1 + t.random.IntN(int(store.Dead)))
	selection := store.Selection{State: state, MessageID: ids[0], Content: t.random.IntN(2) == 0}
	if t.random.IntN(2) == 0 {
		selection.State = 0
	}
	return []reading{
		{"a load", func(s store.Store) (string, error) {
			return rendered(func(fn func(store.Row) error) error { return s.Load(t.ctx, settled, fn) })
		}},
		{"content", func(s store.Store) (string, error) {
			return rendered(func(fn func(store.Row) error) error { return s.Content(t.ctx, ids, fn) })
		}},
		{"a selection", func(s store.Store) (string, error) {
			return rendered(func(fn func(store.Row) error) error { return s.Rows(t.ctx, selection, fn) })
		}},
		{"a page", func(s store.Store) (string, error) { return t.pages(s, store.Selection{Limit: limit, Content: true}) }},
		{"a page of a state", func(s store.Store) (string, error) {
			return t.pages(s, store.Selection{Limit: limit, State: state})
		}},
	}
}

// pages reads all rows page by page.
func (t *twin) pages(s store.Store, selection store.Selection) (string, error) {
	var all []string
	for range 1000 {
		n := 0
		page, err := rendered(func(fn func(store.Row) error) error {
			return s.Rows(t.ctx, selection, func(r store.Row) error {
				n++
				selection.After = r.Order
				return fn(r)
			})
		})
		if err != nil {
			return "", err
		}
		if n > selection.Limit {
			return "", fmt.Errorf("a page of %d has %d rows", selection.Limit, n)
		}
		if all = append(all, page); n < selection.Limit {
			return strings.Join(all, "|"), nil
		}
	}
	return "", errors.New("the pages do not end")
}

// rendered renders everything of each row but its order, and its size, which
// depends on the backend.
func rendered(read func(func(store.Row) error) error) (string, error) {
	var lines []string
	err := read(func(r store.Row) error {
		headers := slices.Sorted(maps.Keys(r.Headers))
		for i, name := range headers {
			headers[i] = name + "=" + r.Headers[name]
		}
		lines = append(lines, fmt.Sprintf("%s %s %s %q %q %q %q version %d, inserted %d, expires %d, attempts %d by %q, %q, kept %d, %v %v %q", r.Partition,
			r.State, r.MessageID, r.BusinessID, r.Topic, r.Group, r.Key, r.Version, nanoseconds(r.InsertedAt), nanoseconds(r.ExpiresAt), r.Attempts,
			r.LastConsumer, r.Reason, nanoseconds(r.KeepUntil), headers, r.Size > 0, r.Payload))
		return nil
	})
	return strings.Join(lines, "\n"), err
}

func nanoseconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// periodically tests a short and a long flush interval.
func periodically(s *shelf) error {
	s.options.Sync = store.FlushPeriodic
	for _, interval := range []time.Duration{20 * time.Millisecond, time.Hour} {
		s.options.FlushInterval = interval
		for _, closed := range []bool{false, true} {
			if interval == time.Hour && !closed {
				continue
			}
			if err := s.flushed(closed); err != nil {
				return fmt.Errorf("flushed every %v, closed: %v: %w", interval, closed, err)
			}
		}
	}
	return nil
}

// flushed writes a row, waits until it must be on disk, and cuts the power.
func (s *shelf) flushed(closed bool) error {
	st, err := s.open()
	if err != nil {
		return err
	}
	id := fmt.Sprintf("m-%v-%v", s.options.FlushInterval, closed)
	before := s.disk.Syncs()
	if err := errors.Join(st.Apply(s.ctx, []store.Operation{inserting(id, 100)}), equal("flush", st.Flush(), store.FlushPeriodic)); err != nil {
		return err
	}
	if closed {
		err = st.Close()
	} else {
		err = s.until(func() bool { return s.disk.Syncs() > before })
	}
	s.disk.Off()
	_ = st.Close()
	random := rand.New(rand.NewPCG(5, 0))
	if err := errors.Join(err, s.disk.On(random, s.path)); err != nil {
		return err
	}
	if st, err = s.open(); err != nil {
		return err
	}
	found := false
	err = st.Content(s.ctx, []string{id}, func(r store.Row) error { found = r.State == store.Pending; return nil })
	return errors.Join(err, equal("the row is there", found, true), st.Close())
}

// until waits for a condition.
func (s *shelf) until(ready func() bool) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ready() {
		select {
		case <-tick.C:
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
	}
	return nil
}
