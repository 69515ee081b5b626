package defects

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/memory"
	"github.com/custodymq/custody/broker/wire"
)

// edited is a store with some methods replaced. It hides the optional interfaces
// of the store it wraps, unless a defect forwards them.
type edited struct {
	store.Store
	apply   func(context.Context, []store.Operation) error
	load    func(context.Context, int, func(store.Row) error) error
	content func(context.Context, []string, func(store.Row) error) error
	expired func(ctx context.Context, now, keepUntil time.Time, limit int) ([]string, error)
	certify func(context.Context) (bool, error)
	rows    func(context.Context, store.Selection, func(store.Row) error) error
}

func (e edited) Rows(ctx context.Context, selection store.Selection, fn func(store.Row) error) error {
	if e.rows != nil {
		return e.rows(ctx, selection, fn)
	}
	return e.Store.Rows(ctx, selection, fn)
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

func (e edited) Expired(ctx context.Context, now, keepUntil time.Time, limit int) ([]string, error) {
	if e.expired != nil {
		return e.expired(ctx, now, keepUntil, limit)
	}
	return e.Store.Expired(ctx, now, keepUntil, limit)
}

// Reestablish forwards to the wrapped store if that is a Certifier.
func (e edited) Reestablish(ctx context.Context) (bool, error) {
	if e.certify != nil {
		return e.certify(ctx)
	}
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

// forgetEndings takes whatever has ended for acknowledged.
func forgetEndings(inner store.Store, _ Options) store.Store {
	return reloading(inner, func(row *store.Row) {
		if row.State == store.SettledMarker {
			row.Reason = store.EndAcknowledged
		}
	})
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
	late.expired = func(ctx context.Context, now, keepUntil time.Time, limit int) ([]string, error) {
		return inner.Expired(ctx, now.Add(-time.Minute), keepUntil, limit)
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
	return edited{Store: inner, expired: func(ctx context.Context, now, keepUntil time.Time, limit int) ([]string, error) {
		return inner.Expired(ctx, now.Add(farAhead), keepUntil, limit)
	}}
}

func purgeNeighbour(inner store.Store, o Options) store.Store {
	return edited{Store: inner, expired: func(ctx context.Context, now, keepUntil time.Time, limit int) ([]string, error) {
		if _, err := o.Neighbour.Expired(ctx, now, keepUntil, limit); err != nil {
			return nil, err
		}
		return inner.Expired(ctx, now, keepUntil, limit)
	}}
}

// callAbsent reads after a COMMIT without an answer, and finds nothing.
func callAbsent(inner store.Store, _ Options) store.Store {
	return edited{Store: inner, certify: func(context.Context) (bool, error) { return true, nil }}
}

// forgetMarkers leaves nothing of what is settled.
func forgetMarkers(inner store.Store, _ Options) store.Store {
	return editing(inner, func(op store.Operation) (store.Operation, bool) {
		op.Row.KeepUntil = time.Time{}
		return op, true
	})
}

func forgetAttempts(inner store.Store, _ Options) store.Store {
	return editing(inner, func(op store.Operation) (store.Operation, bool) {
		op.Row.Attempts = 0
		return op, op.Kind != store.Attempt
	})
}

// leaveBehind carries the rows over at the start, and of two pending ones leaves
// the first behind.
func leaveBehind(inner store.Store, _ Options) store.Store {
	return edited{Store: inner, load: func(ctx context.Context, settled int, fn func(store.Row) error) error {
		var left []store.Operation
		first := false
		err := inner.Load(ctx, 0, func(row store.Row) error {
			if first = row.State == store.Pending && !first; first {
				left = append(left, store.Operation{Kind: store.Delete, Row: store.Row{MessageID: row.MessageID}})
			}
			return nil
		})
		if err == nil {
			err = inner.Apply(ctx, left)
		}
		if err != nil {
			return err
		}
		return inner.Load(ctx, settled, fn)
	}}
}

// notFlushed is a store in memory that says otherwise, as a Redis without its log
// would if nobody asked it.
type notFlushed struct{ *memory.Store }

func (notFlushed) Flush() store.Flush { return store.FlushEveryCommit }

func keepInMemory(inner store.Store, _ Options) store.Store {
	return notFlushed{memory.New(inner.Partition(), memory.Options{})}
}

// contentBy gives the content of rows that other may have, one by one.
func contentBy(inner store.Store, other func(ctx context.Context, messageID string, fn func(store.Row) error) error) func(context.Context, []string, func(store.Row) error) error {
	return func(ctx context.Context, messageIDs []string, fn func(store.Row) error) error {
		for _, id := range messageIDs {
			found := false
			err := inner.Content(ctx, []string{id}, func(row store.Row) error {
				found = true
				return fn(row)
			})
			if err == nil && !found {
				err = other(ctx, id, fn)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
}

// fallBack finds no rows of its own, and takes those of another partition.
func fallBack(inner store.Store, o Options) store.Store {
	return edited{
		Store: inner,
		load: func(ctx context.Context, settled int, fn func(store.Row) error) error {
			empty := true
			err := inner.Load(ctx, settled, func(row store.Row) error {
				empty = false
				return fn(row)
			})
			if err != nil || !empty {
				return err
			}
			return o.Neighbour.Load(ctx, settled, fn)
		},
		content: contentBy(inner, func(ctx context.Context, id string, fn func(store.Row) error) error {
			return o.Neighbour.Content(ctx, []string{id}, fn)
		}),
	}
}

// asPending gives the selected rows as if they were pending.
func asPending(ctx context.Context, inner store.Store, selection store.Selection, fn func(store.Row) error) error {
	return inner.Rows(ctx, selection, func(row store.Row) error {
		row.State, row.Version = store.Pending, wire.Version
		return fn(row)
	})
}

// reading gives rows of a state as pending at the start, in their order.
func reading(inner store.Store, state store.State) edited {
	return edited{
		Store: inner,
		load: func(ctx context.Context, settled int, fn func(store.Row) error) error {
			again := map[string]bool{}
			var waiting []store.Row
			gather := func(row store.Row) error {
				waiting = append(waiting, row)
				return nil
			}
			err := asPending(ctx, inner, store.Selection{State: state}, func(row store.Row) error {
				again[row.MessageID] = true
				return gather(row)
			})
			if err != nil {
				return err
			}
			err = inner.Load(ctx, settled, func(row store.Row) error {
				switch {
				case again[row.MessageID]:
					return nil
				case row.State == store.SettledMarker:
					return fn(row)
				}
				return gather(row)
			})
			slices.SortFunc(waiting, func(a, b store.Row) int { return cmp.Compare(a.Order, b.Order) })
			for _, row := range waiting {
				if err == nil {
					err = fn(row)
				}
			}
			return err
		},
		content: contentBy(inner, func(ctx context.Context, id string, fn func(store.Row) error) error {
			return asPending(ctx, inner, store.Selection{State: state, MessageID: id, Content: true}, fn)
		}),
	}
}

// replayHistory keeps settled rows, and takes them for pending when it starts.
func replayHistory(inner store.Store, _ Options) store.Store {
	replayed := reading(inner, store.Processed)
	replayed.Store = editing(inner, func(op store.Operation) (store.Operation, bool) {
		if op.Kind == store.Delete {
			op.Kind = store.Settle
		}
		return op, true
	})
	return replayed
}

// misreadVersion takes a payload of any version for one of its own.
func misreadVersion(inner store.Store, _ Options) store.Store {
	return reading(inner, store.RefusedVersion)
}

// forgetting leaves rows behind when they are moved, as many as forgotten says.
func forgetting(inner store.Store, forgotten func(n int, r store.Row) bool) store.Store {
	return edited{Store: inner, rows: func(ctx context.Context, selection store.Selection, fn func(store.Row) error) error {
		n := 0
		return inner.Rows(ctx, selection, func(r store.Row) error {
			if n++; selection.Content && selection.Limit == 0 && forgotten(n, r) {
				return nil
			}
			return fn(r)
		})
	}}
}

func swapForgets(inner store.Store, _ Options) store.Store {
	return forgetting(inner, func(n int, r store.Row) bool { return n%3 == 0 && r.State == store.Pending })
}

func migrationForgets(inner store.Store, _ Options) store.Store {
	return forgetting(inner, func(n int, _ store.Row) bool { return n%2 == 0 })
}
