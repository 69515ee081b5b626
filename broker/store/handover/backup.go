package handover

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/custodymq/custody/broker/store"
)

// BackUp copies the rows of a store that nobody writes to meanwhile to another, of
// whatever backend: one that is empty, or has an earlier backup of the same rows.
// The source stays in charge. No broker starts from a backup, nor from one that was
// cut short: both are marked.
func BackUp(ctx context.Context, from, to store.Store) (counts Counts, err error) {
	m, err := Check(ctx, from, to)
	if err == nil {
		err = m.Prepare(ctx)
	}
	if err != nil {
		return counts, err
	}
	return m.Copy(ctx)
}

// Restored is what Restore did, and what it cost.
type Restored struct {
	Of      string    `json:"of"`     // the partition whose backup it is
	In      string    `json:"in"`     // where its rows are now
	Backup  time.Time `json:"backup"` // when it was made
	Counts            // of what came back
	Dropped int       `json:"dropped"` // messages that waited or were dead, and that the backup lacks: they came later
	Again   int       `json:"again"`   // messages that had ended, and wait again or are dead again
	// Span is from the backup to the insertion of the last message that was dropped.
	Span time.Duration `json:"spanNs"`
	Took time.Duration `json:"tookNs"`
}

// Restore puts the rows of a backup in the place of those that a store has, whose
// broker is stopped. Without replace the store must be empty. What the backup
// lacks is gone then, and what was settled since is there again.
//
// A restore that is cut short leaves a store from which no broker starts; run
// again, it begins anew.
func Restore(ctx context.Context, from, to store.Store, replace bool) (r Restored, err error) {
	begun := time.Now()
	backup, err := Read(ctx, from)
	if err != nil {
		return r, err
	}
	source, target := from.Partition(), to.Partition()
	if backup == nil || !backup.Complete {
		return r, refuse("%v is no complete backup", source)
	}
	r.Of, r.In, r.Backup = backup.From.String(), target.String(), backup.At
	was, err := Read(ctx, to)
	switch {
	case err != nil:
		return r, err
	case source == target:
		return r, refuse("%v is the backup itself", target)
	case was != nil && was.From == nowhere:
		return r, refuse("%v was %v: restore there", target, *was)
	case was != nil && was.Complete && was.From != source:
		return r, refuse("%v is %v", target, *was)
	}
	if err := r.compare(ctx, from, to, replace || was != nil && was.From == source); err != nil {
		return r, err
	}
	m := &Move{from: from, to: to, before: Mark{From: source, Swap: rand.Text()}, Step: func(string) error { return nil }}
	if err := write(ctx, to, m.before.set()); err != nil {
		return r, err
	}
	if err := Empty(ctx, to); err != nil {
		return r, err
	}
	if r.Counts, err = m.copy(ctx); err != nil {
		return r, err
	}
	err = insist(ctx, to, clearMark())
	r.Took = time.Since(begun)
	return r, err
}

// compare tells what the rows of the store have become since the backup. It refuses
// a store of which something would stay, and, unless they are to be replaced, one
// that has rows.
func (r *Restored) compare(ctx context.Context, from, to store.Store, replace bool) error {
	return to.Rows(ctx, store.Selection{}, func(row store.Row) error {
		lives := row.State == store.Pending || row.State == store.Dead
		switch {
		case IsMark(row):
			return nil
		case !replace:
			return refuse("%v has rows, which a restore replaces: say so, or restore to an empty place", to.Partition())
		case !lives && row.State != store.SettledMarker:
			return refuse("message %q in %v is %v, and cannot be deleted: restore to an empty place", row.MessageID, to.Partition(), row.State)
		}
		there, lived := false, false
		err := from.Rows(ctx, store.Selection{MessageID: row.MessageID}, func(before store.Row) error {
			there, lived = true, before.State == store.Pending || before.State == store.Dead
			return nil
		})
		switch {
		case err != nil:
			return fmt.Errorf("handover: look for message %q in the backup: %w", row.MessageID, err)
		case lives && !there:
			r.Dropped++
			r.Span = max(r.Span, row.InsertedAt.Sub(r.Backup))
		case !lives && lived:
			r.Again++
		}
		return nil
	})
}
