// Package explore searches for unforeseen schedules: it draws small
// random scenarios, runs and judges each, and shrinks one that violates a
// claim. A simulated system runs thousands a second, deterministically for a
// seed.
package explore

import (
	"context"
	"slices"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// Simulation is a scenario on a simulated system.
type Simulation struct {
	System   systems.System
	Scenario script.Scenario
	Seed     uint64 // of all delays
	Defect   string // a seeded defect, or empty
}

// Simulator reuses memory between simulations. Not safe for concurrent use.
type Simulator struct {
	room []evidence.Event
	line []byte
}

// Run returns the scenario's history, whose events are valid until the next
// Run. An error is a failure to measure, which the history states too.
func (s *Simulator) Run(ctx context.Context, o Simulation) (*evidence.History, error) {
	var kept *evidence.Memory
	err := runner.Run(ctx, runner.Options{System: o.System, Spec: "zeromq", Scenario: o.Scenario, Seed: o.Seed, Scale: 1, Defect: o.Defect,
		Record: func(m evidence.Manifest, now func() time.Duration) (runner.Recording, error) {
			kept = evidence.NewMemory(m, now, s.room)
			return kept, nil
		}})
	if kept == nil {
		return nil, err
	}
	s.room = kept.Events()
	return kept.History(), err
}

// Judge runs and judges a simulation.
func (s *Simulator) Judge(ctx context.Context, o Simulation) (guarantees.Judgement, error) {
	h, err := s.Run(ctx, o)
	if err != nil {
		return guarantees.Judgement{}, err
	}
	return guarantees.Judge(h)
}

// Bytes encodes a history's events as a saved run does. The result is valid
// until the next call.
func (s *Simulator) Bytes(h *evidence.History) []byte {
	s.line = s.line[:0]
	for e, err := range h.Events {
		if err != nil {
			break // simulations produce no such error
		}
		s.line = append(evidence.AppendJSON(s.line, e), '\n')
	}
	return s.line
}

// brokenOf returns the guarantees for which a covering claim is violated.
func brokenOf(j guarantees.Judgement) []string {
	var names []string
	for _, f := range j.Broken {
		if !slices.Contains(names, f.Guarantee) {
			names = append(names, f.Guarantee)
		}
	}
	return names
}

func bare(s script.Step) script.Step {
	if c, ok := s.(script.Comment); ok {
		return c.Step
	}
	return s
}
