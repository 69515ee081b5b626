package runner

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/tasks"
)

// looks is an instance whose Rows returns the answers in turn, then repeats
// the last one.
type looks struct {
	systems.Instance
	answers []look
	n       int
	last    time.Duration // time of the latest exact or failed answer
	world   *tasks.Simulated
}

type look struct {
	snapshot evidence.Snapshot
	err      error
}

func (l *looks) Rows(context.Context) (evidence.Snapshot, error) {
	a := l.answers[min(l.n, len(l.answers)-1)]
	l.n++
	if a.err != nil || a.snapshot.Trust == evidence.Exact {
		l.last = l.world.Now()
	}
	return a.snapshot, a.err
}

func TestDrained(t *testing.T) {
	counted := look{snapshot: evidence.Snapshot{Trust: evidence.CountsOnly, Count: 1}}
	empty := look{snapshot: evidence.Snapshot{Trust: evidence.Exact}}
	waiting := look{snapshot: evidence.Snapshot{Trust: evidence.Exact, Count: 1, Rows: []evidence.StoredRow{{State: evidence.RowPending}}}}
	broken := look{err: errors.New("no answer")}
	for name, c := range map[string]struct {
		answers []look
		redelivery,
		deadline time.Duration
		want evidence.DrainReason
	}{
		"empty":                              {[]look{empty}, time.Hour, time.Minute, evidence.DrainSettled},
		"counted first, and then empty":      {[]look{counted, counted, waiting, counted, empty}, time.Hour, time.Minute, evidence.DrainSettled},
		"only counted":                       {[]look{counted}, 20 * time.Millisecond, time.Minute, evidence.DrainQuiet},
		"waiting first, and then counted":    {[]look{waiting, waiting, waiting, counted}, 50 * time.Millisecond, time.Minute, evidence.DrainQuiet},
		"unreadable first, and then counted": {[]look{broken, broken, broken, counted}, 50 * time.Millisecond, time.Minute, evidence.DrainQuiet},
		"waiting for ever":                   {[]look{waiting}, time.Millisecond, 100 * time.Millisecond, evidence.DrainDeadline},
		"unreadable for ever":                {[]look{broken}, time.Millisecond, 100 * time.Millisecond, evidence.DrainDeadline},
	} {
		t.Run(name, func(t *testing.T) {
			world := tasks.NewSimulated(1)
			in := &looks{answers: c.answers, world: world, last: world.Now()}
			b := &run{rt: world, rec: evidence.NewMemory(evidence.Manifest{}, world.Now, nil), instance: in, watch: newWatch(script.Scenario{}, world),
				actors: []*actor{{role: role{Consumer: &script.Consumer{}}, running: true}}}
			b.desc.Profile.Limits.RedeliveryPeriod = c.redelivery
			var got evidence.DrainReason
			var err error
			stuck := world.Run(func() {
				ctx, cancel := world.Timeout(t.Context(), c.deadline)
				defer cancel()
				got, err = b.drained(ctx)
			})
			if err != nil || stuck != nil || got != c.want {
				t.Errorf("ended as %q, %v, %v; want %q", got, err, stuck, c.want)
			}
			if quiet := world.Now() - in.last; got == evidence.DrainQuiet && quiet < 2*c.redelivery {
				t.Errorf("quiet counted for %v, less than two redelivery periods", quiet)
			}
		})
	}
}
