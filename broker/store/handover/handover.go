// Package handover moves the rows of one partition to another, in the same store
// or in another of whatever backend. At any moment exactly one of the two is in charge, and a
// start can tell which.
//
// A store that is not in charge says so in a mark. The mark is a row of the
// partition itself, so that it is written, certified, checksummed and backed up
// like any other, and no backend has to know of it. These are the steps, each one
// commit, and who is in charge after it:
//
//  1. the target is marked as a copy that is not complete     the source
//  2. the rows are copied, in order of insertion, in batches  the source
//  3. the target is marked as complete                        the source
//  4. the source is marked as handed over                     the target
//  5. the target's mark is removed                            the target
//
// The fourth is the one that decides. Nothing is written to the source between 2
// and 4: the caller sees to that.
package handover

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/wire"
)

// Mark of a store that is not in charge. Both To and From are set in one that was
// handed over and is being copied back to.
type Mark struct {
	To       store.Partition `json:"to,omitzero"`        // that the rows were handed over to
	From     store.Partition `json:"from,omitzero"`      // that they are being copied from
	Complete bool            `json:"complete,omitempty"` // all of them are here
	At       time.Time       `json:"at,omitzero"`        // of a complete copy: nothing later is in it
	Swap     string          `json:"swap"`               // the hand-over that wrote it
}

// String says what it means, to whoever comes across the row.
func (m Mark) String() string {
	switch {
	case m.From != nowhere && m.Complete:
		return fmt.Sprintf("a complete copy of %v, which has not been put in charge", m.From)
	case m.From != nowhere:
		return fmt.Sprintf("an incomplete copy of %v", m.From)
	}
	return fmt.Sprintf("handed over to %v", m.To)
}

var nowhere store.Partition

// markID is longer than a message ID on the wire, so that no publisher can choose
// it.
var markID = "custody/handover/" + strings.Repeat("-", wire.MaxID)

// IsMark says whether a row is a mark.
func IsMark(r store.Row) bool { return r.MessageID == markID }

