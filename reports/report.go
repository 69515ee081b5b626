// Package reports renders finished runs for people and programs: a terminal, a
// CI system, a dashboard, an auditor. Load judges evidence directories into a
// Report, which any of Formats then writes; Matrix summarizes many runs as a
// Grid, and Compare finds what changed between two reports.
//
// A rendering depends on its Report value only, not on a clock, network or
// file, so the same evidence gives the same bytes. Text from evidence (a
// broker's error message, an ID, a log line) is untrusted: Visible makes
// control characters visible and harmless, and each format escapes the result.
package reports

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
)

// Report is what is rendered: finished and judged runs, in display order. The
// zero value is an empty report.
type Report struct {
	Title   string // heading; empty: "Custody report"
	Command string // command line that made the runs; may be empty
	Custody string // version of the renderer
	Runs    []Run
	Copies  []Copy    // further directories of runs in Runs; not counted
	Failed  []Failure // runs without evidence
}

// Copy is a second directory of one run.
type Copy struct {
	Dir string
	Of  string // directory that counts
}

// String returns one sentence.
func (c Copy) String() string {
	return Visible(fmt.Sprintf("%s is the same run as %s, and is counted once", c.Dir, c.Of))
}

// Damaged returns a sentence for each run with damaged evidence.
func (r Report) Damaged() []string {
	var all []string
	for _, run := range r.Runs {
		if run.Judgement.Damaged {
			all = append(all, Visible(run.Dir+": "+run.Judgement.Error))
		}
	}
	return all
}

// Failure is a run without evidence. It was not measured; omitting it would
// make the report look better.
type Failure struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

// Run is one finished run.
type Run struct {
	Dir       string // evidence directory, as the reader should type it
	Manifest  evidence.Manifest
	Judgement guarantees.Judgement
	Script    string // as printed; may be empty

	Fired     []evidence.Event    // the FaultFired events that Judgement.Faults names, in order
	Snapshots []evidence.Snapshot // without Rows
	Truncated bool                // the event file ends within a record
}

// Format is one rendering.
type Format struct {
	Name  string // on the command line
	Write func(w io.Writer, r Report) error
}

// Formats lists the renderings. Adding one takes a file and a line here.
func Formats() []Format {
	return []Format{
		{"terminal", WriteTerminal},
		{"json", WriteJSON},
		{"junit", WriteJUnit},
		{"markdown", WriteMarkdown},
		{"html", WriteHTML},
	}
}

// Status of the run: its outcome, or StatusUnmeasured if the harness or machine
// failed. A proven violation stands regardless.
func (r Run) Status() Status {
	if r.Judgement.Error != "" && r.Judgement.Outcome != guarantees.Violated {
		return StatusUnmeasured
	}
	return statusOf(r.Judgement.Outcome)
}

// Replay is the shell command that runs the scenario again. The command of an
// adapter is shown in it, for replay starts none that evidence names.
func (r Run) Replay() string {
	again := "custody replay " + shellQuote(r.Dir)
	head, command, _ := strings.Cut(r.Manifest.Spec, ":")
	if name, _, _ := strings.Cut(head, "/"); name == "adapter" {
		again += " --adapter " + shellQuote(command)
	}
	return again
}

// target is "system:profile", to which claims apply.
func (r Run) target() string { return r.Judgement.System + ":" + r.Judgement.Profile }

// subject is the target, or the target with a seeded defect: not the system
// itself.
func (r Run) subject() string {
	if r.Manifest.Defect == "" {
		return r.target()
	}
	return r.target() + " with the seeded defect " + r.Manifest.Defect
}

// made lists the versions that made and judged the run.
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

// expected reports whether the run was to test the guarantee.
func (r Run) expected(guarantee string) bool { return slices.Contains(r.Manifest.Expect, guarantee) }

// why says in one sentence what the outcome rests on.
func (r Run) why() string {
	j := r.Judgement
	for _, s := range []string{j.Error, j.Why, r.Manifest.Inapplicable} {
		if s != "" {
			return s
		}
	}
	return ""
}

// Counts counts the runs by status.
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

// total counts the runs, including those without evidence.
func (r Report) total() int { return len(r.Runs) + len(r.Failed) }

// defects lists the seeded defects: violations then say nothing about the
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

// Status of the report as a whole, which determines its exit code. If nothing
// was judged it is inconclusive.
func (r Report) Status() Status {
	return map[int]Status{guarantees.ExitViolated: StatusViolated, guarantees.ExitUnmeasured: StatusUnmeasured,
		guarantees.ExitInconclusive: StatusInconclusive, guarantees.ExitHeld: StatusHeld}[r.Exit()]
}

// Exit is the exit code of the whole report: its runs' codes combined by
// guarantees.CombineExits.
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

// headline summarizes the report in one sentence.
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

// identity distinguishes runs of one scenario on one profile by their position,
// because run IDs differ from report to report.
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

// seenOnly returns the anomalies that break no covered claim.
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

// carriers returns the layers that upheld the run's held verdicts. One
// redelivery may uphold two guarantees, so each layer gets its highest count.
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
	// A layer that did anything was exercised.
	worked := map[string]bool{}
	for _, l := range all {
		worked[l.Name] = worked[l.Name] || l.Count > 0
	}
	return slices.DeleteFunc(all, func(l guarantees.Layer) bool { return l.Count == 0 && worked[l.Name] })
}

// restored tells of a restore from a backup: what it lacked, and how long that took
// to come back.
func restored(j guarantees.Judgement) (texts []string) {
	found := map[string]float64{}
	for _, v := range j.Verdicts {
		for _, m := range v.Measures {
			found[m.Name] = m.Value
		}
	}
	ms := func(n float64) time.Duration {
		return time.Duration(n * float64(time.Millisecond)).Round(time.Millisecond)
	}
	if age, there := found[guarantees.MeasureStoreAge]; there {
		texts = append(texts, fmt.Sprintf("store's backup of %v ago lacked %s (RPO %v)", ms(age),
			plural(int(found[guarantees.MeasureStoreMissing]), "accepted message"), ms(found[guarantees.MeasureStoreSpan])))
		if back, some := found[guarantees.MeasureStoreBack]; some {
			texts = append(texts, fmt.Sprintf("system back in %v (RTO)", ms(back)))
		}
		if again := int(found[guarantees.MeasureStoreAgain]); again > 0 {
			texts = append(texts, plural(again, "settled message")+" came again")
		}
	}
	age, there := found[guarantees.MeasureBackupAge]
	if !there {
		return texts
	}
	texts = append(texts, fmt.Sprintf("backup lacked %s (RPO %v)", plural(int(found[guarantees.MeasureLacked]), "effect"), ms(age)))
	if back, some := found[guarantees.MeasureBack]; some {
		texts = append(texts, fmt.Sprintf("back in %v (RTO)", ms(back)))
	}
	if never := int(found[guarantees.MeasureNotBack]); never > 0 {
		texts = append(texts, fmt.Sprintf("%d never came back", never))
	}
	return texts
}

// worstFirst returns the indices of at most n runs, chosen worst first, in
// report order.
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
