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

// mark is a checkpoint that a later step comes back to.
type mark struct {
	at        time.Time
	positions map[string]string // of the system's log, by destination
}

// checkpoint reads the stored rows, and keeps what a later step needs of this
// moment. Where the log ends is asked first, so that nothing that is missing in
// the backup can lie before it.
func (b *run) checkpoint(ctx context.Context, name string) error {
	bounded, cancel := b.rt.Timeout(ctx, b.bounds.call)
	defer cancel()
	m := mark{at: b.rt.Wall(), positions: map[string]string{}}
	backup := false
	destinations := map[string]string{} // by consumer, who may be declared later
	for _, step := range b.o.Scenario.Steps {
		switch s := bare(step).(type) {
		case script.Consumer:
			destinations[s.Name] = s.Destination
		case script.Restore:
			backup = backup || s.Checkpoint == name
		case script.Rewind:
			if s.Checkpoint != name || s.By != script.ByPosition {
				continue
			}
			destination := destinations[s.Consumer]
			position, err := b.instance.(systems.Rewinder).Position(bounded, destination)
			if err != nil {
				return err
			}
			m.positions[destination] = position
		}
	}
	b.marks[name] = m
	if backup {
		if err := b.db.Backup(bounded, b.backupOf(name)); err != nil {
			return err
		}
	}
	return b.snapshot(ctx, name)
}

func (b *run) backupOf(checkpoint string) string {
	return filepath.Join(b.work, fmt.Sprintf("backup-%x.db", checkpoint)) // a checkpoint's name may hold a slash
}

// restore puts the business database back to a checkpoint.
func (b *run) restore(ctx context.Context, s script.Restore) error {
	bounded, cancel := b.rt.Timeout(ctx, b.bounds.call)
	defer cancel()
	b.rec.Record(evidence.Event{Kind: evidence.Commanded, Actor: evidence.SourceBusiness, Command: evidence.CommandRestore, Checkpoint: s.Checkpoint})
	return b.db.Restore(bounded, b.backupOf(s.Checkpoint))
}

// rewind puts a consumer's logical subscriber back to a checkpoint.
func (b *run) rewind(ctx context.Context, s script.Rewind) error {
	bounded, cancel := b.rt.Timeout(ctx, scaled(stopBound, b.o.Scale))
	defer cancel()
	c := b.consumers[s.Consumer]
	if c.isRunning() {
		return fmt.Errorf("runner: a subscriber that is connected cannot be put back: write \"stop %s\" above", s.Consumer)
	}
	m := b.marks[s.Checkpoint]
	to := systems.Point{Time: m.at}
	if s.By == script.ByPosition {
		to = systems.Point{Position: m.positions[c.spec.Destination]}
	}
	b.rec.Record(evidence.Event{Kind: evidence.Commanded, Actor: faults.Broker, Destination: c.spec.Destination, Subscription: subscription(c.spec),
		Command: evidence.CommandRewind, Checkpoint: s.Checkpoint, Reason: "by " + s.By})
	return b.instance.(systems.Rewinder).Rewind(bounded, c.spec.Destination, subscription(c.spec), to)
}
