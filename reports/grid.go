package reports

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Grid is a table of the results of many runs: a matrix of systems and
// guarantees, or a sweep of hand-overs and faults.
type Grid struct {
	Title   string    `json:"title"`
	Lead    string    `json:"lead"` // what it shows, in one sentence
	Command string    `json:"command,omitempty"`
	Date    string    `json:"date,omitempty"`    // of the first run
	Corner  string    `json:"corner"`            // heading of the row names
	Custody string    `json:"custody,omitempty"` // version that made it
	Proofs  []string  `json:"proofs,omitempty"`  // what all runs prove together
	Columns []Column  `json:"columns"`
	Rows    []GridRow `json:"rows"`
}

// Column of a grid. Columns of a group are adjacent.
type Column struct {
	Group string `json:"group,omitempty"`
	Name  string `json:"name"`
}

// GridRow has a cell for every column.
type GridRow struct {
	Name   string `json:"name"`
	Text   string `json:"text,omitempty"` // one line of explanation
	Facts  string `json:"facts,omitempty"`
	Cells  []Cell `json:"cells,omitempty"`
	Absent string `json:"absent,omitempty"` // why there are no runs and hence no cells
}

// Cell is the result of one row's runs for one column.
type Cell struct {
	State  State  `json:"state,omitempty"` // empty: nothing was tested
	Why    string `json:"why,omitempty"`
	Run    string `json:"run,omitempty"`    // evidence directory of the deciding run
	Link   string `json:"link,omitempty"`   // page of that run
	Runs   int    `json:"runs,omitempty"`   // that tested it, of all scenarios
	Broken int    `json:"broken,omitempty"` // that violated it
}

// State is the state of a cell. A claim is what the profile promises under the
// faults that fired.
type State string

const (
	CellViolated      State = "claimed-violated"
	CellUnmeasured    State = "unmeasured"
	CellInconclusive  State = "inconclusive"
	CellShown         State = "unclaimed-violated" // not promised, and seen broken
	CellHeld          State = "claimed-held"
	CellUnclaimed     State = "unclaimed-held"
	CellNotApplicable State = "not-applicable"
)

// States lists the states in order of precedence in a cell: one run that
// breaks a claim outweighs ten that hold.
func States() []State {
	return []State{CellViolated, CellUnmeasured, CellInconclusive, CellShown, CellHeld, CellUnclaimed, CellNotApplicable}
}

var cellStates = map[State]struct {
	mark, emoji, words string
	status             Status // whose colour it is shown in
}{
	CellViolated:      {"✗", "❌", "claimed and violated", StatusViolated},
	CellUnmeasured:    {"!", "💥", "could not be measured", StatusUnmeasured},
	CellInconclusive:  {"?", "❔", "inconclusive", StatusInconclusive},
	CellShown:         {"×", "🔸", "not claimed, and shown violated", StatusNotClaimed},
	CellHeld:          {"✓", "✅", "claimed and held", StatusHeld},
	CellUnclaimed:     {"○", "⚪", "not claimed, yet held", StatusNotClaimed},
	CellNotApplicable: {"–", "➖", "not applicable", StatusNotApplicable},
}

func (s State) words() string {
	if s == "" {
		return "not exercised"
	}
	return cellStates[s].words
}

// claimed reports whether the state concerns a claim, or prevents one from
// being judged.
func (s State) claimed() bool {
	switch s {
	case CellViolated, CellHeld, CellInconclusive, CellUnmeasured:
		return true
	}
	return false
}

// worse reports whether s takes precedence over t.
func (s State) worse(t State) bool {
	if t == "" || s == "" {
		return t == "" && s != ""
	}
	return slices.Index(States(), s) < slices.Index(States(), t)
}

// add adds the result of one run. link returns the address of the run's page;
// nil if there are no pages.
func (c *Cell) add(s State, why string, run Run, link func(Run) string) {
	switch s {
	case CellViolated, CellShown:
		c.Broken++
		c.Runs++
	case CellHeld, CellUnclaimed:
		c.Runs++
	}
	if !s.worse(c.State) {
		return
	}
	c.State, c.Why, c.Run, c.Link = s, why, run.Dir, ""
	if link != nil {
		c.Link = link(run)
	}
}

