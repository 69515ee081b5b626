package script

import (
	"fmt"
	"slices"

	"github.com/custodymq/custody/evidence"
)

// OpenRun opens saved evidence to be judged, and holds its manifest against its
// script: what a run was to reach and to exercise is what its script says. A
// manifest that says otherwise, say one with no `reached` left in it, is damage.
func OpenRun(dir string) (*evidence.Run, *evidence.History, error) {
	run, err := evidence.Open(dir)
	if err != nil {
		return nil, nil, err
	}
	h, err := run.History()
	if err != nil {
		return nil, nil, err
	}
	if h.Damage == "" {
		if err := agree(run); err != nil {
			h.Damage = err.Error()
		}
	}
	return run, h, nil
}

// agree compares what the manifest took from the script, but for the words of a
// line, which a later version may print otherwise.
func agree(run *evidence.Run) error {
	text, err := run.Script()
	if err != nil {
		return err
	}
	s, err := Parse("script.custody", string(text))
	if err != nil {
		if run.Sealed() {
			return nil // an older notation; the seal says that the two belong together
		}
		return err
	}
	m := run.Manifest()
	differs := func(field string) error {
		return fmt.Errorf("manifest.json: %s: it is not what script.custody says", field)
	}
	switch {
	case m.Scenario != s.Name:
		return differs("scenario")
	case !slices.Equal(m.Expect, s.Expect):
		return differs("expect")
	case !slices.EqualFunc(m.Reached, s.Reached, func(a, b evidence.Condition) bool {
		a.Line, b.Line = "", ""
		return a == b
	}):
		return differs("reached")
	case !slices.EqualFunc(m.Faults, faultsOf(s), func(a evidence.FaultLabel, b Fault) bool {
		return a.Label == b.Label && a.Verb == b.Verb
	}):
		return differs("faults")
	}
	return nil
}

func faultsOf(s Scenario) (faults []Fault) {
	for _, step := range s.Steps {
		if c, ok := step.(Comment); ok {
			step = c.Step
		}
		if f, ok := step.(Fault); ok {
			faults = append(faults, f)
		}
	}
	return faults
}
