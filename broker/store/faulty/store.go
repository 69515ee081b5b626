package faulty

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/custodymq/custody/broker/store"
)

// Store wraps a store. Arm injects a Hook.
type Store struct {
	point
	inner  store.Store
	passed atomic.Bool // the last write reached inner
}

var (
	_ store.Store     = (*Store)(nil)
	_ store.Certifier = (*Store)(nil)
	_ store.Durable   = (*Store)(nil)
)

// Wrap returns a store that behaves like inner until it is armed. Closing it
// closes inner.
func Wrap(inner store.Store) *Store { return &Store{inner: inner} }

func (s *Store) Apply(ctx context.Context, batch []store.Operation) error {
	op := Op{Layer: Contract, Name: "apply"}
	if _, armed := s.armed(); armed {
		op.Items = make([]Item, len(batch))
		for i, o := range batch {
			op.Items[i] = Item{Name: o.Kind.String(), MessageID: o.Row.MessageID, BusinessID: o.Row.BusinessID}
		}
	}
	s.passed.Store(false)
	return s.around(ctx, op, func() error {
		s.passed.Store(true)
		return s.inner.Apply(ctx, batch)
	})
}

func (s *Store) Load(ctx context.Context, settled int, fn func(store.Row) error) error {
	return s.around(ctx, Op{Layer: Contract, Name: "load"}, func() error { return s.inner.Load(ctx, settled, fn) })
}

func (s *Store) Content(ctx context.Context, messageIDs []string, fn func(store.Row) error) error {
	return s.around(ctx, Op{Layer: Contract, Name: "content"}, func() error { return s.inner.Content(ctx, messageIDs, fn) })
}

func (s *Store) Rows(ctx context.Context, selection store.Selection, fn func(store.Row) error) error {
	return s.around(ctx, Op{Layer: Contract, Name: "rows"}, func() error { return s.inner.Rows(ctx, selection, fn) })
}

func (s *Store) Expired(ctx context.Context, now, keepUntil time.Time, limit int) ([]string, error) {
	var ids []string
	s.passed.Store(false)
	err := s.around(ctx, Op{Layer: Contract, Name: "expire"}, func() (err error) {
		s.passed.Store(true)
		ids, err = s.inner.Expired(ctx, now, keepUntil, limit)
		return err
	})
	if err != nil {
		return nil, err
	}
	return ids, nil
}

// Reestablish calls inner's, or fails with errors.ErrUnsupported if inner has
// none. A write that never reached inner is absent, whatever inner reports of the
// one before.
func (s *Store) Reestablish(ctx context.Context) (absent bool, err error) {
	err = s.around(ctx, Op{Layer: Contract, Name: "reestablish"}, func() (err error) {
		certifier, ok := s.inner.(store.Certifier)
		if !ok {
			return fmt.Errorf("store of %v cannot tell what became of a write: %w", s.Partition(), errors.ErrUnsupported)
		}
		absent, err = certifier.Reestablish(ctx)
		absent = absent || !s.passed.Load()
		return err
	})
	return absent && err == nil, err
}

func (s *Store) Flush() store.Flush {
	if d, ok := s.inner.(store.Durable); ok {
		return d.Flush()
	}
	return store.FlushEveryCommit
}

func (s *Store) Partition() store.Partition { return s.inner.Partition() }
func (s *Store) Close() error               { return s.inner.Close() }

// around performs the operation between the hook's two calls. If ctx ends while
// the hook blocks, the call returns at once: before the operation, which is then
// never performed, or after it, so that its result is lost.
func (s *Store) around(ctx context.Context, op Op, do func() error) error {
	hook, armed := s.armed()
	if !armed {
		return do()
	}
	err, heard := await(ctx, func() error { return hook.Before(op) })
	if !heard {
		return op.refused(err)
	}
	if err != nil {
		return err
	}
	err = do()
	err, heard = await(ctx, func() error { return hook.After(op, err) })
	if !heard {
		return op.unanswered(err)
	}
	return err
}

// await returns fn's result, or ctx's error if ctx ends first.
func await(ctx context.Context, fn func() error) (err error, heard bool) {
	if ctx.Done() == nil {
		return fn(), true
	}
	done := make(chan error, 1)
	go func() { done <- fn() }()
	select {
	case err := <-done:
		return err, true
	case <-ctx.Done():
		return context.Cause(ctx), false
	}
}
