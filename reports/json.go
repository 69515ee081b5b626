package reports

import (
	"encoding/json"
	"io"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
)

// jsonFormat increases when a field changes its meaning or is removed; fields
// may be added at any time.
const jsonFormat = 1

// jsonReport is the stable format for programs, specified in
// docs/reports/report.schema.json. Durations are nanoseconds.
type jsonReport struct {
	Format  int            `json:"format"`
	Title   string         `json:"title"`
	Command string         `json:"command,omitempty"`
	Outcome Status         `json:"outcome"`
	Exit    int            `json:"exit"`
	Counts  map[Status]int `json:"counts"`            // every status, including zeros
	Custody string         `json:"custody,omitempty"` // version that rendered this
	Failed  []Failure      `json:"failed,omitempty"`  // runs without evidence, counted as unmeasured
	Trials  []Trials       `json:"trials,omitempty"`  // what all runs prove together
	Runs    []jsonRun      `json:"runs"`
}

type jsonRun struct {
	Dir       string               `json:"dir"`
	Replay    string               `json:"replay"`
	Status    Status               `json:"status"`
	Seed      uint64               `json:"seed"`
	Scale     float64              `json:"scale"`
	Versions  map[string]string    `json:"versions,omitempty"`
	Machine   evidence.Machine     `json:"machine"`
	Defect    string               `json:"defect,omitempty"`
	StartedAt time.Time            `json:"startedAt"`
	Took      time.Duration        `json:"took"` // 0 for a run that did not end
	Ended     evidence.EndHow      `json:"ended,omitempty"`
	Truncated bool                 `json:"truncated,omitempty"`
	Claims    []evidence.Claim     `json:"claims,omitempty"`
	Script    string               `json:"script,omitempty"`
	Fired     []evidence.Event     `json:"fired,omitempty"` // events, as in the evidence
	Snapshots []evidence.Snapshot  `json:"snapshots,omitempty"`
	Judgement guarantees.Judgement `json:"judgement"` // as in verdict.json
}

// WriteJSON writes the complete report for programs.
func WriteJSON(w io.Writer, r Report) error {
	out := jsonReport{
		Format: jsonFormat, Title: r.title(), Command: r.Command,
		Outcome: r.Status(), Exit: r.Exit(), Counts: map[Status]int{}, Custody: r.Custody, Failed: r.Failed, Trials: r.trials(), Runs: make([]jsonRun, 0, len(r.Runs)),
	}
	n := r.Counts()
	for _, s := range Statuses() {
		out.Counts[s] = n[s]
	}
	for _, run := range r.Runs {
		m := run.Manifest
		j := jsonRun{
			Dir: run.Dir, Replay: run.Replay(), Status: run.Status(),
			Seed: m.Seed, Scale: m.Scale, Versions: m.Versions, Machine: m.Machine, Defect: m.Defect, StartedAt: m.StartedAt,
			Truncated: run.Truncated, Claims: m.Claims, Script: run.Script, Fired: run.Fired, Snapshots: run.Snapshots,
			Judgement: run.Judgement,
		}
		if m.End != nil {
			j.Took, j.Ended = m.End.After, m.End.How
		}
		out.Runs = append(out.Runs, j)
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(out)
}
