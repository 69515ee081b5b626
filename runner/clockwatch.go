package runner

import (
	"context"
	"fmt"
	"time"

	"github.com/custodymq/custody/evidence"
)

const (
	steadyEvery = 50 * time.Millisecond
	// jumpTolerance is more than a clock that is being corrected drifts in a
	// run, and less than any time to live.
	jumpTolerance = 500 * time.Millisecond
)

// keepTime ends the run when time cannot be trusted: the machine's clock has
// jumped, by which systems reckon what has expired, or the harness stood still,
// so that what came late may have been on time. A shorter standstill is put on
// record: the system may have stood still as well, and is not blamed for it.
func (b *run) keepTime(ctx context.Context) {
	tick := time.NewTicker(steadyEvery)
	defer tick.Stop()
	began, wall := b.rt.Now(), b.wall()
	last := began
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		now := b.rt.Now()
		if still := now - last; still > b.longest() {
			b.fail(fmt.Errorf("the harness stood still for %v: what came late may have been on time; give it more of the machine, or a larger scale", still.Round(time.Millisecond)))
			return
		}
		if now-last > b.noticeable() {
			b.rec.Record(evidence.Event{Kind: evidence.ProcessPaused, Actor: "harness"})
			b.rec.Record(evidence.Event{Kind: evidence.ProcessContinued, Actor: "harness"})
		}
		last = now
		if off := b.jumped(wall, began); off.Abs() > jumpTolerance {
			b.fail(fmt.Errorf("the machine's clock jumped by %v: nothing that expires by it proves anything; set it right before a run, and let it be", off.Round(time.Millisecond)))
			return
		}
	}
}

// jumped is how far the machine's clock has left the time that has passed. The
// two are read one after the other, and the harness may be put aside in
// between: the least of three readings counts.
func (b *run) jumped(wall time.Time, began time.Duration) time.Duration {
	off := b.wall().Sub(wall) - (b.rt.Now() - began)
	for range 2 {
		if again := b.wall().Sub(wall) - (b.rt.Now() - began); again.Abs() < off.Abs() {
			off = again
		}
	}
	return off
}

// wall is the machine's clock alone.
func (b *run) wall() time.Time { return b.rt.Wall().Round(0) }

// longest is how long the harness, or a link, may stand still: as long as a
// frame may be under way.
func (b *run) longest() time.Duration {
	if bound := b.desc.Profile.Limits.InFlightBound; bound > 0 {
		return bound
	}
	return scaled(time.Second, b.o.Scale)
}

// noticeable is how long the harness may stand still and count its times as
// the system's: what the machine puts one process aside for, it takes from a
// request several times, in client, link, system and store.
func (b *run) noticeable() time.Duration {
	if bound := b.desc.Profile.Limits.AnswerBound; bound > 0 {
		return bound / 4
	}
	return b.longest() / 4
}

// linksKeptUp looks whether a link kept a frame back that no fault was at.
func (b *run) linksKeptUp() error {
	for name, l := range b.links {
		if lag := l.Lag(); lag > b.longest() {
			return fmt.Errorf("runner: the link of %s kept a frame for %v, and no fault was at it: what came late may have been on time", name, lag.Round(time.Millisecond))
		}
	}
	return nil
}
