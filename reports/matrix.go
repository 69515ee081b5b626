package reports

import (
	"fmt"
	"slices"
	"strings"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
)

// noFault is the column of runs without faults.
const noFault = "no fault"

// Matrix compares claims with evidence: a row per system, profile and version;
// a column per guarantee under each set of fault classes that fired. link
// returns the address of a run's page; nil if there are none.
func Matrix(r Report, link func(Run) string) Grid {
	m := matrix{link: link, column: map[Column]int{}, row: map[string]int{}, seen: map[string]map[string]bool{}}
	m.layOut(r)
	for _, run := range r.Runs {
		m.add(run)
	}
	g := m.grid
	g.Title, g.Command, g.Custody = r.title(), r.Command, r.Custody
	g.prove(r)
	g.Lead = "What each profile promises, set against what its runs have shown, by the faults that fired."
	g.Corner = "System and profile"
	for _, run := range r.Runs {
		g.made(run)
	}
	return g
}

type matrix struct {
	grid   Grid
	link   func(Run) string
	column map[Column]int
	row    map[string]int
	seen   map[string]map[string]bool // guarantee → classes
}

// layOut determines the columns: guarantees and fault classes in list order, as
// far as any run shows them.
func (m *matrix) layOut(r Report) {
	found := map[Column]bool{}
	for _, run := range r.Runs {
		for _, c := range cellsOf(run) {
			found[c.column] = true
		}
	}
	for c := range found {
		m.grid.Columns = append(m.grid.Columns, c)
	}
	rank := map[string]int{}
	for i, g := range guarantees.Guarantees() {
		rank[g.Name] = i
	}
	class := map[string]int{noFault: -1}
	for i, c := range evidence.Classes() {
		class[string(c)] = i
	}
	order := func(name string) int { // combinations last
		if i, ok := class[name]; ok {
			return i
		}
		return len(class)
	}
	slices.SortFunc(m.grid.Columns, func(a, b Column) int {
		if d := rank[a.Group] - rank[b.Group]; d != 0 {
			return d
		}
		if d := order(a.Name) - order(b.Name); d != 0 {
			return d
		}
		return strings.Compare(a.Name, b.Name)
	})
	for i, c := range m.grid.Columns {
		m.column[c] = i
	}
}

func (m *matrix) add(run Run) {
	facts := versionsOf(run)
	key := run.target() + "\x00" + facts
	at, ok := m.row[key]
	if !ok {
		at = len(m.grid.Rows)
		m.row[key] = at
		m.grid.Rows = append(m.grid.Rows, GridRow{Name: run.target(), Text: run.Manifest.Profile.Summary, Facts: facts, Cells: make([]Cell, len(m.grid.Columns))})
	}
	for _, c := range cellsOf(run) {
		m.grid.Rows[at].Cells[m.column[c.column]].add(c.state, run.Judgement.Scenario+": "+c.why, run, m.link)
	}
}

func versionsOf(run Run) string {
	var all []string
	for _, name := range sortedKeys(run.Manifest.Versions) {
		if name != "go" && name != "custody" { // versions of the harness
			all = append(all, name+" "+run.Manifest.Versions[name])
		}
	}
	return strings.Join(all, ", ")
}

// shown is one run's contribution to one column.
type shown struct {
	column Column
	state  State
	why    string
}

func cellsOf(run Run) []shown {
	j := run.Judgement
	if j.Outcome == guarantees.NotApplicable {
		return everyExpected(run, CellNotApplicable, run.why())
	}
	if run.Status() == StatusUnmeasured {
		return everyExpected(run, CellUnmeasured, run.why())
	}
	fired := firedClasses(j)
	var all []shown
	for _, v := range j.Verdicts {
		s, why := stateOf(v), v.Why
		if loss := unconfirmed(v); s == "" && loss != "" {
			s, why = CellShown, loss
		}
		if s != "" {
			all = append(all, shown{Column{v.Guarantee, fired}, s, why})
		}
	}
	return all
}

