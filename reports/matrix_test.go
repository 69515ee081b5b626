package reports_test

import (
	"strings"
	"testing"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/reports"
)

// runOf returns a run of a profile, with one verdict and the class of the
// fault that fired.
func runOf(profile, scenario string, fired evidence.Class, v guarantees.Verdict) reports.Run {
	r := reports.Run{Dir: "runs/" + scenario, Judgement: guarantees.Judgement{System: "sys", Profile: profile, Scenario: scenario, Verdicts: []guarantees.Verdict{v}}}
	r.Manifest.Profile.Summary = "a profile"
	r.Manifest.Versions = map[string]string{"go": "1", "server": "7"}
	r.Judgement.Outcome = guarantees.NotClaimed
	if v.Claimed && v.Covered {
		r.Judgement.Outcome = v.Outcome
	}
	if fired != "" {
		r.Judgement.Faults = []guarantees.FaultResult{{Class: fired, Fired: 1}}
	}
	return r
}

func TestMatrixSaysWhatEachRunHasShown(t *testing.T) {
	loss := func(o guarantees.Outcome, claimed bool, findings ...guarantees.Finding) guarantees.Verdict {
		return guarantees.Verdict{Guarantee: evidence.NoAcceptedLoss, Outcome: o, Claimed: claimed, Covered: claimed, Why: "because", Findings: findings}
	}
	inapplicable := runOf("p", "n", "", loss(guarantees.Held, true))
	inapplicable.Judgement.Outcome, inapplicable.Judgement.Verdicts = guarantees.NotApplicable, nil
	inapplicable.Manifest.Expect = []string{evidence.NoAcceptedLoss}
	inapplicable.Manifest.Inapplicable = "it has none"
	failed := inapplicable
	failed.Judgement.Outcome, failed.Judgement.Error, failed.Manifest.Inapplicable = guarantees.Inconclusive, "the disk is full", ""
	for _, c := range []struct {
		name string
		runs []reports.Run
		want reports.State
	}{
		{"held", []reports.Run{runOf("p", "a", "", loss(guarantees.Held, true))}, reports.CellHeld},
		{"one violation decides", []reports.Run{runOf("p", "a", "", loss(guarantees.Held, true)), runOf("p", "b", "", loss(guarantees.Violated, true)), runOf("p", "c", "", loss(guarantees.Held, true))}, reports.CellViolated},
		{"inconclusive is not made good", []reports.Run{runOf("p", "a", "", loss(guarantees.Held, true)), runOf("p", "b", "", loss(guarantees.Inconclusive, true))}, reports.CellInconclusive},
		{"shown", []reports.Run{runOf("p", "a", "", loss(guarantees.Violated, false))}, reports.CellShown},
		{"an unconfirmed loss is shown", []reports.Run{runOf("p", "a", "", loss(guarantees.Inconclusive, false, guarantees.Finding{Unconfirmed: true, Text: "gone"}))}, reports.CellShown},
		{"held though not claimed", []reports.Run{runOf("p", "a", "", loss(guarantees.Held, false))}, reports.CellUnclaimed},
		{"not applicable", []reports.Run{inapplicable}, reports.CellNotApplicable},
		{"unmeasured", []reports.Run{failed}, reports.CellUnmeasured},
		{"nothing to say", []reports.Run{runOf("p", "a", "", loss(guarantees.Inconclusive, false))}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := reports.Matrix(reports.Report{Runs: c.runs}, nil)
			var got reports.State
			if len(g.Columns) > 0 {
				got = g.Rows[0].Cells[0].State
			}
			if got != c.want || len(g.Rows) != 1 {
				t.Errorf("%d rows, state %q, want %q", len(g.Rows), got, c.want)
			}
		})
	}
}

