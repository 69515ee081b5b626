package reports

import (
	_ "embed"
	"html/template"
	"io"
	"strings"
)

//go:embed grid.gohtml
var gridText string

// gridPage shares icons and style with the page of runs.
var gridPage = template.Must(template.Must(page.Clone()).New("grid").Parse(gridText))

// cellIcons are symbols of the page.
var cellIcons = map[State]string{
	CellViolated: "violated", CellUnmeasured: "unmeasured", CellInconclusive: "inconclusive", CellShown: "shown",
	CellHeld: "held", CellUnclaimed: "not-claimed", CellNotApplicable: "not-applicable",
}

// htmlOpen bounds the list of cells that did not hold.
const htmlOpen = 200

type gridView struct {
	Title, Lead, Date, Command, Corner string
	Custody                            string
	Proofs                             []string
	ProofsLeftOut                      int
	Grouped                            bool
	Counts                             []cellCount
	Spans                              []spanView
	Heads                              []headView
	Rows                               []gridRowView
	Legend                             []State
	Open                               []openView
	OpenLeftOut                        int
}

type cellCount struct {
	State State
	N     int
}

type spanView struct {
	Group string
	Width int
}

type headView struct {
	Name  string
	First bool // in its group
}

type gridRowView struct {
	GridRow
	Cells []gridCellView
}

type gridCellView struct {
	Cell
	First bool
	Tip   string
}

type openView struct {
	Row, Column string
	Cell        Cell
}

// WriteGridHTML writes one page without scripts or external resources.
func WriteGridHTML(w io.Writer, g Grid) error {
	return writePage(w, gridPage, gridViewOf(g))
}

func gridViewOf(g Grid) gridView {
	v := gridView{Title: g.Title, Lead: g.Lead, Date: g.Date, Command: g.Command, Corner: g.Corner, Grouped: g.grouped(), Custody: g.Custody}
	v.Proofs, v.ProofsLeftOut = bounded(g.Proofs, htmlNotes)
	counts := g.Counts()
	for _, s := range States() {
		if counts[s] > 0 {
			v.Counts = append(v.Counts, cellCount{s, counts[s]})
			v.Legend = append(v.Legend, s)
		}
	}
	first := map[int]bool{}
	if v.Grouped {
		for _, s := range g.spans() {
			v.Spans = append(v.Spans, spanView{s.group, s.to - s.from})
			first[s.from] = true
		}
	}
	for i, c := range g.Columns {
		v.Heads = append(v.Heads, headView{c.Name, first[i]})
	}
	for _, row := range g.Rows {
		shown := gridRowView{GridRow: row}
		for i, c := range row.Cells {
			column := strings.TrimSpace(g.Columns[i].Group + " " + g.Columns[i].Name)
			shown.Cells = append(shown.Cells, gridCellView{c, first[i], column + ": " + c.String()})
			switch c.State {
			case CellViolated, CellUnmeasured, CellInconclusive, CellShown:
				if len(v.Open) < htmlOpen {
					v.Open = append(v.Open, openView{row.Name, column, c})
				} else {
					v.OpenLeftOut++
				}
			}
		}
		v.Rows = append(v.Rows, shown)
	}
	return v
}
