package runner

import (
	"context"

	"github.com/custodymq/custody/evidence"
)

// overdue: the deadline of an await passed. The rest of the act is left out;
// healing, draining, watching and judging follow.
type overdue struct{ missing error }

func (o *overdue) Error() string { return o.missing.Error() }

func (o *overdue) Unwrap() error { return o.missing }

// awaited records that what a step has waited for is there, or gives an
// *overdue if its own deadline passed and not the run's.
func (b *run) awaited(ctx context.Context, what string, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err != nil {
		return &overdue{err}
	}
	b.rec.Record(evidence.Event{Kind: evidence.AwaitEnded, Actor: "harness", OK: true, Reason: what})
	return nil
}

// cutShort records at which step the script ended, and how many it leaves out.
func (b *run) cutShort(step int, over *overdue) {
	b.rec.Record(evidence.Event{Kind: evidence.AwaitEnded, Actor: "harness", Reason: over.Error(),
		Line: b.o.Scenario.LineOf(step), Left: len(b.o.Scenario.Steps) - step - 1})
}
