package zeromq

import (
	"context"
	"errors"
	"fmt"

	"github.com/custodymq/custody/broker/client"
	"github.com/custodymq/custody/broker/defects"
	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/handover"
	"github.com/custodymq/custody/broker/store/open"
	"github.com/custodymq/custody/systems"
)

// spareConnection names the place to which the broker's rows can be swapped.
const spareConnection = "spare"

func (in *instance) connections() store.Connections {
	driver, dsn := in.database.connection()
	spareDriver, spareDSN := in.database.spare()
	return store.Connections{First: store.ConnectionList{Title: "run", Entries: []store.Connection{
		{Name: in.config.Name, Driver: driver, DSN: dsn, Flush: in.flush}, {Name: spareConnection, Driver: spareDriver, DSN: spareDSN, Flush: in.flush}}}}
}

// SwapStore asks the broker to move to the spare place, or back.
func (in *instance) SwapStore(ctx context.Context) error {
	in.mu.Lock()
	target, swapped := spareConnection, in.swapped
	if swapped {
		target = in.config.Name
	}
	in.mu.Unlock()
	_, err := in.admin(ctx, "swap", target)
	if errors.Is(err, client.ErrDisconnected) {
		err = fmt.Errorf("%w: %w", systems.ErrDisconnected, err)
	}
	if err != nil {
		return err
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.swapped = !swapped
	return nil
}

// MigrateIdentity does what custody broker migrate does, with the broker's defect.
func (in *instance) MigrateIdentity(ctx context.Context, from, to string) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	lists, name := in.connections(), in.config.Name
	at := func(identity string) (store.Store, error) {
		return open.Open(ctx, lists, name, func() (string, error) { return identity, nil }, open.Options{KeepHistory: in.config.History})
	}
	source, err := at(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := at(to)
	if err != nil {
		return err
	}
	defer target.Close()
	moved := source
	if d, err := defects.Find(in.config.Defect); err == nil && d.Store != nil && !d.NeedsNeighbour {
		moved = d.Store(source, defects.Options{})
	}
	if _, err := handover.Migrate(ctx, moved, target); err != nil {
		return fmt.Errorf("zeromq: migrate the rows of %v: %w", source.Partition(), err)
	}
	own := target.Partition().String()
	in.taken[own] = append(in.taken[own], source.Partition().String())
	return errors.Join(source.Close(), target.Close())
}

// inCharge reads the rows of every partition that is in charge of its own. What was
// swapped out is a copy, and what is in the spare place is the broker's all the
// same.
func inCharge(ctx context.Context, all func(context.Context, func(store.Row) error) error) (rows []store.Row, err error) {
	marks := map[store.Partition]handover.Mark{}
	err = all(ctx, func(r store.Row) error {
		if !handover.IsMark(r) {
			rows = append(rows, r)
			return nil
		}
		m, err := handover.MarkOf(r)
		marks[r.Partition] = m
		return err
	})
	kept := rows[:0]
	for _, r := range rows {
		if !handover.InCharge(r.Partition, marks) {
			continue
		}
		if r.Partition.Connection == spareConnection {
			for p, m := range marks {
				if m.To == r.Partition {
					r.Partition = p
				}
			}
		}
		kept = append(kept, r)
	}
	return kept, err
}
