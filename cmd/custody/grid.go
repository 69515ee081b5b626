package main

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/custodymq/custody/reports"
	"github.com/custodymq/custody/scenarios"
)

func findGridFormat(name string) (reports.GridFormat, error) {
	return named("format", name, reports.GridFormats(), func(f reports.GridFormat) string { return f.Name })
}

// endings are the file extensions of a grid, by format.
var endings = map[string]string{"html": ".html", "markdown": ".md", "json": ".json"}

// showGrid writes the grid's files to dir and prints it.
func showGrid(cmd *cobra.Command, g reports.Grid, dir, name string, format reports.GridFormat) error {
	for _, f := range reports.GridFormats() {
		if ending, ok := endings[f.Name]; ok {
			if err := writeWhole(filepath.Join(dir, name+ending), func(w io.Writer) error { return f.Write(w, g) }); err != nil {
				return unmeasured{fmt.Errorf("write the grid: %w", err)}
			}
		}
	}
	if err := format.Write(cmd.OutOrStdout(), g); err != nil {
		return unmeasured{fmt.Errorf("write the grid: %w", err)}
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "as a page: %s; the evidence: %s\n", filepath.Join(dir, name+".html"), dir)
	return nil
}

// pageOf returns the page beside a run, relative to a grid's page in dir.
func pageOf(dir string) func(reports.Run) string {
	return func(r reports.Run) string {
		below, err := filepath.Rel(dir, filepath.Dir(r.Dir))
		if err != nil {
			return ""
		}
		return filepath.ToSlash(filepath.Join(below, runsPage))
	}
}

const runsPage = "report.html"

// loadRuns loads the runs of the outcomes and writes a page about them beside
// them.
func loadRuns(say io.Writer, dir string, outcomes []scenarios.Outcome) (reports.Report, error) {
	report, err := loadOutcomes(say, outcomes)
	if err != nil {
		return report, err
	}
	if err := writeWhole(filepath.Join(dir, runsPage), func(w io.Writer) error { return reports.WriteHTML(w, report) }); err != nil {
		return report, unmeasured{fmt.Errorf("write the page of the runs: %w", err)}
	}
	return report, nil
}
