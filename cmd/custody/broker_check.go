package main

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/custodymq/custody/broker/store/sqlite"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/reports"
)

func brokerCheckCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Look for damage in the file of a broker's sqlite store, and change nothing",
		Long: `Read the file of a reference broker's sqlite store whole, and say what is damaged
or missing. Nothing is changed, and a broker may be running on it.

  structure     SQLite's own pages and indexes
  damaged       rows that fail their checksum, or cannot be read: named as far as
                possible. The broker never delivers them, and serves the others
  missing       rows that the partition has counted, and that are not there
  lost          transactions that the broker has committed, and that are not in
                the file: its log (FILE-wal) was deleted or damaged, or an older
                copy was put in its place
  refused       rows of another protocol version: not damaged, and not delivered
                by this build

What to do about damage: stop the broker, copy FILE, FILE-wal and the lock files
beside them, and restore a backup if there is one. A broker that is started on the
damaged file serves what is sound, and names the rest in its log.

Exit codes: 0 sound · 1 damaged, or something is missing · 3 cannot be checked.`,
		Example: `  custody broker check custody.db
  custody broker check /var/lib/custody/rows.db --format json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("broker check takes the path of one sqlite file, as in custody broker check custody.db")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return checkStore(cmd, args[0], format) },
	}
	textOrJSON(cmd, &format)
	return cmd
}

func checkStore(cmd *cobra.Command, path, format string) error {
	if err := knownOutput(format); err != nil {
		return err
	}
	told := time.Now()
	report, err := sqlite.Check(cmd.Context(), path, func(done, all int64) {
		if time.Since(told) < time.Second {
			return
		}
		told = time.Now()
		fmt.Fprintf(cmd.ErrOrStderr(), "checked %d of %d rows\n", done, all)
	})
	if err != nil {
		return unmeasured{fmt.Errorf("broker check: %w", err)}
	}
	if err := printAs(cmd.OutOrStdout(), format, report, func(w io.Writer) { printCheck(w, report) }); err != nil {
		return err
	}
	if !report.Sound() {
		return exit(guarantees.ExitViolated)
	}
	return nil
}

func printCheck(w io.Writer, report sqlite.Report) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "PARTITION\tPENDING\tDEAD\tPROCESSED\tSETTLED IDS\tREFUSED\tDAMAGED\tMISSING\tLOST\tBYTES")
	for _, p := range report.Partitions {
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\n", reports.Visible(p.Partition),
			p.Pending, p.Dead, p.Processed, p.Settled, p.Refused, p.Damaged, p.Missing, p.Lost, p.Bytes)
	}
	t.Flush()
	for _, text := range report.Structure {
		fmt.Fprintf(w, "structure: %s\n", reports.Visible(text))
	}
	for _, row := range report.Damaged {
		fmt.Fprintf(w, "damaged: message %q, row %d of %s: %s\n", row.MessageID, row.Order, reports.Visible(row.Partition), reports.Visible(row.Reason))
	}
	if report.Unnamed > 0 {
		fmt.Fprintf(w, "and %d more damaged rows\n", report.Unnamed)
	}
	if report.Sound() {
		fmt.Fprintf(w, "%s is sound\n", report.Path)
	} else {
		fmt.Fprintf(w, "%s is damaged: copy it with its -wal and .lock files before anything else\n", report.Path)
	}
}
