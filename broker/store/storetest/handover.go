package storetest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/faulty"
	"github.com/custodymq/custody/broker/store/handover"
	"github.com/custodymq/custody/broker/wire"
)

// Two places for rows, and the names of their connections.
const (
	Source = "source"
	Target = "target"
)

// Handover checks that rows are moved from one place to another, whole and in
// order, and that a hand-over which ends at any of its steps leaves one of the two
// in charge. open opens the partition of either name, and of any identity.
func Handover(t *testing.T, open func(ctx context.Context, p store.Partition) (store.Store, error)) {
	runs := 0
	newHandover := func(t *testing.T) *moving {
		runs++
		h := &moving{t: t, places: open, from: Source, to: Target, identity: fmt.Sprint("node-", runs)}
		h.fill()
		return h
	}
	t.Run("nothing is lost, doubled or reordered", func(t *testing.T) {
		h := newHandover(t)
		if err := h.run(nil); err != nil {
			t.Fatal(err)
		}
		h.inCharge(Target)
		if want := (handover.Counts{Pending: pendingRows, Dead: 2, Settled: 2}); h.counts != want {
			t.Errorf("%+v were moved, want %+v", h.counts, want)
		}
	})
	t.Run("and back again", func(t *testing.T) {
		h := newHandover(t)
		if err := h.run(nil); err != nil {
			t.Fatal(err)
		}
		h.from, h.to = Target, Source
		if err := h.run(nil); err != nil {
			t.Fatal(err)
		}
		h.inCharge(Source)
	})
	for _, step := range steps(newHandover(t)) {
		t.Run("ended "+step, func(t *testing.T) {
			h := newHandover(t)
			err := h.run(func(now string) error {
				if now == step {
					return errEnded
				}
				return nil
			})
			want := Source
			if step == "after: hand over" || strings.HasSuffix(step, "put the target in charge") {
				want = Target
			}
			if doubt := errors.Is(err, handover.ErrDoubt); doubt != (step == "after: hand over") {
				t.Errorf("it ended with %v", err)
			}
			h.inCharge(want)
			if want == Source { // and the next one makes it
				if err := h.run(nil); err != nil {
					t.Fatal(err)
				}
				h.inCharge(Target)
			}
		})
	}
	t.Run("a reply is lost", func(t *testing.T) {
		h := newHandover(t)
		h.struck = faulty.ReplyLost(faulty.On("apply"))
		if err := h.run(nil); err != nil {
			t.Fatal(err)
		}
		h.inCharge(Target)
	})
	t.Run("a backup leaves the source in charge, and is restored", func(t *testing.T) { backedUp(newHandover(t)) })
	t.Run("to a place with rows of its own", func(t *testing.T) {
		h := newHandover(t)
		s := h.open(Target, h.identity)
		apply(t, s, insert("its own"))
		shut(t, s)
		var refused *handover.Refused
		if err := h.run(nil); !errors.As(err, &refused) {
			t.Errorf("it ended with %v", err)
		}
		s = h.open(Target, h.identity)
		defer s.Close()
		if got := whole(t, s); len(got) != 1 || got[0].MessageID != "its own" {
			t.Errorf("the rows of the target are %v", got)
		}
	})
}

