package faults

import (
	"context"
	"time"

	"github.com/custodymq/custody/evidence"
)

var clockFault = Fault{Verb: "clock", Class: evidence.Clock, Strikes: StrikesClock,
	Text:    "The clock is off by this much until the fault is healed.",
	Example: "fault skew: clock broker by 1h",
	arm: func(ctx context.Context, s Spec, t Targets) (Injection, error) {
		clock, err := t.Clock(s.Target)
		if err != nil {
			return nil, err
		}
		set := func(ctx context.Context, offset time.Duration) error {
			if err := clock.SetClock(ctx, offset); err != nil {
				return err
			}
			t.Sink().Record(evidence.Event{Kind: evidence.ClockSet, Actor: s.Target, Fault: s.Label, Offset: offset})
			return nil
		}
		if err := set(ctx, s.By); err != nil {
			return nil, err
		}
		t.Sink().Record(evidence.Event{Kind: evidence.FaultFired, Actor: s.Target, Fault: s.Label, Struck: "clock"})
		in := newSignal(func(ctx context.Context) error { return set(ctx, 0) })
		in.fire()
		return in, nil
	},
}
