package reports

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
)

// Load reads the runs in these evidence folders, in this order. A run that was
// not judged yet is loaded as one that could not be measured, with how to mend
// it; a folder that cannot be read fails the whole, for a report that silently
// lacks a run would be read as a better one.
func Load(dirs []string) (Report, error) {
	r := Report{Runs: make([]Run, 0, len(dirs))}
	for _, dir := range dirs {
		run, err := loadRun(dir)
		if err != nil {
			return Report{}, fmt.Errorf("reports: load %s: %w", dir, err)
		}
		r.Runs = append(r.Runs, run)
	}
	return r, nil
}

func loadRun(dir string) (Run, error) {
	files, err := evidence.Open(dir)
	if err != nil {
		return Run{}, err
	}
	h, err := files.History()
	if err != nil {
		return Run{}, err
	}
	run := Run{Dir: dir, Manifest: h.Manifest, Truncated: h.Truncated}
	for _, s := range h.Snapshots {
		s.Rows = nil
		run.Snapshots = append(run.Snapshots, s)
	}

	script, err := files.Script()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Run{}, err
	}
	run.Script = string(script)

	verdict, err := files.Verdict()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		run.Judgement = guarantees.Judgement{
			Run: h.Manifest.Run, System: h.Manifest.System, Profile: h.Manifest.Profile.Name, Scenario: h.Manifest.Scenario,
			Exit:  guarantees.ExitUnmeasured,
			Error: "not judged yet: run custody judge " + shellQuote(dir),
		}
		return run, nil
	case err != nil:
		return Run{}, err
	}
	if err := json.Unmarshal(verdict, &run.Judgement); err != nil {
		return Run{}, fmt.Errorf("verdict is damaged (judge the run again to rewrite it): %w", err)
	}
	run.Fired, err = fired(h, run.Judgement.Faults)
	return run, err
}

// maxFired is how many firings of faults are shown with their place.
const maxFired = 64

// fired picks the events at which faults struck, reading no further than the
// last of them.
func fired(h *evidence.History, faults []guarantees.FaultResult) ([]evidence.Event, error) {
	want := map[uint64]bool{}
	for _, f := range faults {
		for _, seq := range f.Events {
			want[seq] = true
		}
	}
	var found []evidence.Event
	if len(want) == 0 {
		return nil, nil
	}
	for e, err := range h.Events {
		if err != nil {
			return nil, err
		}
		if !want[e.Seq] {
			continue
		}
		delete(want, e.Seq)
		if e.Kind == evidence.FaultFired {
			found = append(found, *e)
		}
		if len(want) == 0 || len(found) == maxFired {
			break
		}
	}
	return found, nil
}
