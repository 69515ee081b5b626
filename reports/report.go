// Package reports renders finished runs for the people and programs that must
// act on them: a terminal, a CI system, a dashboard, an auditor.
//
// Every rendering is a function of one Report value and of nothing else: no
// clock, no network, no evidence file is opened while writing, so the same
// evidence gives the same bytes. Text that comes from evidence is untrusted
// (a broker's error message, an ID, a log line): each format escapes it, and
// Visible makes control characters harmless and visible first.
package reports

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
)

// Report is what is rendered: finished runs with their judgements, in the order
// in which they are to be shown. The zero value is an empty report.
type Report struct {
	Title   string // a heading; empty is "Custody report"
	Command string // the command line that made the runs, as typed; may be empty
	Custody string // the version that renders it
	Runs    []Run
	Copies  []Copy    // folders that hold a run of Runs again; they are not counted
	Failed  []Failure // runs that have left no evidence
}

// Copy is a second folder of one run.
type Copy struct {
	Dir string
	Of  string // the folder that is counted
}

// String is one sentence.
func (c Copy) String() string {
	return Visible(fmt.Sprintf("%s is the same run as %s, and is counted once", c.Dir, c.Of))
}

// Damaged are the runs whose evidence is not whole, each in a sentence.
func (r Report) Damaged() []string {
	var all []string
	for _, run := range r.Runs {
		if run.Judgement.Damaged {
			all = append(all, Visible(run.Dir+": "+run.Judgement.Error))
		}
	}
	return all
}

// Failure is a run that was begun and of which nothing can be shown: it could
// not be measured, and a report that is silent about it would read as a better one.
type Failure struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

// Run is one finished run.
type Run struct {
	Dir       string // its evidence folder, as the reader should type it
	Manifest  evidence.Manifest
	Judgement guarantees.Judgement
	Script    string // as printed; empty where the evidence has none

	Fired     []evidence.Event    // the FaultFired events that Judgement.Faults names, in order
	Snapshots []evidence.Snapshot // heads only: Rows is nil
	Truncated bool                // the event file ends in the middle of a record
}

// Format is one rendering.
type Format struct {
	Name  string // as on the command line
	Write func(w io.Writer, r Report) error
}

// Formats is the list of renderings. Adding one is a file and a line here.
func Formats() []Format {
	return []Format{
		{"terminal", WriteTerminal},
		{"json", WriteJSON},
		{"junit", WriteJUnit},
		{"markdown", WriteMarkdown},
		{"html", WriteHTML},
	}
}

// Status of the run: its outcome, or StatusUnmeasured where the harness or the
// machine failed. A violation that was proven stands all the same.
func (r Run) Status() Status {
	if r.Judgement.Error != "" && r.Judgement.Outcome != guarantees.Violated {
		return StatusUnmeasured
	}
	return statusOf(r.Judgement.Outcome)
}

// Replay is the command that runs it again, ready to paste into a shell.
func (r Run) Replay() string { return "custody replay " + shellQuote(r.Dir) }

// target is "system:profile", what a claim is made for.
func (r Run) target() string { return r.Judgement.System + ":" + r.Judgement.Profile }

// subject is what was measured: the target, or one into which a defect was
// seeded, of which the system is innocent.
func (r Run) subject() string {
	if r.Manifest.Defect == "" {
		return r.target()
	}
	return r.target() + " with the seeded defect " + r.Manifest.Defect
}

// made says by which versions the run was made and judged.
func (r Run) made() string {
	var words []string
	for _, name := range sortedKeys(r.Manifest.Versions) {
		words = append(words, named(name, r.Manifest.Versions[name]))
	}
	if r.Judgement.Judge != "" {
		words = append(words, "judge "+r.Judgement.Judge)
	}
	return strings.Join(words, ", ")
}

// expected reports whether the run was to put the guarantee to the test.
func (r Run) expected(guarantee string) bool { return slices.Contains(r.Manifest.Expect, guarantee) }

// why says in a sentence what the outcome rests on.
func (r Run) why() string {
	j := r.Judgement
	for _, s := range []string{j.Error, j.Why, r.Manifest.Inapplicable} {
		if s != "" {
			return s
		}
	}
	return ""
}

// Counts is how many runs have each status.
func (r Report) Counts() map[Status]int {
	n := map[Status]int{}
	for _, run := range r.Runs {
		n[run.Status()]++
	}
	if len(r.Failed) > 0 {
		n[StatusUnmeasured] += len(r.Failed)
	}
	return n
}

// total is how many runs there were, with those that left no evidence.
func (r Report) total() int { return len(r.Runs) + len(r.Failed) }

