// Package explore looks for schedules that nobody thought of: it draws small
// scenarios by chance, runs each, judges it, and shrinks one that breaks a
// promise to the fewest steps that still do. A simulated system makes thousands
// of runs a second, and the same ones for the same seed.
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

// Simulation of one scenario on a simulated system.
type Simulation struct {
	System   systems.System
	Scenario script.Scenario
	Seed     uint64 // of every delay
	Defect   string // a seeded defect; empty is none
}

// Simulator keeps what one simulation leaves for the next to use. Not safe for
// concurrent use.
type Simulator struct {
	room []evidence.Event
	line []byte
}

// Run gives the history of the scenario. Its events are the Simulator's and valid
// until its next Run. An error is a failure to measure; the history says so too.
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

// Judge runs a simulation and judges it.
func (s *Simulator) Judge(ctx context.Context, o Simulation) (guarantees.Judgement, error) {
	h, err := s.Run(ctx, o)
	if err != nil {
		return guarantees.Judgement{}, err
	}
	return guarantees.Judge(h)
}

// Bytes of a history, as a saved run holds its events: valid until the next call.
func (s *Simulator) Bytes(h *evidence.History) []byte {
	s.line = s.line[:0]
	for e, err := range h.Events {
		if err != nil {
			break // those of a simulation have none
		}
		s.line = append(evidence.AppendJSON(s.line, e), '\n')
	}
	return s.line
}

// brokenOf are the guarantees of which a claim that covers the run was broken.
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