// backedUp makes a backup that is first cut short, changes the source, and restores
// it, which is first cut short too.
func backedUp(h *moving) {
	t, ctx := h.t, testContext(h.t)
	from, to := h.open(Source, h.identity), h.open(Target, h.identity)
	defer func() { shut(t, to) }()
	defer func() { shut(t, from) }()
	struck := func(s store.Store, n int) store.Store {
		wrapped := faulty.Wrap(s)
		wrapped.Arm(faulty.Unreachable(func(op faulty.Op) bool {
			if op.Named("apply") {
				n--
			}
			return n < 1
		}))
		return wrapped
	}
	refuses := func(s store.Store) {
		t.Helper()
		if handover.Refusal(ctx, s) == nil {
			t.Errorf("a broker would start from %v", s.Partition())
		}
	}
	if _, err := handover.BackUp(ctx, from, struck(to, 3)); err == nil {
		t.Error("a backup was cut short, and nobody was told")
	}
	refuses(to)
	if _, err := handover.Restore(ctx, to, from, true); err == nil {
		t.Error("half a backup was restored")
	}
	counts, err := handover.BackUp(ctx, from, to)
	if want := (handover.Counts{Pending: pendingRows, Dead: 2, Settled: 2}); err != nil || counts != want {
		t.Fatalf("%+v were backed up, want %+v: %v", counts, want, err)
	}
	refuses(to)
	if err := handover.Refusal(ctx, from); err != nil {
		t.Error(err)
	}
	late := row("later")
	late.InsertedAt = time.Now().Add(time.Hour)
	apply(t, from, on(store.Insert, late), insert("later, and settled"), on(store.Delete, store.Row{MessageID: "later, and settled", KeepUntil: farOff}),
		on(store.Delete, store.Row{MessageID: "m-1", Reason: store.EndAcknowledged, KeepUntil: farOff}), on(store.Delete, store.Row{MessageID: "m-2"}))
	var refused *handover.Refused
	if _, err := handover.Restore(ctx, to, from, false); !errors.As(err, &refused) {
		t.Errorf("rows were replaced, and nobody had said so: %v", err)
	}
	if _, err := handover.Restore(ctx, to, struck(from, 4), true); err == nil || errors.As(err, &refused) {
		t.Errorf("a restore was cut short: %v", err)
	}
	refuses(from)
	shut(t, from)
	from = h.open(Source, h.identity)
	if _, err = handover.Restore(ctx, to, from, false); err != nil {
		t.Fatal(err)
	}
	if err := handover.Refusal(ctx, from); err != nil {
		t.Error(err)
	}
	same(t, whole(t, from), h.before)
	// And once more, uncut, it tells what came after the backup.
	apply(t, from, on(store.Insert, late), on(store.Delete, store.Row{MessageID: "m-1", Reason: store.EndAcknowledged, KeepUntil: farOff}))
	told, err := handover.Restore(ctx, to, from, true)
	if err != nil || told.Counts != counts || told.Dropped != 1 || told.Again != 1 || told.Span < 50*time.Minute || told.Of != from.Partition().String() {
		t.Errorf("it tells %+v, %v", told, err)
	}
	same(t, whole(t, from), h.before)
	refuses(to) // the backup is one still
	neighbour := h.open(Source, h.neighbour())
	defer shut(t, neighbour)
	if rows := whole(t, neighbour); len(rows) != 1 {
		t.Errorf("the neighbour has the rows %v", rows)
	}
}

const pendingRows = 700 // more than a batch

var errEnded = errors.New("ended here")

// moving is one source with rows, a target without, and a neighbour of each.
type moving struct {
	t        *testing.T
	places   func(context.Context, store.Partition) (store.Store, error)
	identity string // of its own, that of the neighbour begins with it
	from, to string
	before   []store.Row
	counts   handover.Counts
	struck   faulty.Hook // the source
}

// fill stores the rows that are to be moved, and those that are not.
func (h *moving) fill() {
	t := h.t
	for _, name := range []string{Source, Target} {
		s := h.open(name, h.neighbour())
		apply(t, s, insert("of the neighbour"))
		shut(t, s)
	}
	s := h.open(Source, h.identity)
	defer shut(t, s)
	var batch []store.Operation
	for i := range pendingRows {
		r := row(fmt.Sprintf("m-%d", i))
		r.Attempts, r.LastConsumer, r.Group = i%4, "c1", "g"
		if i%3 == 0 {
			r.ExpiresAt = farOff
		}
		if i%5 == 0 {
			r.Headers = nil
		}
		batch = append(batch, store.Operation{Kind: store.Insert, Row: r})
	}
	for _, id := range []string{"dead-1", "redriven", "dead-2", "settled", "discarded"} {
		batch = append(batch, insert(id))
	}
	for _, id := range []string{"dead-1", "redriven", "dead-2", "discarded"} {
		batch = append(batch, on(store.DeadLetter, store.Row{MessageID: id, Reason: "poison", LastConsumer: "c2"}))
	}
	batch = append(batch,
		on(store.Redrive, store.Row{MessageID: "redriven", ExpiresAt: farOff}),
		on(store.Delete, store.Row{MessageID: "redriven"}),
		on(store.Delete, store.Row{MessageID: "settled", Reason: store.EndAcknowledged, KeepUntil: farOff}),
		on(store.Discard, store.Row{MessageID: "discarded", Reason: store.EndDiscarded, KeepUntil: farOff.Add(time.Hour)}))
	apply(t, s, batch...)
	h.before = whole(t, s)
}