// made records the date of a run.
func (g *Grid) made(run Run) {
	if day := run.Manifest.StartedAt.UTC().Format("2006-01-02"); g.Date == "" || day < g.Date {
		g.Date = day
	}
}

// Counts counts the cells by state.
func (g Grid) Counts() map[State]int {
	n := map[State]int{}
	for _, row := range g.Rows {
		for _, c := range row.Cells {
			if c.State != "" {
				n[c.State]++
			}
		}
	}
	return n
}

func (g Grid) headline() string {
	n := g.Counts()
	var parts []string
	for _, s := range States() {
		if n[s] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n[s], s.words()))
		}
	}
	if parts == nil {
		return "no runs"
	}
	return strings.Join(parts, " · ")
}

// span is the range of columns of one group.
type span struct {
	group    string
	from, to int
}

func (g Grid) spans() []span {
	var all []span
	for i, c := range g.Columns {
		if n := len(all); n > 0 && all[n-1].group == c.Group {
			all[n-1].to = i + 1
			continue
		}
		all = append(all, span{c.Group, i, i + 1})
	}
	return all
}

// condensed is a group's part of a row in words: its columns by state.
type condensed struct {
	state   State
	columns []string
	all     bool // every tested column of the group
}

func (g Grid) condense(row GridRow, s span) []condensed {
	of, tried := map[State][]string{}, 0
	for i := s.from; i < s.to && i < len(row.Cells); i++ {
		if st := row.Cells[i].State; st != "" {
			of[st] = append(of[st], g.Columns[i].Name)
			tried++
		}
	}
	var parts []condensed
	for _, st := range States() {
		if names := of[st]; names != nil {
			parts = append(parts, condensed{st, names, len(names) == tried})
		}
	}
	return parts
}

// GridFormat is one rendering of a grid.
type GridFormat struct {
	Name  string // on the command line
	Write func(w io.Writer, g Grid) error
}

// GridFormats is the list of renderings.
func GridFormats() []GridFormat {
	return []GridFormat{
		{"terminal", WriteGridTerminal},
		{"markdown", WriteGridMarkdown},
		{"html", WriteGridHTML},
		{"json", WriteGridJSON},
	}
}

// WriteGridJSON writes the grid unchanged.
func WriteGridJSON(w io.Writer, g Grid) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(g); err != nil {
		return fmt.Errorf("reports: json of a grid: %w", err)
	}
	return nil
}

// WriteGridTerminal lists each row: groups in words, ungrouped columns as
// numbered marks.
func WriteGridTerminal(w io.Writer, g Grid) error {
	t := &terminal{paint: onTerminal(w), columns: columnsFor(Width(w))}
	t.line("%s", t.bold(Visible(g.Title)))
	t.line("%s", t.faint(Visible(g.Lead)))
	if g.grouped() {
		t.gridGroups(g)
	} else {
		t.gridMarks(g)
	}
	t.line("")
	proofs, left := bounded(g.Proofs, terminalTrials)
	for _, p := range proofs {
		t.text("", p)
	}
	if left > 0 {
		t.line("… and %s in the JSON", plural(left, "more rate"))
	}
	t.text("", g.headline())
	_, err := w.Write(t.out.Bytes())
	return err
}

func (g Grid) grouped() bool {
	return slices.ContainsFunc(g.Columns, func(c Column) bool { return c.Group != "" })
}

func (t *terminal) gridGroups(g Grid) {
	for _, row := range g.Rows {
		t.line("")
		t.line("%s  %s", t.bold(Visible(row.Name)), t.faint(Visible(row.Facts)))
		if row.Absent != "" {
			t.line("  %s", Visible(row.Absent))
		}
		for _, s := range g.spans() {
			for i, part := range g.condense(row, s) {
				name := ""
				if i == 0 {
					name = s.group
				}
				st := cellStates[part.state]
				t.line("  %s %s %s", cell(name, 26), t.status(st.status, cell(st.mark+" "+st.words, 34)), Visible(strings.Join(part.columns, ", ")))
			}
		}
	}
}

