package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/reports"
)

func diffCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "diff BEFORE AFTER",
		Short: "Compare the verdicts of two runs, or two folders of runs",
		Long: `Compare the verdicts of two runs, or of two folders of runs: of two days, two
versions of a system, two settings. Counts, times and event numbers are not
compared, for on a real system scheduling is not repeatable.

Two files in JSON, each the matrix.json of a matrix or the sweep.json of a sweep,
are compared cell by cell. What nobody promised is listed, and decides nothing.

The verdicts are computed from the evidence; a saved verdict.json is not read.

Exit codes: 0 no verdict differs · 1 some do · 3 evidence cannot be read, is
damaged or has no end.`,
		Example: `  custody diff custody-runs/20260102-150405 custody-runs/20260103-101500
  custody diff before/ack-lost after/ack-lost --format json
  custody diff matrix-1/matrix.json matrix-2/matrix.json`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if strings.HasSuffix(args[0], ".json") && strings.HasSuffix(args[1], ".json") {
				return diffGrids(cmd, format, args)
			}
			var sides [2]reports.Report
			for i, arg := range args {
				dirs, err := runFolders([]string{arg})
				if err != nil {
					return err
				}
				if sides[i], err = reports.Load(dirs); err != nil {
					return unmeasured{err}
				}
			}
			diffs := reports.Compare(sides[0], sides[1])
			versions := reports.CompareVersions(sides[0], sides[1])
			err := printAs(cmd.OutOrStdout(), format, struct {
				Versions []string             `json:"versions"`
				Verdicts []reports.Difference `json:"verdicts"`
			}{versions, diffs}, func(w io.Writer) {
				for _, v := range versions {
					fmt.Fprintln(w, v)
				}
				for _, d := range diffs {
					fmt.Fprintln(w, d)
				}
				fmt.Fprintf(w, "%d and %d runs, %d verdicts differ\n", len(sides[0].Runs), len(sides[1].Runs), len(diffs))
			})
			if err != nil {
				return err
			}
			if err := errors.Join(warn(cmd, sides[0]), warn(cmd, sides[1])); err != nil {
				return err // the damage may be the difference
			}
			if len(diffs) > 0 {
				return exit(guarantees.ExitViolated)
			}
			return nil
		},
	}
	textOrJSON(cmd, &format)
	return cmd
}

// maxGrid bounds the file of a matrix or sweep, in bytes.
const maxGrid = 8 << 20

// diffGrids compares two matrices or sweeps cell by cell.
func diffGrids(cmd *cobra.Command, format string, files []string) error {
	var sides [2]reports.Grid
	for i, name := range files {
		b, err := evidence.ReadRegular(name, maxGrid)
		if err != nil {
			return unmeasured{err}
		}
		if sides[i], err = reports.ReadGrid(bytes.NewReader(b), name); err != nil {
			return unmeasured{err}
		}
	}
	diffs := reports.CompareGrids(sides[0], sides[1])
	claimed := 0
	for _, d := range diffs {
		if d.Claimed {
			claimed++
		}
	}
	err := printAs(cmd.OutOrStdout(), format, struct {
		Cells []reports.CellDifference `json:"cells"`
	}{diffs}, func(w io.Writer) {
		for _, d := range diffs {
			fmt.Fprintln(w, d)
		}
		fmt.Fprintf(w, "%d and %d rows, %d cells differ, %d of them about claims\n", len(sides[0].Rows), len(sides[1].Rows), len(diffs), claimed)
	})
	if err != nil {
		return err
	}
	if claimed > 0 {
		return exit(guarantees.ExitViolated)
	}
	return nil
}
