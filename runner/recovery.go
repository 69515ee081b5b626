package runner

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/faults"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// mark is the state at a checkpoint that a later step returns to.
type mark struct {
	at        time.Time
	positions map[string]string // log positions by destination
}

// checkpoint snapshots the stored rows and saves what later steps need. It
// reads the log's end first, so that everything missing from the backup lies
// after it.
func (r *run) checkpoint(ctx context.Context, name string) error {
	bounded, cancel := r.rt.Timeout(ctx, r.bounds.call)
	defer cancel()
	m := mark{at: r.rt.Wall(), positions: map[string]string{}}
	backup, stored := false, false      // of the business database, of the broker's store
	destinations := map[string]string{} // by consumer, which may be declared later
	for _, step := range r.o.Scenario.Steps {
		switch s := bare(step).(type) {
		case script.Consumer:
			destinations[s.Name] = s.Destination
		case script.Restore:
			backup = backup || s.Checkpoint == name && !s.Broker
			stored = stored || s.Checkpoint == name && s.Broker
		case script.Rewind:
			if s.Checkpoint != name || s.By != script.ByPosition {
				continue
			}
			destination := destinations[s.Consumer]
			position, err := part[systems.Rewinder](r).Position(bounded, destination)
			if err != nil {
				return err
			}
			m.positions[destination] = position
		}
	}
	r.marks[name] = m
	if backup {
		if err := r.db.Backup(bounded, r.backupOf(name)); err != nil {
			return err
		}
	}
	if stored {
		r.rec.Record(evidence.Event{Kind: evidence.Commanded, Actor: faults.Broker, Command: evidence.CommandBackUp, Checkpoint: name})
		if err := part[systems.StoreBackup](r).BackUpStore(bounded, name); err != nil {
			return err
		}
	}
	return r.snapshot(ctx, name)
}

func (r *run) backupOf(checkpoint string) string {
	return filepath.Join(r.work, fmt.Sprintf("backup-%x.db", checkpoint)) // a checkpoint's name may contain a slash
}

// restore restores the business database from a checkpoint's backup.
func (r *run) restore(ctx context.Context, s script.Restore) error {
	if s.Broker {
		return r.rollBack(ctx, s)
	}
	bounded, cancel := r.rt.Timeout(ctx, r.bounds.call)
	defer cancel()
	r.rec.Record(evidence.Event{Kind: evidence.Commanded, Actor: evidence.SourceBusiness, Command: evidence.CommandRestore, Checkpoint: s.Checkpoint})
	return r.db.Restore(bounded, r.backupOf(s.Checkpoint))
}

// rollBack restores the store of the broker, which must be down.
func (r *run) rollBack(ctx context.Context, s script.Restore) error {
	bounded, cancel := r.rt.Timeout(ctx, scaled(startBound, r.o.Scale))
	defer cancel()
	e := evidence.Event{Kind: evidence.Commanded, Actor: faults.Broker, Fault: s.Fault().Label, Command: evidence.CommandRestore, Checkpoint: s.Checkpoint}
	r.rec.Record(e)
	if err := part[systems.StoreBackup](r).RestoreStore(bounded, s.Checkpoint); err != nil {
		return err
	}
	r.rec.Record(evidence.Event{Kind: evidence.FaultFired, Actor: faults.Broker, Fault: e.Fault, Struck: e.Command.String()})
	r.rec.Record(evidence.Event{Kind: evidence.FaultHealed, Actor: "harness", Fault: e.Fault})
	return nil
}

// rewind moves a consumer's logical subscriber back to a checkpoint.
func (r *run) rewind(ctx context.Context, s script.Rewind) error {
	bounded, cancel := r.rt.Timeout(ctx, scaled(stopBound, r.o.Scale))
	defer cancel()
	c := r.named[s.Consumer]
	if c.isRunning() {
		return fmt.Errorf("runner: a connected subscriber cannot be rewound: write \"stop %s\" above", s.Consumer)
	}
	m := r.marks[s.Checkpoint]
	to := systems.Point{Time: m.at}
	if s.By == script.ByPosition {
		to = systems.Point{Position: m.positions[c.Consumer.Destination]}
	}
	r.rec.Record(evidence.Event{Kind: evidence.Commanded, Actor: faults.Broker, Destination: c.Consumer.Destination, Subscription: subscription(*c.Consumer),
		Command: evidence.CommandRewind, Checkpoint: s.Checkpoint, Reason: "by " + s.By})
	return part[systems.Rewinder](r).Rewind(bounded, c.Consumer.Destination, subscription(*c.Consumer), to)
}
