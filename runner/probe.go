package runner

import (
	"context"
	"fmt"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// probes returns the probes of one kind, or all if kind is empty, in order.
func (r *run) probes(kind string) []systems.Probe {
	prober, ok := systems.As[systems.Prober](r.instance)
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

// A probe not answered within probeBound (before scaling) is unanswered. After
// maxUnanswered that are unanswered or failed, the rest is skipped.
const (
	probeBound    = 5 * callBound
	maxUnanswered = 2
)

// probe runs the probes one by one and records expected and actual outcomes.
func (r *run) probe(ctx context.Context, s script.Probe) error {
	unanswered := 0
	for i, p := range r.probes(s.Kind) {
		if unanswered == maxUnanswered {
			r.note("%d probes were skipped, because %d were not answered", len(r.probes(s.Kind))-i, unanswered)
			return nil
		}
		got, err := r.runProbe(ctx, p)
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
		r.rec.Record(e)
	}
	return nil
}

func (r *run) runProbe(ctx context.Context, p systems.Probe) (systems.Probed, error) {
	within := p.Within
	if within == 0 {
		within = scaled(probeBound, r.o.Scale)
	}
	ctx, cancel := r.rt.Timeout(ctx, within)
	defer cancel()
	return part[systems.Prober](r).Probe(ctx, p.Name)
}