func (t *terminal) gridMarks(g Grid) {
	wide := len(g.Corner)
	for _, row := range g.Rows {
		wide = max(wide, len(row.Name))
	}
	t.line("")
	head := cell(g.Corner, wide)
	for i := range g.Columns {
		head += right(fmt.Sprint(i+1), 3)
	}
	t.line("%s", t.faint(head))
	for _, row := range g.Rows {
		line := cell(Visible(row.Name), wide)
		for _, c := range row.Cells {
			mark := "  ·"
			if c.State != "" {
				mark = "  " + t.status(cellStates[c.State].status, cellStates[c.State].mark)
			}
			line += mark
		}
		t.line("%s", line+"  "+Visible(row.Absent))
	}
	t.line("")
	for i, c := range g.Columns {
		t.line("%s  %s", right(fmt.Sprint(i+1), 3), Visible(c.Name))
	}
	for _, row := range g.Rows {
		for i, c := range row.Cells {
			if c.State == CellViolated || c.State == CellUnmeasured || c.State == CellInconclusive {
				t.line("")
				t.line("%s × %s: %s", t.bold(Visible(row.Name)), Visible(g.Columns[i].Name), t.status(cellStates[c.State].status, c.State.words()))
				t.text("  ", c.Why)
				t.line("  %s", t.faint("evidence "+Visible(c.Run)))
			}
		}
	}
}

// WriteGridMarkdown has a column per group, or per column without groups, and a
// legend of its marks.
func WriteGridMarkdown(w io.Writer, g Grid) error {
	var b strings.Builder
	spans := g.spans()
	if !g.grouped() {
		spans = spans[:0]
		for i, c := range g.Columns {
			spans = append(spans, span{c.Name, i, i + 1})
		}
	}
	fmt.Fprintf(&b, "| %s |", md(g.Corner))
	for _, s := range spans {
		fmt.Fprintf(&b, " %s |", md(s.group))
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(spans)) + "\n")
	used := map[State]bool{}
	for _, row := range g.Rows {
		fmt.Fprintf(&b, "| **%s**", md(row.Name))
		if row.Facts != "" {
			fmt.Fprintf(&b, "<br>%s", md(row.Facts))
		}
		b.WriteString(" |")
		if row.Absent != "" {
			fmt.Fprintf(&b, " %s |%s\n", md(row.Absent), strings.Repeat(" |", len(spans)-1))
			continue
		}
		for _, s := range spans {
			var parts []string
			for _, p := range g.condense(row, s) {
				used[p.state] = true
				text := cellStates[p.state].emoji
				if !p.all {
					text += " " + md(strings.Join(p.columns, ", "))
				}
				parts = append(parts, text)
			}
			fmt.Fprintf(&b, " %s |", strings.Join(parts, "<br>"))
		}
		b.WriteString("\n")
	}
	var legend []string
	for _, s := range States() {
		if used[s] {
			legend = append(legend, cellStates[s].emoji+" "+s.words())
		}
	}
	fmt.Fprintf(&b, "\n%s. Empty: not exercised.\n", strings.Join(legend, " · "))
	if g.Date != "" {
		fmt.Fprintf(&b, "\nMeasured %s", md(g.Date))
		if g.Custody != "" {
			fmt.Fprintf(&b, " by Custody %s", md(g.Custody))
		}
		if g.Command != "" {
			fmt.Fprintf(&b, " with %s", mdCode(g.Command))
		}
		b.WriteString(".\n")
	}
	for _, p := range g.Proofs[:min(len(g.Proofs), markdownFindings)] {
		fmt.Fprintf(&b, "\n%s.\n", md(p))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Only returns the columns of one group, without its name.
func (g Grid) Only(group string) Grid {
	var kept []int
	only := g
	only.Columns, only.Proofs = nil, nil // these cover all groups
	for i, c := range g.Columns {
		if c.Group == group {
			kept = append(kept, i)
			only.Columns = append(only.Columns, Column{Name: c.Name})
		}
	}
	only.Rows = slices.Clone(g.Rows)
	for r := range only.Rows {
		row := &only.Rows[r]
		cells := make([]Cell, 0, len(kept))
		for _, i := range kept {
			if i < len(row.Cells) {
				cells = append(cells, row.Cells[i])
			}
		}
		row.Cells = cells
	}
	return only
}

// Plain returns the grid without reasons, directories and links, for documents
// that must not depend on the machine.
func (g Grid) Plain() Grid {
	g.Rows = slices.Clone(g.Rows)
	for r := range g.Rows {
		cells := slices.Clone(g.Rows[r].Cells)
		for i := range cells {
			cells[i] = Cell{State: cells[i].State}
		}
		g.Rows[r].Cells = cells
	}
	return g
}
