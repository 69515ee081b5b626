package reports

import (
	"fmt"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/script"
)

// Load judges the runs in these evidence directories, in order. Saved verdicts
// are ignored: they may be stale or forged. A run that cannot be measured,
// because its evidence is damaged for example, is shown as such; a directory
// that cannot be opened is an error, since omitting a run would make the report
// look better.
//
// A run found in two directories counts once; the second is listed in
// Report.Copies.
func Load(dirs []string) (Report, error) { return LoadJudged(dirs, nil) }

// LoadJudged is like Load, but uses the given judgements, which were just
// made, for some of the directories.
func LoadJudged(dirs []string, judged map[string]guarantees.Judgement) (Report, error) {
	r := Report{Runs: make([]Run, 0, len(dirs))}
	first := map[string]string{}
	for _, dir := range dirs {
		files, run, err := loadRun(dir, judged)
		if err != nil {
			return Report{}, fmt.Errorf("reports: load %s: %w", dir, err)
		}
		if !run.Judgement.Damaged { // damaging a copy must not hide the run
			id := files.Identity()
			if original, again := first[id]; again {
				r.Copies = append(r.Copies, Copy{Dir: dir, Of: original})
				continue
			}
			first[id] = dir
		}
		r.Runs = append(r.Runs, run)
	}
	return r, nil
}

func loadRun(dir string, judged map[string]guarantees.Judgement) (*evidence.Run, Run, error) {
	files, h, err := script.OpenRun(dir)
	if err != nil {
		return nil, Run{}, err
	}
	run := Run{Dir: dir, Manifest: h.Manifest, Truncated: h.Truncated}
	for _, s := range h.Snapshots {
		s.Rows = nil
		run.Snapshots = append(run.Snapshots, s)
	}
	if text, err := files.Script(); err == nil { // the judgement reports an error
		run.Script = string(text)
	}
	known := false
	if run.Judgement, known = judged[dir]; !known {
		run.Judgement, err = guarantees.Judge(h)
	}
	if err != nil {
		run.Judgement.Exit, run.Judgement.Error = guarantees.ExitUnmeasured, err.Error()
		return files, run, nil
	}
	run.Fired = fired(h, run.Judgement.Faults)
	return files, run, nil
}

// maxFired bounds the fault firings that are shown.
const maxFired = 64

// fired returns the events at which faults struck, as far as the file can be
// read.
func fired(h *evidence.History, faults []guarantees.FaultResult) []evidence.Event {
	want := map[uint64]bool{}
	for _, f := range faults {
		for _, seq := range f.Events {
			want[seq] = true
		}
	}
	var found []evidence.Event
	if len(want) == 0 {
		return nil
	}
	for e, err := range h.Events {
		if err != nil {
			break
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
	return found
}
