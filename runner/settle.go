package runner

import (
	"context"
	"fmt"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// heal ends every fault, newest first, and joins what runs in the background.
func (b *run) heal(ctx context.Context) error {
	for len(b.injections) > 0 {
		if err := b.healOne(ctx, b.injections[len(b.injections)-1].label); err != nil {
			return fmt.Errorf("runner: heal: %w", err)
		}
	}
	if err := b.settle(ctx, script.Settle{}); err != nil {
		return err
	}
	return b.health(ctx)
}

// pollInterval is how often the stored rows are read while draining.
const pollInterval = 20 * time.Millisecond

// drain ends on positive evidence (the store exactly empty), on recorded quiet
// while the system shows no rows, or at the deadline.
func (b *run) drain(ctx context.Context) error {
	deadline := b.desc.Profile.Limits.DrainDeadline
	bounded, cancel := b.rt.Timeout(ctx, deadline)
	defer cancel()
	reason, err := b.drained(bounded)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err != nil {
		return err
	}
	b.rec.Record(evidence.Event{Kind: evidence.DrainEnded, Actor: "harness", Drain: reason})
	return nil
}

func (b *run) drained(ctx context.Context) (evidence.DrainReason, error) {
	running := false
	for _, c := range b.actors {
		running = running || c.isRunning()
	}
	if !running {
		return evidence.DrainNoConsumer, nil
	}
	inspector, shows := b.instance.(systems.Inspector)
	unreadable := false
	quiet := 2 * b.desc.Profile.Limits.RedeliveryPeriod
	since := b.rt.Now() // then quiet, if there is any, began to count
	for {
		blind := true // quiet is all that there is to go by
		if shows {
			s, err := inspector.Rows(ctx)
			switch {
			case ctx.Err() != nil:
				return evidence.DrainDeadline, nil
			case err != nil: // nothing is settled, and quiet proves nothing
				if !unreadable {
					b.note("the rows cannot be read: %v", err)
				}
				blind, unreadable = false, true
			case s.Trust != evidence.Exact: // this time: the next look may show more
			case unsettled(s) == 0:
				return evidence.DrainSettled, nil
			default:
				blind = false
			}
		}
		if !blind {
			since = b.rt.Now()
		} else if b.rt.Now()-max(since, b.watch.lastMove()) > quiet {
			return evidence.DrainQuiet, nil
		}
		if b.rt.Sleep(ctx, pollInterval) != nil {
			return evidence.DrainDeadline, nil
		}
	}
}

// unsettled counts the rows of the instance's own partition that still wait.
func unsettled(s evidence.Snapshot) int {
	n := 0
	for _, r := range s.Rows {
		if r.State == evidence.RowPending && !r.Expired && r.Partition == s.Partition {
			n++
		}
	}
	return n
}

// watchOn waits one more redelivery period for what must not happen, and reads
// the rows at the end.
func (b *run) watchOn(ctx context.Context) error {
	period := b.desc.Profile.Limits.RedeliveryPeriod
	if err := b.rt.Sleep(ctx, period+period/4); err != nil {
		return err
	}
	b.rec.Record(evidence.Event{Kind: evidence.WatchEnded, Actor: "harness", Reason: period.String()})
	bounded, cancel := b.rt.Timeout(ctx, scaled(stopBound, b.o.Scale))
	defer cancel()
	for _, c := range b.actors {
		if err := c.stop(bounded); err != nil {
			return err
		}
	}
	return b.snapshot(ctx, endOfRun)
}

// endOfRun is the checkpoint of the rows that a run ends with.
const endOfRun = "end"

// snapshot reads the stored rows, the system's and the application's.
func (b *run) snapshot(ctx context.Context, checkpoint string) error {
	ctx, cancel := b.rt.Timeout(ctx, b.bounds.call)
	defer cancel()
	business, err := b.db.Rows(ctx)
	if err != nil {
		return err
	}
	taken := []evidence.Snapshot{business}
	if inspector, ok := b.instance.(systems.Inspector); ok {
		s, err := inspector.Rows(ctx)
		if err != nil {
			b.note("the rows of %s cannot be read at %s: %v", b.desc.System, checkpoint, err)
		} else {
			s.Source = evidence.SourceBroker
			taken = append(taken, s)
		}
	}
	for _, s := range taken {
		s.Checkpoint = checkpoint
		s.At = b.rt.Now()
		s.Seq = b.rec.Record(evidence.Event{Kind: evidence.SnapshotTaken, Actor: s.Source, At: s.At, Checkpoint: checkpoint})
		if err := b.rec.WriteSnapshot(s); err != nil {
			return err
		}
		b.watch.snapshot(s)
	}
	return nil
}
