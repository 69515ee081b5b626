package runner

import (
	"context"
	"fmt"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// waitQuiet waits until no message has made progress for s.Quiet from now on.
func (r *run) waitQuiet(ctx context.Context, s script.Wait) error {
	quiet := scaled(s.Quiet, r.o.Scale)
	within := quiet + scaled(script.DefaultWithin, r.o.Scale)
	if s.Within > 0 {
		within = scaled(s.Within, r.o.Scale)
	}
	what := script.Line(s)
	r.rec.Record(evidence.Event{Kind: evidence.AwaitBegan, Actor: "harness", Reason: what})
	bounded, cancel := r.rt.Timeout(ctx, within)
	defer cancel()
	return r.endAwait(ctx, what, r.quietFor(bounded, quiet))
}

func (r *run) quietFor(ctx context.Context, quiet time.Duration) error {
	began := r.rt.Now()
	for {
		left := max(began, r.watch.lastProgress()) + quiet - r.rt.Now()
		if left <= 0 {
			return nil
		}
		if err := r.rt.Sleep(ctx, left); err != nil {
			return fmt.Errorf("it was never quiet for %s: a message made progress %s after the run began", quiet, r.watch.lastProgress())
		}
	}
}
