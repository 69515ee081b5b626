package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/scenarios"
)

// runApplication runs the scenarios of the application's mechanisms and their
// variants.
func runApplication(cmd *cobra.Command, f runFlags, plan scenarios.Plan, names []string) error {
	format := f.format
	if format == "terminal" {
		format = "text"
	}
	if err := knownOutput(format); err != nil {
		return fmt.Errorf("--group %s: %w", scenarios.GroupApplication, err)
	}
	chosen, err := scenarios.ApplicationGroup(names...)
	if err != nil {
		return err
	}
	plan.Scenarios = chosen
	if plan.Dir, err = folderFor(f.out, ""); err != nil {
		return err
	}
	plan.Done = func(o scenarios.Outcome) {
		fmt.Fprintf(cmd.ErrOrStderr(), "%-36s %s\n", o.Name, verdictOfShowing(scenarios.Show(o)))
	}
	outcomes, err := plan.Run(cmd.Context())
	if err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	var shown []scenarios.Showing
	var codes []int
	asRequired, inapplicable := 0, 0
	for _, o := range outcomes {
		s := scenarios.Show(o)
		shown, codes = append(shown, s), append(codes, s.Exit)
		switch s.Exit {
		case guarantees.ExitHeld:
			asRequired++
		case guarantees.ExitNone:
			inapplicable++
		}
	}
	if err := printAs(cmd.OutOrStdout(), format, shown, func(w io.Writer) {
		for _, s := range shown {
			name := s.Name
			if s.Of != "" {
				name = "  " + name
			}
			fmt.Fprintf(w, "%-38s %s\n", name, verdictOfShowing(s))
		}
		fmt.Fprintf(w, "%d of %d as they must be", asRequired, len(shown)-inapplicable)
		if inapplicable > 0 {
			fmt.Fprintf(w, ", %d not applicable", inapplicable)
		}
		fmt.Fprintln(w)
	}); err != nil {
		return err
	}
	fmt.Fprintln(cmd.ErrOrStderr(), "evidence in", plan.Dir)
	return errors.Join(err, exitOf(guarantees.CombineExits(codes)))
}

// verdictOfShowing is one line.
func verdictOfShowing(s scenarios.Showing) string {
	if s.Breaks != "" {
		return s.Text
	}
	return s.Result.String() + ": " + s.Text
}
