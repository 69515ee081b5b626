package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/custodymq/custody/script"
)

// mistaken prints a usage error on one line, with the matching help.
func mistaken(w io.Writer, cmd *cobra.Command, err error) {
	fmt.Fprintf(w, "custody: %s (see %s --help)\n", firstLine(err), cmd.CommandPath())
}

// unknownCommand suggests what was probably meant; nil without arguments.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return fmt.Errorf("unknown command %q%s", args[0], script.Suggest(args[0], names))
}

// unknownFlag suggests the flag that was probably meant.
func unknownFlag(cmd *cobra.Command, err error) error {
	var missing *pflag.NotExistError
	if !errors.As(err, &missing) || missing.GetSpecifiedShortnames() != "" {
		return err
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	if near := script.Nearest(missing.GetSpecifiedName(), names); near != "" {
		return fmt.Errorf("%w; did you mean --%s?", err, near)
	}
	return err
}

// knownDefect fails unless the system has the defect.
func knownDefect(defect, system string) error {
	if defect == "" {
		return nil
	}
	var names []string
	for _, d := range seededIn(system) {
		switch {
		case d.Name == defect && d.NotBuilt != "":
			return fmt.Errorf("the defect %s cannot be enabled: %s", defect, d.NotBuilt)
		case d.Name == defect:
			return nil
		case d.NotBuilt == "":
			names = append(names, d.Name)
		}
	}
	for _, d := range seededIn(referenceBroker) {
		if d.Name == defect {
			return fmt.Errorf("%s is a defect of the reference broker, %s, and %s has none of it; custody defects --list --system %s shows what it has", defect, referenceBroker, system, system)
		}
	}
	if near := script.Nearest(defect, names); near != "" {
		return fmt.Errorf("%s has no seeded defect %q; did you mean %s?", system, defect, near)
	}
	return fmt.Errorf("%s has no seeded defect %q; custody defects --list --system %s shows them", system, defect, system)
}

// inOrder reports usage errors in flags that several commands share: only a named
// directory can be resumed, and nothing is added to existing evidence.
func inOrder(out string, resume bool, taken func() (string, error)) error {
	if resume && out == "" {
		return errors.New("--resume goes on in a folder: name it with --out")
	}
	if resume {
		return nil
	}
	held, err := taken()
	if err != nil {
		return unmeasured{err}
	}
	if held != "" {
		return fmt.Errorf("%s holds a run already: give another --out, or --resume to keep what is whole and make the rest", held)
	}
	return nil
}