func (h *moving) neighbour() string { return h.identity + "b" }

func (h *moving) open(name, identity string) store.Store {
	h.t.Helper()
	s, err := h.places(testContext(h.t), store.Partition{Connection: name, Identity: identity})
	if err != nil {
		h.t.Fatal(err)
	}
	return s
}

// run is one hand-over. Both stores are closed at its end, as by a kill.
func (h *moving) run(step func(string) error) error {
	ctx := testContext(h.t)
	from, to := h.open(h.from, h.identity), h.open(h.to, h.identity)
	defer shut(h.t, to)
	defer shut(h.t, from)
	if h.struck != nil {
		wrapped := faulty.Wrap(from)
		wrapped.Arm(h.struck)
		from = wrapped
	}
	m, err := handover.Check(ctx, from, to)
	if err != nil {
		return err
	}
	if step != nil {
		m.Step = step
	}
	if err := m.Prepare(ctx); err != nil {
		return err
	}
	h.counts, err = m.Run(ctx)
	return err
}

// steps are those of a whole hand-over, each once.
func steps(h *moving) (names []string) {
	h.t.Helper()
	err := h.run(func(name string) error {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
		return nil
	})
	if err != nil || len(names) < 12 {
		h.t.Fatalf("steps %q, %v", names, err)
	}
	return names
}

// inCharge checks that a start from the source's name comes to the store that is
// in charge, that all rows are in it, and that the other one refuses to serve or
// has none.
func (h *moving) inCharge(name string) {
	h.t.Helper()
	ctx := testContext(h.t)
	s, err := handover.Open(ctx, func(ctx context.Context, connection string) (store.Store, error) {
		return h.places(ctx, store.Partition{Connection: connection, Identity: h.identity})
	}, Source)
	if err != nil {
		h.t.Fatal(err)
	}
	got, in := whole(h.t, s), s.Partition().Connection
	shut(h.t, s)
	if in != name {
		h.t.Errorf("%s is in charge, want %s", in, name)
	}
	same(h.t, got, h.before)
	other := h.open(map[string]string{Source: Target, Target: Source}[in], h.identity)
	defer shut(h.t, other)
	if rows := whole(h.t, other); handover.Refusal(ctx, other) == nil && len(rows) > 0 {
		h.t.Errorf("%v has %d rows, and does not refuse to serve them", other.Partition(), len(rows))
	}
	for _, name := range []string{Source, Target} {
		s := h.open(name, h.neighbour())
		if rows := whole(h.t, s); len(rows) != 1 || rows[0].MessageID != "of the neighbour" {
			h.t.Errorf("the neighbour %v has the rows %v", s.Partition(), rows)
		}
		shut(h.t, s)
	}
}

// whole is all rows but a mark, without what is a store's own.
func whole(t *testing.T, s store.Store) (rows []store.Row) {
	t.Helper()
	err := s.Rows(testContext(t), store.Selection{Content: true}, func(r store.Row) error {
		if handover.IsMark(r) {
			return nil
		}
		r.Order, r.Partition, r.Size = 0, store.Partition{}, 0 // stores write headers each in their way
		r.InsertedAt, r.ExpiresAt, r.KeepUntil = utc(r.InsertedAt), utc(r.ExpiresAt), utc(r.KeepUntil)
		if r.State == store.SettledMarker {
			r.Version = wire.Version
		}
		if len(r.Headers) == 0 {
			r.Headers = nil
		}
		if len(r.Payload) == 0 {
			r.Payload = nil
		}
		rows = append(rows, r)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

func utc(at time.Time) time.Time {
	if at.IsZero() {
		return time.Time{}
	}
	return at.UTC()
}

func same(t *testing.T, got, want []store.Row) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%d rows, want %d", len(got), len(want))
	}
	for i := range min(len(got), len(want)) {
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Fatalf("row %d is\n%+v, want\n%+v", i, got[i], want[i])
		}
	}
}

func shut(t *testing.T, s store.Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
