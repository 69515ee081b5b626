package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/mattn/go-runewidth"

	"github.com/custodymq/custody/reports"
)

// narrowColumn is the minimum width of a column of sentences; in less space they
// go on the next line.
const narrowColumn = 30

// columns aligns tab-separated columns. On a terminal the last one is wrapped;
// elsewhere lines stay whole, for programs.
func columns(w io.Writer, indent string, lines []string) {
	width := 0
	if onTerminal(w) {
		width = reports.Width(w)
	}
	writeColumns(w, indent, lines, width)
}

// writeColumns is columns with a line width; 0 is unlimited.
func writeColumns(w io.Writer, indent string, lines []string, width int) {
	if width == 0 {
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, l := range lines {
			fmt.Fprintf(t, "%s%s\n", indent, l)
		}
		t.Flush()
		return
	}
	var widths []int // of all columns but the last
	for _, l := range lines {
		cells := strings.Split(l, "\t")
		for i, c := range cells[:len(cells)-1] {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], runewidth.StringWidth(c))
		}
	}
	for _, l := range lines {
		cells := strings.Split(l, "\t")
		lead, last := indent, len(cells)-1
		for i, c := range cells[:last] {
			lead += runewidth.FillRight(c, widths[i]) + "  "
		}
		if last == 0 { // keep it on one line: it may be copied, such as a line of a script
			fmt.Fprintln(w, indent+l)
			continue
		}
		margin := runewidth.StringWidth(lead)
		if width-margin < narrowColumn {
			for _, part := range reports.Wrap(strings.Join(cells[:last], "  "), width-len(indent)) {
				fmt.Fprintln(w, indent+part)
			}
			lead = indent + "    "
			margin = len(lead)
		}
		for _, part := range reports.Wrap(cells[last], width-margin) {
			fmt.Fprintln(w, lead+part)
			lead = strings.Repeat(" ", margin)
		}
	}
}

// sentence writes a sentence, wrapped on a terminal.
func sentence(w io.Writer, s string) {
	if !onTerminal(w) {
		fmt.Fprintln(w, s)
		return
	}
	for _, l := range reports.Wrap(s, reports.Width(w)) {
		fmt.Fprintln(w, l)
	}
}
