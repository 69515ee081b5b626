package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/custodymq/custody/script"
)

// mistaken tells of a mistake in the call on one line, with the help that fits.
func mistaken(w io.Writer, cmd *cobra.Command, err error) {
	fmt.Fprintf(w, "custody: %s (see %s --help)\n", firstLine(err), cmd.CommandPath())
}

// unknownCommand is an error that names what was probably meant; nil without arguments.
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

// unknownFlag names the flag that was probably meant.
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

// knownDefect is an error unless the defect can be switched on in the system.
func knownDefect(defect, system string) error {
	if defect == "" {
		return nil
	}
	var names []string
	for _, d := range seededIn(system) {
		switch {
		case d.Name == defect && d.NotBuilt != "":
			return fmt.Errorf("the defect %s cannot be switched on: %s", defect, d.NotBuilt)
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

// inOrder is the mistakes in flags that several commands share: nothing can be
// resumed but what was named, and nobody's evidence is added to.
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

// named twice: each would want the same folder.
func twice(names []string) error {
	seen := map[string]bool{}
	for _, n := range names {
		if seen[n] {
			return fmt.Errorf("%s is named twice; --repeat 2 runs each scenario twice", n)
		}
		seen[n] = true
	}
	return nil
}
