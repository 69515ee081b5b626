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

// The places to which the broker's rows can be swapped, and backed up.
const (
	spareConnection  = "spare"
	backupConnection = "backup"
)

func (in *instance) connections() store.Connections {
	driver, dsn := in.database.connection()
	spareDriver, spareDSN := in.database.spare()
	return store.Connections{First: store.ConnectionList{Title: "run", Entries: []store.Connection{
		{Name: in.config.Name, Driver: driver, DSN: dsn, Flush: in.flush}, {Name: spareConnection, Driver: spareDriver, DSN: spareDSN, Flush: in.flush},
		{Name: backupConnection, Driver: "sqlite", DSN: in.backup}}}}
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
		return open.Open(ctx, lists, name, identified(identity), open.Options{KeepHistory: in.config.History})
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

func identified(identity string) store.IdentitySource {
	return func() (string, error) { return identity, nil }
}

// BackUpStore asks the broker to copy its rows to the backup's file, whatever its own
// store is. There is one file: a later backup replaces an earlier.
func (in *instance) BackUpStore(ctx context.Context, checkpoint string) error {
	if _, err := in.admin(ctx, "backup", backupConnection); err != nil {
		return err
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.backedUp = checkpoint
	return nil
}

// RestoreStore does what custody broker restore --replace does.
func (in *instance) RestoreStore(ctx context.Context, checkpoint string) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.backedUp != checkpoint {
		return fmt.Errorf("zeromq: the backup is that of %q, and not of %q: one is kept, the last", in.backedUp, checkpoint)
	}
	at := func(connection string) (store.Store, error) {
		return open.Open(ctx, in.connections(), connection, identified(in.identity), open.Options{})
	}
	backup, err := at(backupConnection)
	if err != nil {
		return err
	}
	defer backup.Close()
	rows, err := at(in.config.Name)
	if err != nil {
		return err
	}
	defer rows.Close()
	if _, err := handover.Restore(ctx, backup, rows, true); err != nil {
		return fmt.Errorf("zeromq: restore the rows of %v: %w", rows.Partition(), err)
	}
	return errors.Join(rows.Close(), backup.Close())
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
