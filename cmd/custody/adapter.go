package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/reports"
	"github.com/custodymq/custody/systems/adapter"
	"github.com/custodymq/custody/systems/conformance"
)

func adapterCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "adapter",
		Short: "Write and check an adapter in any language",
		Long: `An adapter puts a system under test that Custody does not know. It is a program
in any language that speaks JSON lines on standard input and output:
docs/adapters.md describes it. A checked adapter runs the checklist by

  custody run --adapter "python3 adapter.py"`,
		Example: `  custody adapter new --lang python my-adapter
  custody adapter check python3 my-adapter/adapter.py`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := unknownCommand(cmd, args); err != nil {
				return err
			}
			return cmd.Help()
		},
		Args: cobra.ArbitraryArgs,
	}
	cmd.AddCommand(adapterCheckCommand(), adapterNewCommand(), adapterSchemaCommand())
	return cmd
}

func adapterCheckCommand() *cobra.Command {
	var within time.Duration
	cmd := &cobra.Command{
		Use:   "check COMMAND…",
		Short: "Say what is wrong with an adapter",
		Long: `Start an adapter, speak with it and check that it does what an adapter must,
before a verdict about its system means anything.

Exit codes: 0 it conforms · 1 it does not · 3 it could not be run · 64 usage.`,
		Example: `  custody adapter check python3 adapter.py
  custody adapter check --within 20s "java -jar adapter.jar"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || within <= 0 {
				return errors.New("give the adapter's command, as in custody adapter check python3 adapter.py; --within is positive")
			}
			command := args[0]
			if len(args) > 1 {
				command = reports.ShellLine(args)
			}
			return checkAdapter(cmd, command, within)
		},
	}
	cmd.Flags().DurationVar(&within, "within", 10*time.Second, "how long an answer may take")
	cmd.Flags().SetInterspersed(false) // the rest is the adapter's
	return cmd
}

func checkAdapter(cmd *cobra.Command, command string, within time.Duration) error {
	out := cmd.OutOrStdout()
	profile, met, skipped, wrong := "", 0, 0, 0
	said := map[string]bool{} // one fault breaks many obligations
	err := adapter.Check(cmd.Context(), command, within, func(of string, f conformance.Finding) {
		if of != profile {
			profile = of
			fmt.Fprintf(out, "profile %s\n", of)
		}
		switch {
		case len(f.Wrong) > 0:
			wrong++
			fmt.Fprintf(out, "  WRONG  %s\n", f.Obligation)
			for _, w := range f.Wrong {
				if said[w] {
					w = "as above"
				}
				said[w] = true
				sayWrong(out, w)
			}
		case f.Skipped != "":
			skipped++
			fmt.Fprintf(out, "  -      %s: %s\n", f.Obligation, f.Skipped)
		default:
			met++
			fmt.Fprintf(out, "  ok     %s\n", f.Obligation)
		}
	})
	if err != nil {
		return unmeasured{err}
	}
	fmt.Fprintf(out, "%d met, %d do not apply, %d wrong\n", met, skipped, wrong)
	if wrong > 0 {
		return exit(guarantees.ExitViolated)
	}
	fmt.Fprintf(out, "it conforms; run the checklist: custody run --adapter %s\n", reports.ShellLine([]string{command}))
	return nil
}

func sayWrong(w io.Writer, text string) {
	for line := range strings.Lines(text) {
		fmt.Fprintf(w, "           %s\n", strings.TrimSpace(line))
	}
}

func adapterNewCommand() *cobra.Command {
	var language string
	cmd := &cobra.Command{
		Use:   "new --lang LANGUAGE FOLDER",
		Short: "Write the skeleton of an adapter: a queue in memory that conforms",
		Example: `  custody adapter new --lang python my-adapter
  custody adapter new --lang node my-adapter-in-node`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 || language == "" {
				return fmt.Errorf("give a language (%s) and a folder, as in custody adapter new --lang python my-adapter", strings.Join(adapter.Languages(), ", "))
			}
			return adapter.New(language, args[0])
		},
	}
	cmd.Flags().StringVar(&language, "lang", "", strings.Join(adapter.Languages(), ", "))
	return cmd
}

func adapterSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "schema",
		Short:   "Print the JSON Schema of an adapter's lines",
		Example: `  custody adapter schema > protocol.schema.json`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := cmd.OutOrStdout().Write(adapter.Schema); err != nil {
				return unmeasured{err}
			}
			return nil
		},
	}
}