// defects that were seeded, each once: what is broken then says nothing of the
// system.
func (r Report) defects() string {
	names := newDistinct()
	for _, run := range r.Runs {
		if run.Manifest.Defect != "" {
			names.add(run.Manifest.Defect)
		}
	}
	return names.String()
}

// Status of the report as a whole, which its exit code stands for. Where nothing
// was judged nothing was proven, which is inconclusive.
func (r Report) Status() Status {
	return map[int]Status{guarantees.ExitViolated: StatusViolated, guarantees.ExitUnmeasured: StatusUnmeasured,
		guarantees.ExitInconclusive: StatusInconclusive, guarantees.ExitHeld: StatusHeld}[r.Exit()]
}

// Exit is the exit code of the report as a whole: that of its runs together, in
// the order of guarantees.CombineExits.
func (r Report) Exit() int {
	var codes []int
	for _, run := range r.Runs {
		codes = append(codes, statuses[run.Status()].exit)
	}
	for range r.Failed {
		codes = append(codes, guarantees.ExitUnmeasured)
	}
	return guarantees.CombineExits(codes)
}

func (r Report) title() string {
	if strings.TrimSpace(r.Title) == "" {
		return "Custody report"
	}
	return r.Title
}

// headline says in one sentence how it went.
func (r Report) headline() string {
	n, all := r.Counts(), r.total()
	switch r.Status() {
	case StatusViolated:
		return fraction(n[StatusViolated], all) + " broke a claimed guarantee"
	case StatusUnmeasured:
		return fraction(n[StatusUnmeasured], all) + " could not be measured"
	case StatusHeld:
		return "Every claimed guarantee held"
	}
	switch {
	case all == 0:
		return "No runs"
	case n[StatusInconclusive] == 0:
		return "Nothing that was run is claimed: nothing is proven"
	}
	return "Nothing broke, but " + lowerFirst(fraction(n[StatusInconclusive], all)) + " proved nothing"
}

// identity distinguishes the runs of one scenario on one profile: they are
// counted in the order of the report, so that names stay the same from one
// report to the next where run IDs do not.
type identity struct {
	System, Profile, Scenario string
	Nth                       int // from 1
}

func (r Report) identities() []identity {
	ids, seen := make([]identity, len(r.Runs)), map[identity]int{}
	for i, run := range r.Runs {
		id := identity{System: run.Judgement.System, Profile: run.Judgement.Profile, Scenario: run.Judgement.Scenario}
		seen[id]++
		ids[i] = id
		ids[i].Nth = seen[id]
	}
	return ids
}

// seenOnly are the anomalies that break no claim covering the run.
func seenOnly(j guarantees.Judgement) []guarantees.Finding {
	type key struct{ g, k, b, p, s, t string }
	of := func(f guarantees.Finding) key {
		return key{f.Guarantee, f.Kind, f.BusinessID, f.PublishID, f.Subscription, f.Text}
	}
	broken := map[key]bool{}
	for _, f := range j.Broken {
		broken[of(f)] = true
	}
	var rest []guarantees.Finding
	for _, f := range j.Anomalies {
		if !broken[of(f)] {
			rest = append(rest, f)
		}
	}
	return rest
}

// carriers are the layers that carried the run's held verdicts, each once. One
// redelivery may carry two guarantees: the highest count is the layer's own.
func carriers(j guarantees.Judgement) []guarantees.Layer {
	var all []guarantees.Layer
	at := map[[2]string]int{}
	for _, v := range j.Verdicts {
		if v.Outcome != guarantees.Held {
			continue
		}
		for _, l := range v.Layers {
			k := [2]string{l.Name, l.Did}
			i, ok := at[k]
			if !ok {
				at[k] = len(all)
				all = append(all, l)
				continue
			}
			all[i].Count = max(all[i].Count, l.Count)
		}
	}
	// A layer that did one thing was exercised, whatever else it might have done.
	worked := map[string]bool{}
	for _, l := range all {
		worked[l.Name] = worked[l.Name] || l.Count > 0
	}
	return slices.DeleteFunc(all, func(l guarantees.Layer) bool { return l.Count == 0 && worked[l.Name] })
}

// worstFirst gives the indices of at most n runs, those with the most to say
// first chosen, in the order of the report.
func worstFirst(runs []Run, n int) []int {
	var keep []int
	for _, s := range Statuses() {
		for i, r := range runs {
			if len(keep) < n && r.Status() == s {
				keep = append(keep, i)
			}
		}
	}
	slices.Sort(keep)
	return keep
}