// Read gives the mark of a store; nil if it is in charge.
func Read(ctx context.Context, s store.Store) (found *Mark, err error) {
	err = s.Rows(ctx, store.Selection{MessageID: markID, Content: true}, func(r store.Row) error {
		if r.State != store.Dead {
			return fmt.Errorf("handover: the mark that says who is in charge of %v is %v: %s", s.Partition(), r.State, r.Reason)
		}
		m, err := MarkOf(r)
		found = &m
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read who is in charge of %v: %w", s.Partition(), err)
	}
	return found, nil
}

// Refusal of a store that is not in charge; nil if it is.
func Refusal(ctx context.Context, s store.Store) error {
	mark, err := Read(ctx, s)
	if err == nil && mark != nil {
		err = &MarkedError{Partition: s.Partition(), Mark: *mark}
	}
	return err
}

// MarkedError is a start on a store that is not in charge.
type MarkedError struct {
	Partition store.Partition
	Mark      Mark
}

func (e *MarkedError) Error() string {
	if e.Mark.To != nowhere {
		return fmt.Sprintf("handover: the rows of %v were handed over to %v: start with that connection and storage identity", e.Partition, e.Mark.To)
	}
	return fmt.Sprintf("handover: %v is %v: start with that connection and storage identity, which tell who is in charge", e.Partition, e.Mark)
}

// set is the mark as a batch. It is a dead letter: no purge takes one, and a build
// that knows no marks shows it with its reason.
func (m Mark) set() []store.Operation {
	text, _ := json.Marshal(m) // strings and a bool do not fail
	return append(clearMark(),
		store.Operation{Kind: store.Insert, Row: store.Row{MessageID: markID, Topic: "custody/handover", Payload: text, Version: wire.Version, InsertedAt: time.Now()}},
		store.Operation{Kind: store.DeadLetter, Row: store.Row{MessageID: markID, Reason: m.String()}})
}

func clearMark() []store.Operation {
	return []store.Operation{{Kind: store.Discard, Row: store.Row{MessageID: markID}}}
}

// Opener opens the store of a connection, by its exact name.
type Opener func(ctx context.Context, connection string) (store.Store, error)

// maxHops bounds how many hand-overs are followed.
const maxHops = 16

// Open opens the store that is in charge of the rows of a connection: its own, or
// the one that they were handed over to, which a broker that comes back after a
// kill must find without anybody's help. No other store is ever tried in place of
// one that does not open.
func Open(ctx context.Context, open Opener, connection string) (store.Store, error) {
	var came *Mark // of the store before
	var before store.Partition
	for at, hops := connection, 0; hops < maxHops; hops++ {
		s, err := open(ctx, at)
		if err != nil {
			if came != nil {
				err = fmt.Errorf("handover: %v was handed over to %v: %w", before, came.To, err)
			}
			return nil, err
		}
		mark, err := Read(ctx, s)
		if err == nil && came != nil && mark != nil && mark.Complete && mark.From == before && mark.Swap == came.Swap {
			if err = write(ctx, s, clearMark()); err == nil { // the last step of a hand-over that was cut short
				mark = nil
			}
		}
		switch {
		case err != nil:
		case mark == nil:
			return s, nil
		case mark.To == nowhere || mark.To.Identity != s.Partition().Identity: // whose identity has changed says so itself
			err = &MarkedError{Partition: s.Partition(), Mark: *mark}
		}
		partition := s.Partition()
		if closing := s.Close(); err != nil || closing != nil {
			return nil, errors.Join(err, closing)
		}
		came, before, at = mark, partition, mark.To.Connection
	}
	return nil, fmt.Errorf("handover: connection %q: more than %d hand-overs, one after another; start with the connection that is in charge", connection, maxHops)
}

// Counts of what was moved.
type Counts struct {
	Pending   int `json:"pending"`
	Dead      int `json:"dead"`
	Processed int `json:"processed"`
	Settled   int `json:"settled"` // IDs
}

// Move is one hand-over.
type Move struct {
	from, to store.Store
	before   Mark // of the target, without what this one adds
	swap     string

	// Step is told of each step before and after it; tests end it there.
	Step func(name string) error
}

// Refused is a hand-over that was not begun: nothing was written.
type Refused struct{ Why string }

func (e *Refused) Error() string { return "handover: " + e.Why }

func refuse(format string, args ...any) error { return &Refused{fmt.Sprintf(format, args...)} }

// Check says whether rows can be handed over, and begins a hand-over. The source
// may be written to meanwhile.
func Check(ctx context.Context, from, to store.Store) (*Move, error) {
	for _, s := range []store.Store{from, to} {
		if d, ok := s.(store.Durable); ok && d.Flush() == store.FlushNever {
			return nil, refuse("the store of %v ends with its process: no start could tell who is in charge", s.Partition())
		}
	}
	mark, err := Read(ctx, to)
	if err != nil {
		return nil, err
	}
	m := &Move{from: from, to: to, swap: rand.Text(), Step: func(string) error { return nil }}
	source, target := from.Partition(), to.Partition()
	switch {
	case source == target:
		return nil, refuse("%v is in charge already", target)
	case mark == nil:
		err := to.Rows(ctx, store.Selection{Limit: 1}, func(store.Row) error {
			return refuse("%v has rows of its own: a hand-over is to a store that is empty, or to the one that these rows came from", target)
		})
		if err != nil {
			return nil, err
		}
	case mark.To != nowhere && mark.To != source, mark.To == nowhere && mark.From != source:
		return nil, refuse("%v is %v, and no place for the rows of %v", target, *mark, source)
	default:
		m.before.To = mark.To
	}
	unsound := 0
	first := ""
	err = from.Load(ctx, 0, func(r store.Row) error {
		if why := whyNot(r); why != "" {
			if unsound++; first == "" {
				first = why
			}
		}
		return nil
	})
	if err == nil && unsound > 0 {
		err = refuse("%d rows of %v cannot be moved, the first because %s: nothing may be left behind without a word", unsound, source, first)
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

// whyNot says why a row cannot be written again as it is.
func whyNot(r store.Row) string {
	switch r.State {
	case store.RefusedVersion:
		return fmt.Sprintf("message %q is of protocol version %d", r.MessageID, r.Version)
	case store.Damaged:
		return fmt.Sprintf("of damage to message %q: %s", r.MessageID, r.Reason)
	}
	return ""
}

// Prepare marks the target as incomplete, and empties it of what an earlier
// hand-over has left there. The source may be written to meanwhile.
func (m *Move) Prepare(ctx context.Context) error {
	m.before.From, m.before.Swap = m.from.Partition(), m.swap
	if err := m.step("mark the target", func() error { return write(ctx, m.to, m.before.set()) }); err != nil {
		return err
	}
	return m.step("empty the target", func() error { return Empty(ctx, m.to) })
}

// ErrDoubt: nobody knows who is in charge before the source is opened again and
// its mark is read. Neither store may be served from.
var ErrDoubt = errors.New("handover: it is in doubt whether the source was marked as handed over: only a restart can tell")

// decideBound is for the commit that decides, and for finding out about it, which
// are not to be cancelled.
const decideBound = 30 * time.Second

// Run copies the rows and hands them over. Nobody writes to the source from its
// beginning. After an error that is not ErrDoubt the source is in charge, as
// before; with ErrDoubt it is not known.
func (m *Move) Run(ctx context.Context) (counts Counts, err error) {
	if counts, err = m.Copy(ctx); err != nil {
		return counts, err
	}
	if err := ctx.Err(); err != nil {
		return counts, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), decideBound)
	defer cancel()
	handed := Mark{To: m.to.Partition(), Swap: m.swap}
	if err := m.step("hand over", func() error { return insist(ctx, m.from, handed.set()) }); err != nil {
		if store.Uncertain(err) {
			err = fmt.Errorf("%w: %w", ErrDoubt, err)
		}
		return counts, err
	}
	// The target is in charge from here on. A mark that stays is removed by the next
	// start, which comes from the source or is told to.
	_ = m.step("put the target in charge", func() error { return write(ctx, m.to, clearMark()) })
	return counts, nil
}

// Copy is the part of Run before the source is handed over: a backup. The target is
// a complete copy, from which no broker starts.
func (m *Move) Copy(ctx context.Context) (counts Counts, err error) {
	complete := m.before
	complete.Complete, complete.At = true, time.Now()
	if err := m.step("copy", func() (err error) { counts, err = m.copy(ctx); return err }); err != nil {
		return counts, err
	}
	return counts, m.step("mark the copy complete", func() error { return write(ctx, m.to, complete.set()) })
}

func (m *Move) step(name string, do func() error) error {
	if err := m.Step("before: " + name); err != nil {
		return &store.Failure{NotWritten: true, Err: err}
	}
	if err := do(); err != nil {
		return fmt.Errorf("handover: %s: %w", name, err)
	}
	return m.Step("after: " + name)
}

// Of one batch.
const (
	batchRows  = 512
	batchBytes = 8 << 20
)

// copy writes each row again as it is. Its order among the others stays, and its
// number in it becomes the target's.
func (m *Move) copy(ctx context.Context) (counts Counts, err error) {
	var batch []store.Operation
	rows, bytes := 0, 0
	flush := func() error {
		if rows == 0 {
			return nil
		}
		err := m.step("copy a batch", func() error { return write(ctx, m.to, batch) })
		batch, rows, bytes = nil, 0, 0 // the store may keep the batch
		return err
	}
	err = m.from.Rows(ctx, store.Selection{Content: true}, func(r store.Row) error {
		if why := whyNot(r); why != "" {
			return refuse("a row of %v cannot be moved because %s", m.from.Partition(), why)
		}
		if IsMark(r) { // left behind when this one was put in charge
			return nil
		}
		batch = append(batch, again(r, &counts)...)
		rows++
		if bytes += r.Size; rows < batchRows && bytes < batchBytes {
			return nil
		}
		return flush()
	})
	if err == nil {
		err = flush()
	}
	return counts, err
}

// again writes a row as it is. What has left the state in which it was inserted
// goes the same way again, by changes that keep to it whatever the target is set
// to: Delete is Settle where history is kept.
func again(r store.Row, counts *Counts) []store.Operation {
	operations := []store.Operation{{Kind: store.Insert, Row: r}}
	then := func(kind store.OperationKind) {
		operations = append(operations, store.Operation{Kind: kind, Row: r})
	}
	switch r.State {
	case store.Pending:
		counts.Pending++
	case store.Dead:
		counts.Dead++
		then(store.DeadLetter)
	case store.Processed:
		counts.Processed++
		then(store.Settle)
	case store.SettledMarker:
		counts.Settled++
		operations[0].Row.Version = wire.Version // nothing is left of what it was the version of
		then(store.DeadLetter)
		then(store.Discard)
	}
	return operations
}

// maxSweeps bounds Empty, beyond what a store can hold: one takes ten thousand
// markers or more.
const maxSweeps = 1000

// afterAll is as late as a time in nanoseconds can be, with room for a backend's
// arithmetic.
var afterAll = time.Date(2262, 1, 1, 0, 0, 0, 0, time.UTC)

// Empty deletes the rows of a store that is not in charge, but for its mark. What
// is kept as history, or cannot be read, it cannot delete, and says so at its end.
func Empty(ctx context.Context, s store.Store) error {
	mark, err := Read(ctx, s)
	if err != nil {
		return err
	}
	if mark == nil {
		return refuse("%v is in charge: it is not emptied", s.Partition())
	}
	var kept []store.Row
	markers := false
	for after, more := uint64(0), true; more; {
		var batch []store.Operation
		more = false
		err := s.Rows(ctx, store.Selection{After: after, Limit: batchRows}, func(r store.Row) error {
			after, more = r.Order, true
			gone := store.Operation{Kind: store.Discard, Row: store.Row{MessageID: r.MessageID}}
			switch {
			case IsMark(r):
			case r.State == store.Pending:
				batch = append(batch, store.Operation{Kind: store.DeadLetter, Row: r}, gone)
			case r.State == store.Dead:
				batch = append(batch, gone)
			case r.State == store.SettledMarker:
				markers = true
			default:
				kept = append(kept[:min(len(kept), 1)], r)
			}
			return nil
		})
		if err == nil && len(batch) > 0 {
			err = write(ctx, s, batch)
		}
		if err != nil {
			return err
		}
	}
	for n := 0; markers; n++ {
		if n == maxSweeps {
			return fmt.Errorf("handover: the IDs of settled rows of %v do not become fewer", s.Partition())
		}
		if _, err := s.Expired(ctx, afterAll, time.Time{}, batchRows); err != nil {
			return err
		}
		markers = false
		err := s.Rows(ctx, store.Selection{State: store.SettledMarker, Limit: 1}, func(store.Row) error { markers = true; return nil })
		if err != nil {
			return err
		}
	}
	if len(kept) > 0 {
		return refuse("%v has rows that cannot be deleted, such as message %q, which is %v", s.Partition(), kept[0].MessageID, kept[0].State)
	}
	return nil
}

// write makes a batch durable, and settles an outcome that is uncertain where the
// store can. What it cannot settle comes as it is.
func write(ctx context.Context, s store.Store, batch []store.Operation) error {
	return store.Certify(ctx, s, s.Apply(ctx, batch))
}

// insist is write, and asks again until ctx ends.
func insist(ctx context.Context, s store.Store, batch []store.Operation) error {
	err := s.Apply(ctx, batch)
	again := time.NewTicker(askAgain)
	defer again.Stop()
	for {
		settled := store.Certify(ctx, s, err)
		if _, can := s.(store.Certifier); !store.Uncertain(settled) || !can {
			return settled
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return settled
		}
	}
}

const askAgain = 100 * time.Millisecond

// InCharge says whether the partition is, by the marks of all; what has none is.
func InCharge(p store.Partition, marks map[store.Partition]Mark) bool {
	mark, marked := marks[p]
	if !marked {
		return true
	}
	source, handed := marks[mark.From]
	return mark.Complete && handed && source.To == p && source.Swap == mark.Swap
}

// MarkOf reads the mark that a row is.
func MarkOf(r store.Row) (m Mark, err error) {
	if err := json.Unmarshal(r.Payload, &m); err != nil {
		return m, fmt.Errorf("handover: the mark that says who is in charge of %v: %w", r.Partition, err)
	}
	return m, nil
}

// Migrate is a whole hand-over while no broker runs on either store, and leaves
// nothing behind in the source but the mark. Run again after it was cut short, it
// does what is left.
func Migrate(ctx context.Context, from, to store.Store) (counts Counts, err error) {
	mark, err := Read(ctx, from)
	if err != nil {
		return counts, err
	}
	if mark == nil || mark.To != to.Partition() {
		m, err := Check(ctx, from, to)
		if err == nil {
			err = m.Prepare(ctx)
		}
		if err == nil {
			counts, err = m.Run(ctx)
		}
		if err != nil {
			return counts, err
		}
	} else if there, err := Read(ctx, to); err != nil || there != nil && there.Swap == mark.Swap {
		if err = errors.Join(err, write(ctx, to, clearMark())); err != nil {
			return counts, err
		}
	}
	err = Empty(ctx, from)
	if kept := (*Refused)(nil); errors.As(err, &kept) { // history, which is a copy
		err = nil
	}
	return counts, err
}
