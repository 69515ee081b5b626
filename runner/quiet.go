package runner

import (
	"context"
	"fmt"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
)

// waitQuiet waits until no message has gone on its way for so long, counted
// from now at the earliest.
func (b *run) waitQuiet(ctx context.Context, s script.Wait) error {
	quiet := scaled(s.Quiet, b.o.Scale)
	within := quiet + scaled(script.DefaultWithin, b.o.Scale)
	if s.Within > 0 {
		within = scaled(s.Within, b.o.Scale)
	}
	what := script.Line(s)
	b.rec.Record(evidence.Event{Kind: evidence.AwaitBegan, Actor: "harness", Reason: what})
	bounded, cancel := b.rt.Timeout(ctx, within)
	defer cancel()
	return b.awaited(ctx, what, b.quietFor(bounded, quiet))
}

func (b *run) quietFor(ctx context.Context, quiet time.Duration) error {
	began := b.rt.Now()
	for {
		left := max(began, b.watch.lastMove()) + quiet - b.rt.Now()
		if left <= 0 {
			return nil
		}
		if err := b.rt.Sleep(ctx, left); err != nil {
			return fmt.Errorf("it was never quiet for %s: a message moved %s after the run began", quiet, b.watch.lastMove())
		}
	}
}
