package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/reports"
	"github.com/custodymq/custody/scenarios"
)

func judgeCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "judge RUN…",
		Short: "Judge saved evidence again, without any broker",
		Long: `Judge saved evidence again and write its verdict.json anew. RUN is the folder of
a run, or a folder that holds several; it may have been moved, and made on
another machine or by an older Custody. No broker is needed: the verdict is
computed from the files alone, and is the same bytes for the same judge version.

Evidence that is not whole (a file was changed, cut, exchanged, added or removed
after the run ended, or the harness died in it) gives no verdict: it is said
which file and what, and the exit code is 3. A folder that cannot be written to
is judged all the same.

The exit code is that of all verdicts together; see custody --help.`,
		Example: `  custody judge custody-runs/20260102-150405/ack-lost
  custody judge custody-runs/20260102-150405 --format junit > junit.xml`,
		Args: atLeastOneRun,
		RunE: func(cmd *cobra.Command, args []string) error { return judge(cmd, args, format) },
	}
	cmd.Flags().StringVar(&format, "format", "terminal", "what is printed: terminal, json, junit, markdown or html")
	return cmd
}

func judge(cmd *cobra.Command, args []string, format string) error {
	f, err := findFormat(format)
	if err != nil {
		return err
	}
	dirs, err := runFolders(args)
	if err != nil {
		return err
	}
	var readable []string
	var codes []int
	judged := make(map[string]guarantees.Judgement)
	for _, dir := range dirs {
		j, err := scenarios.Judge(dir)
		if err != nil {
			fmt.Fprintf(cmd.ErrOrStderr(), "custody: judge %s: %s\n", dir, firstLine(err))
		}
		if err != nil && !errors.Is(err, scenarios.ErrNotSaved) {
			// Judge the remaining runs as well: a violation in one of them
			// counts.
			codes = append(codes, guarantees.ExitUnmeasured)
			continue
		}
		readable, codes = append(readable, dir), append(codes, j.Exit)
		judged[dir] = j
	}
	if len(readable) > 0 {
		report, err := reports.LoadJudged(readable, judged)
		if err == nil {
			_ = warn(cmd, report)
			err = f.Write(cmd.OutOrStdout(), report)
		}
		if err != nil {
			return unmeasured{err}
		}
	}
	return exitOf(guarantees.CombineExits(codes))
}
