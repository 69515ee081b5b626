package reports

import (
	"encoding/json"
	"fmt"
	"io"
)

// ReadGrid reads a grid written as JSON. source names it in errors.
func ReadGrid(r io.Reader, source string) (Grid, error) {
	var g Grid
	if err := json.NewDecoder(r).Decode(&g); err != nil {
		return Grid{}, fmt.Errorf("%s is not a matrix or sweep in JSON: %w", source, err)
	}
	for _, row := range g.Rows {
		if row.Absent == "" && len(row.Cells) != len(g.Columns) {
			return Grid{}, fmt.Errorf("%s: row %q has %d cells, and there are %d columns: write it anew", source, row.Name, len(row.Cells), len(g.Columns))
		}
	}
	return g, nil
}

// CellDifference is one cell that differs between two grids.
type CellDifference struct {
	Row    string `json:"row"`
	Column Column `json:"column,omitzero"` // zero: the row as a whole
	A      string `json:"a"`
	B      string `json:"b"`
	// Claimed reports that a claim is involved. Unclaimed behaviour may vary
	// from run to run.
	Claimed bool `json:"claimed"`
}

// String returns one sentence.
func (d CellDifference) String() string {
	where := d.Row
	if d.Column != (Column{}) {
		where += ", " + joined(d.Column.Group, d.Column.Name)
	}
	return Visible(fmt.Sprintf("%s: was %s and is %s", where, d.A, d.B))
}

func joined(group, name string) string {
	if group == "" {
		return name
	}
	return group + " (" + name + ")"
}

// CompareGrids lists the cells of b whose state differs from a's, by the names
// of row and column, in the order of a and then b. Reasons and deciding runs
// are not compared.
func CompareGrids(a, b Grid) []CellDifference {
	diffs := []CellDifference{}
	left, right := rowsByName(a), rowsByName(b)
	for _, row := range a.Rows {
		diffs = append(diffs, compareRows(row.Name, left[row.Name], right[row.Name])...)
	}
	for _, row := range b.Rows {
		if _, known := left[row.Name]; !known {
			diffs = append(diffs, CellDifference{Row: row.Name, A: "not there", B: "there", Claimed: true})
		}
	}
	return diffs
}

type rowStates struct {
	columns []Column
	states  map[Column]State
}

func rowsByName(g Grid) map[string]*rowStates {
	rows := map[string]*rowStates{}
	for _, row := range g.Rows {
		states := map[Column]State{}
		for i, cell := range row.Cells {
			states[g.Columns[i]] = cell.State
		}
		rows[row.Name] = &rowStates{g.Columns, states}
	}
	return rows
}

func compareRows(name string, a, b *rowStates) []CellDifference {
	if b == nil {
		return []CellDifference{{Row: name, A: "there", B: "not there", Claimed: true}}
	}
	var diffs []CellDifference
	compare := func(c Column) {
		if l, r := a.states[c], b.states[c]; l != r {
			diffs = append(diffs, CellDifference{Row: name, Column: c, A: l.words(), B: r.words(), Claimed: l.claimed() || r.claimed()})
		}
	}
	for _, c := range a.columns {
		compare(c)
	}
	for _, c := range b.columns {
		if _, both := a.states[c]; !both {
			compare(c)
		}
	}
	return diffs
}
