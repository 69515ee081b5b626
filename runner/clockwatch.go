package runner

import (
	"context"
	"fmt"
	"time"

	"github.com/custodymq/custody/evidence"
)

const (
	clockInterval = 50 * time.Millisecond
	// jumpTolerance exceeds what a clock being slewed drifts during a run, and
	// is shorter than any time to live.
	jumpTolerance = 500 * time.Millisecond
)

// watchClock fails the run when time cannot be trusted: if the wall clock
// jumped, expiry is meaningless; if the harness stalled, a late event may have
// been on time. A shorter stall is recorded: the system may have stalled too,
// and must not be blamed for it.
func (r *run) watchClock(ctx context.Context, limits evidence.Limits) {
	tick := time.NewTicker(clockInterval)
	defer tick.Stop()
	began, wall := r.rt.Now(), r.wall()
	last := began
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		now := r.rt.Now()
		if still := now - last; still > maxStall(limits, r.o.Scale) {
			r.fail(fmt.Errorf("the harness stood still for %v: a late event may have been on time; give it more CPU, or a larger scale", still.Round(time.Millisecond)))
			return
		}
		if now-last > minStall(limits, r.o.Scale) {
			r.rec.Record(evidence.Event{Kind: evidence.ProcessPaused, Actor: "harness"})
			r.rec.Record(evidence.Event{Kind: evidence.ProcessContinued, Actor: "harness"})
		}
		last = now
		if off := r.clockOffset(wall, began); off.Abs() > jumpTolerance {
			r.fail(fmt.Errorf("the machine's clock jumped by %v: expiry proves nothing; set the clock before a run and leave it alone", off.Round(time.Millisecond)))
			return
		}
	}
}

// clockOffset is how far the wall clock has drifted from monotonic time since
// began. The least of three readings counts: the goroutine may be preempted
// between reading one clock and the other.
func (r *run) clockOffset(wall time.Time, began time.Duration) time.Duration {
	off := r.wall().Sub(wall) - (r.rt.Now() - began)
	for range 2 {
		if again := r.wall().Sub(wall) - (r.rt.Now() - began); again.Abs() < off.Abs() {
			off = again
		}
	}
	return off
}

// wall strips the monotonic reading.
func (r *run) wall() time.Time { return r.rt.Wall().Round(0) }

// maxStall is how long the harness, or a link, may stall: the in-flight bound.
func maxStall(limits evidence.Limits, scale float64) time.Duration {
	if limits.InFlightBound > 0 {
		return limits.InFlightBound
	}
	return scaled(time.Second, scale)
}

// minStall is the shortest stall that is recorded. A machine that delays one
// process this long may delay a request several times: in client, link, system
// and store.
func minStall(limits evidence.Limits, scale float64) time.Duration {
	if limits.AnswerBound > 0 {
		return limits.AnswerBound / 4
	}
	return maxStall(limits, scale) / 4
}

// checkLinkLag fails if a link delayed a frame without a fault.
func (r *run) checkLinkLag() error {
	for name, l := range r.links {
		if lag := l.Lag(); lag > maxStall(r.desc.Profile.Limits, r.o.Scale) {
			return fmt.Errorf("runner: the link of %s kept a frame for %v without a fault: a late event may have been on time", name, lag.Round(time.Millisecond))
		}
	}
	return nil
}
