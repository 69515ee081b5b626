package business

import (
	"context"
	"fmt"
	"slices"

	"github.com/custodymq/custody/evidence"
)

// Store is the business database of a run.
type Store interface {
	// Apply commits the effect of a message: see Database.Apply.
	Apply(ctx context.Context, m Delivery, log bool) (Outcome, error)
	// Record commits a producer's business row: see Database.Record.
	Record(ctx context.Context, producer, businessID string) error
	Backup(ctx context.Context, path string) error
	Restore(ctx context.Context, path string) error
	Rows(ctx context.Context) (evidence.Snapshot, error)
	Close() error
}

var (
	_ Store = (*Database)(nil)
	_ Store = (*Memory)(nil)
)

// Memory is a Store in memory, for runs in virtual time. Not safe for
// concurrent use.
type Memory struct {
	state   tables
	backups map[string]tables
}

type tables struct{ effects, log []evidence.StoredRow }

func NewMemory() *Memory { return &Memory{backups: map[string]tables{}} }

func (d *Memory) Apply(_ context.Context, m Delivery, log bool) (Outcome, error) {
	row := evidence.StoredRow{State: evidence.RowLog, Subscription: m.Subscriber, BusinessID: m.BusinessID, PublishID: m.PublishID, MessageID: m.LogKey}
	if log {
		if slices.ContainsFunc(d.state.log, func(r evidence.StoredRow) bool {
			return r.Subscription == m.Subscriber && r.MessageID == m.LogKey
		}) {
			return Absorbed, nil
		}
		d.state.log = append(d.state.log, row)
	}
	row.State, row.MessageID, row.Digest = evidence.RowEffect, m.MessageID, m.Digest
	d.state.effects = append(d.state.effects, row)
	return Committed, nil
}

// Record has nobody who would read the row.
func (d *Memory) Record(context.Context, string, string) error { return nil }

func (d *Memory) Backup(_ context.Context, path string) error {
	d.backups[path] = tables{slices.Clone(d.state.effects), slices.Clone(d.state.log)}
	return nil
}

func (d *Memory) Restore(_ context.Context, path string) error {
	kept, ok := d.backups[path]
	if !ok {
		return fmt.Errorf("business: restore from %s: no such backup", path)
	}
	d.state = tables{slices.Clone(kept.effects), slices.Clone(kept.log)}
	return nil
}

func (d *Memory) Rows(context.Context) (evidence.Snapshot, error) {
	rows := slices.Concat(d.state.effects, d.state.log)
	return evidence.Snapshot{Source: evidence.SourceBusiness, Trust: evidence.Exact, Rows: rows, Count: len(rows)}, nil
}

func (d *Memory) Close() error { return nil }
