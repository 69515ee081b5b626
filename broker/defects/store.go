package defects

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/custodymq/custody/broker/store"
)

// edited is a store with some methods replaced. It hides the optional interfaces
// of the store it wraps, unless a defect forwards them.
type edited struct {
	store.Store
	apply   func(context.Context, []store.Operation) error
	load    func(context.Context, int, func(store.Row) error) error
	content func(context.Context, []string, func(store.Row) error) error
	expired func(context.Context, time.Time, int) ([]string, error)
}

func (e edited) Apply(ctx context.Context, batch []store.Operation) error {
	if e.apply != nil {
		return e.apply(ctx, batch)
	}
	return e.Store.Apply(ctx, batch)
}

func (e edited) Load(ctx context.Context, settled int, fn func(store.Row) error) error {
	if e.load != nil {
		return e.load(ctx, settled, fn)
	}
	return e.Store.Load(ctx, settled, fn)
}

func (e edited) Content(ctx context.Context, messageIDs []string, fn func(store.Row) error) error {
	if e.content != nil {
		return e.content(ctx, messageIDs, fn)
	}
	return e.Store.Content(ctx, messageIDs, fn)
}

func (e edited) Expired(ctx context.Context, now time.Time, limit int) ([]string, error) {
	if e.expired != nil {
		return e.expired(ctx, now, limit)
	}
	return e.Store.Expired(ctx, now, limit)
}

// Reestablish forwards to the wrapped store if that is a Certifier.
func (e edited) Reestablish(ctx context.Context) (bool, error) {
	if c, ok := e.Store.(store.Certifier); ok {
		return c.Reestablish(ctx)
	}
	return false, errors.New("defects: the store cannot tell")
}

// writeBehind acknowledges a batch at once, and writes it while the next one
// gathers.
func writeBehind(inner store.Store, o Options) store.Store {
	beside := o.Go
	if beside == nil {
		beside = func(f func()) { go f() }
	}
	previous := make(chan struct{}, 1) // one write at a time, to preserve order
	return edited{Store: inner, apply: func(ctx context.Context, batch []store.Operation) error {
		select {
		case previous <- struct{}{}:
		case <-ctx.Done():
			return &store.Failure{NotWritten: true, Err: ctx.Err()}
		}
		batch = slices.Clone(batch)
		beside(func() {
			defer func() { <-previous }()
			_ = inner.Apply(context.WithoutCancel(ctx), batch) // the answer has already been given
		})
		return nil
	}}
}

func ignoreFailures(inner store.Store, _ Options) store.Store {
	return edited{Store: inner, apply: func(ctx context.Context, batch []store.Operation) error {
		_ = inner.Apply(ctx, batch)
		return nil
	}}
}

// unreadableBacklog fails to load if a message is pending.
func unreadableBacklog(inner store.Store, _ Options) store.Store {
	return edited{Store: inner, load: func(ctx context.Context, settled int, fn func(store.Row) error) error {
		return inner.Load(ctx, settled, func(r store.Row) error {
			if r.State == store.Pending {
				return errors.New("a pending row cannot be read")
			}
			return fn(r)
		})
	}}
}

// editing drops or changes operations in every batch.
func editing(inner store.Store, edit func(store.Operation) (store.Operation, bool)) store.Store {
	return edited{Store: inner, apply: func(ctx context.Context, batch []store.Operation) error {
		kept := make([]store.Operation, 0, len(batch))
		for _, op := range batch {
			if op, keep := edit(op); keep {
				kept = append(kept, op)
			}
		}
		return inner.Apply(ctx, kept)
	}}
}

func keepSettled(inner store.Store, _ Options) store.Store {
	return editing(inner, func(op store.Operation) (store.Operation, bool) {
		return op, op.Kind != store.Settle && op.Kind != store.Delete
	})
}

func loseDeadLetters(inner store.Store, _ Options) store.Store {
	return editing(inner, func(op store.Operation) (store.Operation, bool) {
		if op.Kind == store.DeadLetter {
			op = store.Operation{Kind: store.Delete, Row: store.Row{MessageID: op.Row.MessageID}}
		}
		return op, true
	})
}

func forgetPending(inner store.Store, _ Options) store.Store {
	return edited{Store: inner, load: func(ctx context.Context, settled int, fn func(store.Row) error) error {
		return inner.Load(ctx, settled, func(row store.Row) error {
			if row.State == store.Pending {
				return nil
			}
			return fn(row)
		})
	}}
}

// reloading changes each row, and its content, when it is read again.
func reloading(inner store.Store, change func(*store.Row)) edited {
	changing := func(fn func(store.Row) error) func(store.Row) error {
		return func(row store.Row) error {
			change(&row)
			return fn(row)
		}
	}
	return edited{
		Store: inner,
		load: func(ctx context.Context, settled int, fn func(store.Row) error) error {
			return inner.Load(ctx, settled, changing(fn))
		},
		content: func(ctx context.Context, messageIDs []string, fn func(store.Row) error) error {
			return inner.Content(ctx, messageIDs, changing(fn))
		},
	}
}

func loadWithoutHeaders(inner store.Store, _ Options) store.Store {
	return reloading(inner, func(row *store.Row) { row.Headers = nil })
}

// restartTTL models a broker whose times to live begin anew when it starts: a
// restart extends every deadline by a minute.
func restartTTL(inner store.Store, _ Options) store.Store {
	late := reloading(inner, func(row *store.Row) {
		if !row.ExpiresAt.IsZero() {
			row.ExpiresAt = row.ExpiresAt.Add(time.Minute)
		}
	})
	late.expired = func(ctx context.Context, now time.Time, limit int) ([]string, error) {
		return inner.Expired(ctx, now.Add(-time.Minute), limit)
	}
	return late
}

func forgetLastOfBatch(inner store.Store, _ Options) store.Store {
	return edited{Store: inner, apply: func(ctx context.Context, batch []store.Operation) error {
		inserts := 0
		for _, op := range batch {
			if op.Kind == store.Insert {
				inserts++
			}
		}
		kept := make([]store.Operation, 0, len(batch))
		for _, op := range slices.Backward(batch) {
			if op.Kind == store.Insert && inserts > 1 {
				inserts = 0
				continue
			}
			kept = append(kept, op)
		}
		slices.Reverse(kept)
		return inner.Apply(ctx, kept)
	}}
}

func loadBackwards(inner store.Store, _ Options) store.Store {
	return edited{Store: inner, load: func(ctx context.Context, settled int, fn func(store.Row) error) error {
		var rows []store.Row
		err := inner.Load(ctx, settled, func(row store.Row) error {
			rows = append(rows, row)
			return nil
		})
		for _, row := range slices.Backward(rows) {
			if err == nil {
				err = fn(row)
			}
		}
		return err
	}}
}

// farAhead is the time that a purge which takes too much assumes.
const farAhead = 100 * 365 * 24 * time.Hour

func purgeAll(inner store.Store, _ Options) store.Store {
	return edited{Store: inner, expired: func(ctx context.Context, now time.Time, limit int) ([]string, error) {
		return inner.Expired(ctx, now.Add(farAhead), limit)
	}}
}

func purgeNeighbour(inner store.Store, o Options) store.Store {
	return edited{Store: inner, expired: func(ctx context.Context, now time.Time, limit int) ([]string, error) {
		if _, err := o.Neighbour.Expired(ctx, now, limit); err != nil {
			return nil, err
		}
		return inner.Expired(ctx, now, limit)
	}}
}
