package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/scenarios"
)

// showApplication says of each run of the application's group what it has shown.
// The error carries the exit code.
func showApplication(cmd *cobra.Command, format, dir string, outcomes []scenarios.Outcome) error {
	if format == "terminal" {
		format = "text"
	}
	shown := make([]scenarios.Showing, len(outcomes))
	codes := make([]int, len(outcomes))
	asRequired, inapplicable := 0, 0
	for i, o := range outcomes {
		shown[i] = scenarios.Show(o)
		codes[i] = shown[i].Exit
		switch codes[i] {
		case guarantees.ExitHeld:
			asRequired++
		case guarantees.ExitNone:
			inapplicable++
		}
	}
	if err := printAs(cmd.OutOrStdout(), format, shown, func(w io.Writer) {
		for _, s := range shown {
			sayShowing(w, s)
		}
		fmt.Fprintf(w, "%d of %d as they must be", asRequired, len(shown)-inapplicable)
		if inapplicable > 0 {
			fmt.Fprintf(w, ", %d not applicable", inapplicable)
		}
		fmt.Fprintln(w)
	}); err != nil {
		return err
	}
	fmt.Fprintln(cmd.ErrOrStderr(), "evidence in", dir)
	return exitOf(guarantees.CombineExits(codes))
}

// sayShowing prints one line; a variant is indented.
func sayShowing(w io.Writer, s scenarios.Showing) {
	name, text := s.Name, s.Text
	if s.Of != "" {
		name = "  " + name
	}
	if s.Breaks == "" || s.Result == guarantees.NotApplicable {
		text = s.Result.String() + ": " + text
	}
	fmt.Fprintf(w, "%-38s %s\n", name, text)
}
