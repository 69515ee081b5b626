package runner

import (
	"context"

	"github.com/custodymq/custody/evidence"
)

// awaitTimeout ends the act phase; heal, drain, watch and judging follow.
type awaitTimeout struct{ err error }

func (o *awaitTimeout) Error() string { return o.err.Error() }

func (o *awaitTimeout) Unwrap() error { return o.err }

// endAwait records that an awaited condition was met, or returns an
// *awaitTimeout if the step's own deadline passed rather than the run's.
func (r *run) endAwait(ctx context.Context, what string, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err != nil {
		return &awaitTimeout{err}
	}
	r.rec.Record(evidence.Event{Kind: evidence.AwaitEnded, Actor: "harness", OK: true, Reason: what})
	return nil
}

// recordTimeout records the step at which the script ended and how many it
// skips.
func (r *run) recordTimeout(step int, over *awaitTimeout) {
	r.rec.Record(evidence.Event{Kind: evidence.AwaitEnded, Actor: "harness", Reason: over.Error(),
		Line: r.o.Scenario.LineOf(step), Left: len(r.o.Scenario.Steps) - step - 1})
}