// stateOf returns the state of a verdict. An unclaimed verdict that is neither
// held nor violated has none.
func stateOf(v guarantees.Verdict) State {
	claimed := v.Counts() // takes part in the outcome
	switch {
	case v.Outcome == guarantees.Violated && claimed:
		return CellViolated
	case v.Outcome == guarantees.Violated:
		return CellShown
	case v.Outcome == guarantees.Held && claimed:
		return CellHeld
	case v.Outcome == guarantees.Held:
		return CellUnclaimed
	case v.Outcome == guarantees.Inconclusive && claimed:
		return CellInconclusive
	}
	return ""
}

// unconfirmed describes a verdict about messages that nobody accepted, such as
// the loss of a fire-and-forget publish.
func unconfirmed(v guarantees.Verdict) string {
	for _, f := range v.Findings {
		if f.Unconfirmed {
			return f.Text
		}
	}
	return ""
}

// everyExpected assigns one state to all guarantees that a run expected, under
// its intended faults.
func everyExpected(run Run, s State, why string) []shown {
	var classes []evidence.Class
	for _, f := range run.Manifest.Faults {
		classes = append(classes, f.Class)
	}
	name := classesName(classes)
	var all []shown
	for _, g := range run.Manifest.Expect {
		all = append(all, shown{Column{g, name}, s, why})
	}
	return all
}

func firedClasses(j guarantees.Judgement) string {
	var classes []evidence.Class
	for _, f := range j.Faults {
		if f.Fired > 0 {
			classes = append(classes, f.Class)
		}
	}
	return classesName(classes)
}

func classesName(classes []evidence.Class) string {
	var names []string
	for _, c := range classes {
		if c != "" && !slices.Contains(names, string(c)) {
			names = append(names, string(c))
		}
	}
	if names == nil {
		return noFault
	}
	slices.Sort(names)
	return strings.Join(names, " + ")
}

// SweepCell is one run of a sweep, or why there is none.
type SweepCell struct {
	Row, Column string
	Run         *Run // nil: not applicable
}

// SweepGrid builds the grid of a sweep, with rows and columns in the order of
// the cells.
func SweepGrid(title, command string, cells []SweepCell, link func(Run) string) Grid {
	g := Grid{Title: title, Command: command, Corner: "Hand-over", Lead: "Every hand-over of a message, struck by every fault that applies, one run each."}
	rows, columns := map[string]int{}, map[string]int{}
	for _, c := range cells {
		if _, ok := columns[c.Column]; !ok {
			columns[c.Column] = len(g.Columns)
			g.Columns = append(g.Columns, Column{Name: c.Column})
		}
		if _, ok := rows[c.Row]; !ok {
			rows[c.Row] = len(g.Rows)
			g.Rows = append(g.Rows, GridRow{Name: c.Row})
		}
	}
	for i := range g.Rows {
		g.Rows[i].Cells = make([]Cell, len(g.Columns))
	}
	for _, c := range cells {
		if c.Run == nil {
			continue
		}
		g.made(*c.Run)
		g.Rows[rows[c.Row]].Cells[columns[c.Column]].add(stateOfRun(*c.Run), c.Run.why(), *c.Run, link)
	}
	return g
}

// stateOfRun returns the state of a run as a whole.
func stateOfRun(r Run) State {
	switch r.Status() {
	case StatusViolated:
		return CellViolated
	case StatusUnmeasured:
		return CellUnmeasured
	case StatusHeld:
		return CellHeld
	case StatusNotApplicable:
		return CellNotApplicable
	case StatusNotClaimed:
		if len(r.Judgement.Anomalies) > 0 {
			return CellShown
		}
		return CellUnclaimed
	}
	return CellInconclusive
}

// String describes the cell in words.
func (c Cell) String() string {
	words := c.State.words()
	switch {
	case c.Broken > 0:
		words += fmt.Sprintf(" in %d of %s", c.Broken, plural(c.Runs, "run"))
	case c.Runs > 1:
		words += " in " + plural(c.Runs, "run")
	}
	if c.Why == "" {
		return words
	}
	return words + ": " + c.Why
}
