package script

import (
	"fmt"
	"slices"

	"github.com/custodymq/custody/evidence"
)

// OpenRun opens saved evidence for judging. The manifest must agree with the
// script on what the run was to reach and exercise; otherwise, as when its
// `reached` was emptied, the evidence is damaged.
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
		if err := checkManifest(run); err != nil {
			h.Damage = err.Error()
		}
	}
	return run, h, nil
}

// checkManifest compares the manifest with the script, ignoring a line's exact
// wording, which a later version may print differently.
func checkManifest(run *evidence.Run) error {
	text, err := run.Script()
	if err != nil {
		return err
	}
	s, err := Parse("script.custody", string(text))
	if err != nil {
		if run.Sealed() {
			return nil // an older notation; the seal ties the two together
		}
		return err
	}
	m := run.Manifest()
	differs := func(field string) error {
		return fmt.Errorf("manifest.json: %s: it differs from script.custody", field)
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
		switch s := step.(type) {
		case Fault:
			faults = append(faults, s)
		case Restore:
			if s.Broker {
				faults = append(faults, s.Fault())
			}
		}
	}
	return faults
}