func TestMatrixPlacesRunsByFaultAndVersion(t *testing.T) {
	held := guarantees.Verdict{Guarantee: evidence.Survives, Outcome: guarantees.Held, Claimed: true, Covered: true}
	older := runOf("p", "a", evidence.Link, held)
	older.Manifest.Versions = map[string]string{"server": "6"}
	g := reports.Matrix(reports.Report{Runs: []reports.Run{runOf("p", "a", evidence.Link, held), runOf("p", "b", "", held), older, runOf("q", "a", evidence.Link, held)}},
		func(r reports.Run) string { return r.Dir + "/page" })
	if len(g.Rows) != 3 || len(g.Columns) != 2 {
		t.Fatalf("%d rows and %d columns, want 3 and 2", len(g.Rows), len(g.Columns))
	}
	if g.Columns[0].Name != "no fault" || g.Columns[1].Name != string(evidence.Link) {
		t.Errorf("columns %v", g.Columns)
	}
	if c := g.Rows[0].Cells[0]; c.State != reports.CellHeld || c.Link != "runs/b/page" || c.Run != "runs/b" {
		t.Errorf("the cell without a fault is %+v", c)
	}
	if c := g.Rows[2].Cells[0]; c.State != "" {
		t.Errorf("a cell without a run is %+v", c)
	}
	if !strings.Contains(g.Rows[0].Facts, "server 7") || strings.Contains(g.Rows[0].Facts, "go") {
		t.Errorf("facts %q", g.Rows[0].Facts)
	}
}

func TestGridsEscapeWhatTheyShow(t *testing.T) {
	g := reports.Grid{Title: "<script>", Corner: "Row", Columns: []reports.Column{{Group: "g", Name: "<b>"}},
		Rows: []reports.GridRow{{Name: "a|b\x1b[31m", Cells: []reports.Cell{{State: reports.CellViolated, Why: "<i>\x07", Run: "dir", Link: "javascript:alert(1)"}}}, {Name: "gone", Absent: "not here"}}}
	for _, f := range reports.GridFormats() {
		var b strings.Builder
		if err := f.Write(&b, g); err != nil {
			t.Errorf("%s: %v", f.Name, err)
		}
		if text := b.String(); strings.ContainsAny(text, "\x1b\x07") || f.Name == "html" && (strings.Contains(text, "<script>") || strings.Contains(text, "javascript:alert")) || f.Name == "markdown" && strings.Contains(text, "a|b") {
			t.Errorf("%s shows what it was given as it is:\n%s", f.Name, text)
		}
	}
}

// Runs of one cell add up across folders and repeats, and the matrix states
// what they prove together in every format.
func TestAMatrixAddsUpTrials(t *testing.T) {
	held := guarantees.Verdict{Guarantee: evidence.NoAcceptedLoss, Outcome: guarantees.Held, Claimed: true, Covered: true, Why: "nothing was lost"}
	lost := held
	lost.Outcome, lost.Why = guarantees.Violated, "order-1 is gone"
	r := reports.Report{Custody: "v9.8.7", Command: "custody matrix sys --scenarios a,b"}
	for i, v := range []guarantees.Verdict{held, held, held, held, lost} {
		for _, scenario := range []string{"a", "b"}[:min(2, 5-i)] { // b is never broken
			run := runOf("p", scenario, "", v)
			if scenario == "b" {
				run = runOf("p", "b", "", held)
			}
			run.Manifest.Expect = []string{evidence.NoAcceptedLoss}
			run.Manifest.Seed, run.Judgement.Run = uint64(i), scenario+string(rune('0'+i))
			r.Runs = append(r.Runs, run)
		}
	}
	g := reports.Matrix(r, nil)
	if c := g.Rows[0].Cells[0]; c.Runs != 9 || c.Broken != 1 || c.State != reports.CellViolated || !strings.Contains(c.String(), "in 1 of 9 runs: a: order-1 is gone") {
		t.Errorf("the cell is %+v: %s", c, c)
	}
	for _, f := range reports.GridFormats() {
		var b strings.Builder
		if err := f.Write(&b, g); err != nil {
			t.Fatal(err)
		}
		text := strings.Join(strings.Fields(strings.NewReplacer("&#45;", "-", "&#40;", "(", "&#41;", ")").Replace(b.String())), " ")
		want := []string{"1 held claim rests on 4 runs: a failure in 53 % of runs or more is excluded", "no-accepted-loss in a on sys:p: broken in 1 of 5 runs, a rate between 0.51 % and 72 %"}
		if f.Name != "terminal" {
			want = append(want, "custody matrix sys --scenarios a,b", "v9.8.7")
		}
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("%s does not say %q:\n%s", f.Name, w, text)
			}
		}
	}
}
