package main

import (
	"cmp"
	_ "embed" // licences.txt
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/custodymq/custody/broker/wire"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
)

// versions is what a bug report must include.
type versions struct {
	Custody  string `json:"custody"` // version of the module
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"` // built from uncommitted files
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Judge    string `json:"judge"`
	Evidence int    `json:"evidenceFormat"`
	Protocol int    `json:"protocol"` // version of the reference broker's protocol
}

func versionCommand() *cobra.Command {
	var format string
	var listLicences bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of the command, the judge, the evidence and the protocol",
		Long: `Tell the versions that decide what a verdict means: the same evidence judged by
the same judge version gives the same bytes on every machine. Evidence of an
older format is read, of a newer one refused.

--licences lists the modules in this program, with version and licence (SPDX).`,
		Example: `  custody version
  custody version --format json
  custody version --licences`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if listLicences {
				list := builtIn()
				return printAs(cmd.OutOrStdout(), format, list, func(w io.Writer) {
					t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
					for _, p := range list {
						fmt.Fprintf(t, "%s\t%s\t%s\n", p.Module, p.Version, p.Licence)
					}
					t.Flush()
				})
			}
			v := thisVersion()
			return printAs(cmd.OutOrStdout(), format, v, func(w io.Writer) {
				t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
				fmt.Fprintf(t, "custody\t%s\n", v.Custody)
				if v.Revision != "" {
					modified := ""
					if v.Modified {
						modified = ", with changes"
					}
					fmt.Fprintf(t, "revision\t%s%s\n", v.Revision, modified)
				}
				fmt.Fprintf(t, "go\t%s %s\n", v.Go, v.Platform)
				fmt.Fprintf(t, "judge\t%s\n", v.Judge)
				fmt.Fprintf(t, "evidence format\t%d\n", v.Evidence)
				fmt.Fprintf(t, "broker protocol\t%d\n", v.Protocol)
				t.Flush()
			})
		},
	}
	cmd.Flags().BoolVar(&listLicences, "licences", false, "list the modules that are built in, and their licences")
	textOrJSON(cmd, &format)
	return cmd
}

// licences has a line for each module: its path, and its licences as SPDX names
// them. A test in docs/ makes it of the modules themselves.
//
//go:embed licences.txt
var licences string

// part is one module of this program.
type part struct {
	Module  string `json:"module"`
	Version string `json:"version"`
	Licence string `json:"licence"`
}

// builtIn lists the modules in this program, as recorded by the toolchain.
func builtIn() []part {
	known := map[string]string{}
	for line := range strings.Lines(licences) {
		module, licence, _ := strings.Cut(strings.TrimSpace(line), " ")
		known[module] = licence
	}
	list := []part{{"Go", runtime.Version(), "BSD-3-Clause"}}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return list
	}
	for _, m := range append([]*debug.Module{&info.Main}, info.Deps...) {
		list = append(list, part{m.Path, m.Version, cmp.Or(known[m.Path], "unknown")})
	}
	return list
}

func thisVersion() versions {
	v := versions{Custody: evidence.Version(), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Judge: guarantees.JudgeVersion, Evidence: evidence.FormatVersion, Protocol: wire.Version}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}

// textOrJSON adds --format to a command that does not print a report of runs.
func textOrJSON(cmd *cobra.Command, format *string) {
	cmd.PersistentFlags().StringVar(format, "format", "text", "what is printed: text or json")
}

// printAs prints a value as JSON or text.
func printAs(w io.Writer, format string, value any, text func(io.Writer)) error {
	switch format {
	case "text":
		text(w)
		return nil
	case "json":
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		if err := enc.Encode(value); err != nil {
			return unmeasured{fmt.Errorf("write the output: %w", err)}
		}
		return nil
	}
	return knownOutput(format)
}

// knownOutput validates --format before any work is done.
func knownOutput(format string) error {
	if format != "text" && format != "json" {
		return fmt.Errorf("no format %q; there are text and json", format)
	}
	return nil
}
