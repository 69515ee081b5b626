package runner

import (
	"context"
	"fmt"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// probes of one kind, or all of them, in the order in which they are made.
func (b *run) probes(kind string) []systems.Probe {
	prober, ok := b.instance.(systems.Prober)
	if !ok {
		return nil
	}
	var of []systems.Probe
	for _, p := range prober.Probes() {
		if kind == "" || p.Kind == kind {
			of = append(of, p)
		}
	}
	return of
}

// probeBound is for one probe, before scaling: one that is not answered by then
// is unanswered. So many that are not answered, or cannot be made, say all.
const (
	probeBound    = 5 * callBound
	maxUnanswered = 5
)

// probe makes them one after the other, each within its bound, and records what
// was wanted and what came.
func (b *run) probe(ctx context.Context, s script.Probe) error {
	unanswered := 0
	for i, p := range b.probes(s.Kind) {
		if unanswered == maxUnanswered {
			b.note("%d probes were left out, for %d were not answered", len(b.probes(s.Kind))-i, unanswered)
			return nil
		}
		got, err := b.probeOnce(ctx, p)
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		e := evidence.Event{Kind: evidence.Probed, Actor: "harness", Probe: p.Name, Wanted: p.Wants, WantedCause: p.Cause,
			Got: got.Outcome, Cause: got.Cause, Reason: p.Text}
		switch {
		case err != nil:
			e.Got, e.Reason = evidence.NoProbeOutcome, fmt.Sprintf("%s: %v", p.Text, err)
		case got.Reason != "":
			e.Reason += ": " + got.Reason
		}
		if e.Got == evidence.NoProbeOutcome || e.Got == evidence.ProbeUnanswered {
			unanswered++
		}
		b.rec.Record(e)
	}
	return nil
}

func (b *run) probeOnce(ctx context.Context, p systems.Probe) (systems.Probed, error) {
	ctx, cancel := context.WithTimeout(ctx, scaled(probeBound, b.o.Scale))
	defer cancel()
	return b.instance.(systems.Prober).Probe(ctx, p.Name)
}
