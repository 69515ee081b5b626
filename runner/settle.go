package runner

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// heal ends every fault, newest first, and joins background publishes.
func (r *run) heal(ctx context.Context) error {
	for len(r.injections) > 0 {
		if err := r.healOne(ctx, r.injections[len(r.injections)-1].label); err != nil {
			return fmt.Errorf("runner: heal: %w", err)
		}
	}
	if err := r.join(ctx, script.Settle{}); err != nil {
		return err
	}
	return r.health(ctx)
}

// pollInterval is how often the stored rows are read while draining.
const pollInterval = 20 * time.Millisecond

// drain ends on positive evidence (the store is exactly empty), on recorded
// quiet if the system does not expose its rows, or at the deadline.
func (r *run) drain(ctx context.Context) error {
	deadline := r.desc.Profile.Limits.DrainDeadline
	bounded, cancel := r.rt.Timeout(ctx, deadline)
	defer cancel()
	reason, err := r.drained(bounded)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err != nil {
		return err
	}
	r.rec.Record(evidence.Event{Kind: evidence.DrainEnded, Actor: "harness", Drain: reason})
	return nil
}

func (r *run) drained(ctx context.Context) (evidence.DrainReason, error) {
	running := false
	for _, c := range r.actors {
		running = running || c.Consumer != nil && c.isRunning()
	}
	if !running {
		return evidence.DrainNoConsumer, nil
	}
	outboxQuiet := scaled(2*relayLease, r.o.Scale) // a row claimed by a relay that died is free again by then
	inspector, inspectable := systems.As[systems.Inspector](r.instance)
	unreadable := false
	quiet := 2 * r.desc.Profile.Limits.RedeliveryPeriod
	since := r.rt.Now() // start of the quiet period
	for {
		if waiting, err := r.relaying(ctx); err != nil {
			return evidence.DrainDeadline, nil
		} else if waiting && r.rt.Now()-max(since, r.watch.lastProgress()) <= outboxQuiet {
			if r.rt.Sleep(ctx, pollInterval) != nil {
				return evidence.DrainDeadline, nil
			}
			continue
		}
		quietOnly := true // the rows cannot be used
		if inspectable {
			s, err := inspector.Rows(ctx)
			switch {
			case ctx.Err() != nil:
				return evidence.DrainDeadline, nil
			case err != nil: // nothing is settled, and quiet proves nothing
				if !unreadable {
					r.note("the rows cannot be read: %v", err)
				}
				quietOnly, unreadable = false, true
			case s.Trust != evidence.Exact: // inexact this time: the next read may be exact
			case unsettled(s) == 0:
				return evidence.DrainSettled, nil
			default:
				quietOnly = false
			}
		}
		if !quietOnly {
			since = r.rt.Now()
		} else if r.rt.Now()-max(since, r.watch.lastProgress()) > quiet {
			return evidence.DrainQuiet, nil
		}
		if r.rt.Sleep(ctx, pollInterval) != nil {
			return evidence.DrainDeadline, nil
		}
	}
}

// relaying reports whether a running relay has something left to publish.
func (r *run) relaying(ctx context.Context) (bool, error) {
	destinations := map[string]bool{}
	for _, a := range r.actors {
		if a.Relay != nil && a.isRunning() {
			destinations[a.Relay.Destination] = true
		}
	}
	if len(destinations) == 0 {
		return false, nil
	}
	s, err := r.db.Rows(ctx)
	return slices.ContainsFunc(s.Rows, func(row evidence.StoredRow) bool {
		return row.State == evidence.RowUnsent && destinations[row.Destination]
	}), err
}

// unsettled counts the pending rows of the instance's own partition.
func unsettled(s evidence.Snapshot) int {
	n := 0
	for _, r := range s.Rows {
		if r.State == evidence.RowPending && !r.Expired && r.Partition == s.Partition {
			n++
		}
	}
	return n
}

// observeAfterDrain watches one more redelivery period for what must not
// happen, then reads the rows.
func (r *run) observeAfterDrain(ctx context.Context) error {
	period := r.desc.Profile.Limits.RedeliveryPeriod
	if err := r.rt.Sleep(ctx, period+period/4); err != nil {
		return err
	}
	r.rec.Record(evidence.Event{Kind: evidence.WatchEnded, Actor: "harness", Reason: period.String()})
	bounded, cancel := r.rt.Timeout(ctx, scaled(stopBound, r.o.Scale))
	defer cancel()
	for _, c := range r.actors {
		if err := c.stop(bounded); err != nil {
			return err
		}
	}
	return r.snapshot(ctx, endOfRun)
}

// endOfRun is the checkpoint at the end of a run.
const endOfRun = "end"

// snapshot reads the rows of the business database and the system.
func (r *run) snapshot(ctx context.Context, checkpoint string) error {
	ctx, cancel := r.rt.Timeout(ctx, r.bounds.call)
	defer cancel()
	business, err := r.db.Rows(ctx)
	if err != nil {
		return err
	}
	taken := []evidence.Snapshot{business}
	if inspector, ok := systems.As[systems.Inspector](r.instance); ok {
		s, err := inspector.Rows(ctx)
		if err != nil {
			r.note("the rows of %s cannot be read at %s: %v", r.desc.System, checkpoint, err)
		} else {
			s.Source = evidence.SourceBroker
			taken = append(taken, s)
		}
	}
	for _, s := range taken {
		s.Checkpoint = checkpoint
		s.At = r.rt.Now()
		s.Seq = r.rec.Record(evidence.Event{Kind: evidence.SnapshotTaken, Actor: s.Source, At: s.At, Checkpoint: checkpoint})
		if err := r.rec.WriteSnapshot(s); err != nil {
			return err
		}
		r.watch.snapshot(s)
	}
	return nil
}
