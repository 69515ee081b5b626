// Package memory stores rows in memory. They are lost when the process ends.
package memory

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/custodymq/custody/broker/store"
)

// Store is a store.Store in memory.
type Store struct {
	partition store.Partition
	options   Options

	mu     sync.Mutex
	closed bool
	absent bool   // the last write changed nothing
	order  uint64 // the last one assigned
	rows   map[string]*store.Row
	marked []string // message IDs in the order in which they became markers; some are gone already
	marks  int      // number of markers in rows
}

var (
	_ store.Store     = (*Store)(nil)
	_ store.Certifier = (*Store)(nil)
	_ store.Durable   = (*Store)(nil)
)

// Options of a Store. The zero value is ready to use.
type Options struct {
	KeepHistory bool             // Delete marks the row processed instead
	MaxSettled  int              // maximum number of settled IDs; the oldest are swept first; 0 selects 1,048,576
	Now         func() time.Time // clock by which Load decides whether a marker is in its window; nil selects time.Now
}

// New returns an empty store.
func New(partition store.Partition, options Options) *Store {
	if options.MaxSettled <= 0 {
		options.MaxSettled = 1 << 20
	}
	if options.Now == nil {
		options.Now = time.Now
	}
	return &Store{partition: partition, options: options, absent: true, rows: map[string]*store.Row{}}
}

// Flush reports that nothing survives the process.
func (s *Store) Flush() store.Flush { return store.FlushNever }

func (s *Store) Partition() store.Partition { return s.partition }

// Apply rolls the batch back if an insert fails.
func (s *Store) Apply(ctx context.Context, batch []store.Operation) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.absent = true
	if err := store.Check(batch); err != nil {
		return err
	}
	if err := s.usable(ctx); err != nil {
		return &store.Failure{NotWritten: true, Err: err}
	}
	undo := make([]func(), 0, len(batch))
	for _, op := range batch {
		id := op.Row.MessageID
		before, existed := s.rows[id]
		if existed && op.Kind == store.Insert {
			for _, back := range slices.Backward(undo) {
				back()
			}
			return &store.Failure{NotWritten: true, Err: &store.ExistsError{MessageID: id}}
		}
		after := op.Change(before, s.options.KeepHistory)
		if after == before {
			continue
		}
		if op.Kind == store.Insert {
			s.order++
			after.Order, after.Partition = s.order, s.partition
		}
		s.put(id, after)
		undo = append(undo, func() { s.put(id, before) })
	}
	s.absent = false
	s.sweepSurplus()
	return nil
}

func (s *Store) put(id string, row *store.Row) {
	if isMarker(s.rows[id]) {
		s.marks--
	}
	if row == nil {
		delete(s.rows, id)
		return
	}
	if isMarker(row) {
		s.marks++
		s.marked = append(s.marked, id)
	}
	s.rows[id] = row
}

func isMarker(row *store.Row) bool { return row != nil && row.State == store.SettledMarker }

// sweepSurplus deletes the oldest markers above the limit, and drops entries of
// marked that are gone.
func (s *Store) sweepSurplus() {
	for len(s.marked) > 0 && (s.marks > s.options.MaxSettled || !isMarker(s.rows[s.marked[0]])) {
		if isMarker(s.rows[s.marked[0]]) {
			s.put(s.marked[0], nil)
		}
		s.marked = s.marked[1:]
	}
}

func (s *Store) Load(ctx context.Context, settled int, fn func(store.Row) error) error {
	rows, err := s.read(ctx)
	if err != nil {
		return err
	}
	now := s.options.Now()
	var finished, others []*store.Row
	for _, row := range rows {
		switch row.State {
		case store.Processed, store.SettledMarker:
			if row.KeepUntil.After(now) {
				finished = append(finished, row)
			}
		default:
			others = append(others, row)
		}
	}
	slices.SortStableFunc(finished, func(a, b *store.Row) int { return a.KeepUntil.Compare(b.KeepUntil) })
	finished = finished[max(0, len(finished)-settled):]
	err = each(ctx, finished, false, func(row store.Row) error { return fn(row.Marker(row.KeepUntil)) })
	if err != nil {
		return err
	}
	return each(ctx, others, false, fn)
}

func (s *Store) Content(ctx context.Context, messageIDs []string, fn func(store.Row) error) error {
	s.mu.Lock()
	err := s.usable(ctx)
	var rows []*store.Row
	for _, id := range messageIDs {
		if row := s.rows[id]; row != nil && (row.State == store.Pending || row.State == store.Dead) {
			rows = append(rows, row)
		}
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return each(ctx, rows, true, fn)
}

func (s *Store) Rows(ctx context.Context, selection store.Selection, fn func(store.Row) error) error {
	rows, err := s.read(ctx)
	if err != nil {
		return err
	}
	rows = slices.DeleteFunc(rows, func(row *store.Row) bool { return !selection.Takes(shown(row)) })
	if selection.Limit > 0 {
		rows = rows[:min(selection.Limit, len(rows))]
	}
	return each(ctx, rows, selection.Content, fn)
}

// read returns all rows in order. They are never changed: a change makes another row.
func (s *Store) read(ctx context.Context) ([]*store.Row, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	rows := slices.Collect(maps.Values(s.rows))
	slices.SortFunc(rows, func(a, b *store.Row) int { return cmp.Compare(a.Order, b.Order) })
	return rows, nil
}

// shown returns the row as readers see it.
func shown(row *store.Row) store.Row {
	r := *row
	r.Size = len(r.Payload)
	for name, value := range r.Headers {
		r.Size += len(name) + len(value)
	}
	return store.Refuse(r)
}

func each(ctx context.Context, rows []*store.Row, content bool, fn func(store.Row) error) error {
	for _, row := range rows {
		if err := ctx.Err(); err != nil {
			return err
		}
		row := shown(row)
		if content {
			row.Headers, row.Payload = maps.Clone(row.Headers), slices.Clone(row.Payload)
		} else {
			row.Headers, row.Payload = nil, nil
		}
		if err := fn(row); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) Expired(ctx context.Context, now, keepUntil time.Time, limit int) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.absent = true
	if err := s.usable(ctx); err != nil {
		return nil, &store.Failure{NotWritten: true, Err: err}
	}
	var due []*store.Row
	for id, row := range s.rows {
		switch {
		case row.State == store.SettledMarker && !row.KeepUntil.After(now):
			s.put(id, nil)
		case row.State == store.Pending && store.Readable(row.Version) && !row.ExpiresAt.IsZero() && !row.ExpiresAt.After(now):
			due = append(due, row)
		}
	}
	slices.SortFunc(due, func(a, b *store.Row) int {
		return cmp.Or(a.ExpiresAt.Compare(b.ExpiresAt), cmp.Compare(a.Order, b.Order))
	})
	due = due[:max(0, min(limit, len(due)))]
	ids := make([]string, len(due))
	for i, row := range due {
		ids[i] = row.MessageID
		end := store.Expiry(row.MessageID, keepUntil)
		s.put(row.MessageID, end.Change(row, s.options.KeepHistory))
	}
	s.absent = false
	s.sweepSurplus()
	return ids, nil
}

// Reestablish has nothing to find out: a write to memory is never uncertain.
func (s *Store) Reestablish(ctx context.Context) (absent bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return false, err
	}
	return s.absent, nil
}

func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}

func (s *Store) usable(ctx context.Context) error {
	if s.closed {
		return fmt.Errorf("memory store of %v: %w", s.partition, store.ErrClosed)
	}
	return ctx.Err()
}
