package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/custodymq/custody/broker"
	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/handover"
	"github.com/custodymq/custody/broker/store/open"
	"github.com/custodymq/custody/broker/store/sqlite"
	"github.com/custodymq/custody/reports"
)

// openBackup opens a backup's file. The rows are not those of a broker, and their
// partition is none of a broker's: whose they are stands in the mark.
func openBackup(ctx context.Context, path string) (store.Store, error) {
	return sqlite.Open(ctx, sqlite.Options{Path: path, Partition: store.Partition{Connection: "backup", Identity: "file"}})
}

func brokerBackupCommand() *cobra.Command {
	f := dlqFlags{command: "broker backup"}
	var at brokerFlags
	var to string
	cmd := &cobra.Command{
		Use:   "backup FILE | --to CONNECTION",
		Short: "Copy a broker's rows to a place from which they can be restored",
		Long: `Copy the rows of one broker, whatever its store: pending messages and dead letters,
in their order and with their attempts, history, and the IDs of messages that have
ended.

With --to a running broker makes the copy, in the store of another connection of its
own lists. It needs the permission to administer. Publishes wait while the rows are
copied, and all else goes on. With FILE the broker is stopped, and the copy is a file
of sqlite.

The place is empty, or has an earlier backup of the same rows, which is replaced; keep
two to have one at any moment. No broker starts from a backup: custody broker restore
puts its rows in place. What is accepted later is not in it.`,
		Example: `  custody broker backup --to nightly --address 127.0.0.1:5577
  custody broker backup rows.backup --name orders --connections connections.json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 1) == (to != "") {
				return errors.New("say where to: FILE while the broker is stopped, or --to CONNECTION of one that runs")
			}
			if err := knownOutput(f.format); err != nil {
				return err
			}
			if to != "" {
				return backUpRunning(cmd, &f, to)
			}
			return backUpStopped(cmd, at, f.format, args[0])
		},
	}
	flags := cmd.Flags()
	at.places(flags)
	flags.StringVar(&to, "to", "", "name of a connection of the running broker, exactly")
	f.add(flags, 3*time.Minute)
	textOrJSON(cmd, &f.format)
	return cmd
}

func backUpRunning(cmd *cobra.Command, f *dlqFlags, to string) error {
	var view broker.SwapView
	if err := f.view(cmd.Context(), "backup", to, &view); err != nil {
		return err
	}
	return printBackup(cmd.OutOrStdout(), f.format, view)
}

func backUpStopped(cmd *cobra.Command, at brokerFlags, format, path string) error {
	begun := time.Now()
	connections, err := at.lists(cmd.Flags().Changed("store") || cmd.Flags().Changed("data"))
	if err != nil {
		return err
	}
	from, err := opener(connections, open.Options{})(cmd.Context(), at.config.Name)
	if err != nil {
		return unmeasured{fmt.Errorf("broker backup: %w", err)}
	}
	defer from.Close()
	to, err := openBackup(cmd.Context(), path)
	if err != nil {
		return unmeasured{fmt.Errorf("broker backup: %w", err)}
	}
	defer to.Close()
	if err := handover.Refusal(cmd.Context(), from); err != nil {
		return unmeasured{fmt.Errorf("broker backup: %w", err)}
	}
	view := broker.SwapView{From: from.Partition().String(), To: path}
	view.Counts, err = handover.BackUp(cmd.Context(), from, to)
	if err = errors.Join(err, to.Close(), from.Close()); err != nil {
		return unmeasured{fmt.Errorf("broker backup: %w", err)}
	}
	view.Took = time.Since(begun)
	return printBackup(cmd.OutOrStdout(), format, view)
}

func printBackup(out io.Writer, format string, view broker.SwapView) error {
	return printAs(out, format, view, func(w io.Writer) {
		fmt.Fprintf(w, "%s was backed up to %s in %s: %s\n", reports.Visible(view.From), reports.Visible(view.To), view.Took.Round(time.Millisecond), countsOf(view.Counts))
	})
}

func brokerRestoreCommand() *cobra.Command {
	var at brokerFlags
	var from, format string
	var replace bool
	cmd := &cobra.Command{
		Use:   "restore FILE | --from CONNECTION",
		Short: "Put the rows of a backup in the place of those of a broker that is stopped",
		Long: `Put the rows of a backup, which custody broker backup has made, in the place of one
broker: that of the name and of the storage identity (` + store.IdentityVariable + `,
otherwise the host's name), in whatever store. The backup stays as it is.

What the backup lacks is lost, although publishers were told that it is safe; and what
was settled since is served again. So rows that are there are replaced only with
--replace, and the command tells how many messages are dropped, up to how long after
the backup they came, how many come again, and how long it took.

A restore that is cut short leaves a place from which no broker starts. Run it again.`,
		Example: `  custody broker restore rows.backup --name orders --connections connections.json
  custody broker restore --from nightly --replace --name orders --connections connections.json --format json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 1) == (from != "") {
				return errors.New("say from where: FILE, or --from CONNECTION")
			}
			if err := knownOutput(format); err != nil {
				return err
			}
			connections, err := at.lists(cmd.Flags().Changed("store") || cmd.Flags().Changed("data"))
			if err != nil {
				return err
			}
			connect := opener(connections, open.Options{})
			backup := func(ctx context.Context) (store.Store, error) { return connect(ctx, from) }
			if from == "" {
				if _, err := os.Stat(args[0]); err != nil { // one that is missing would be made
					return unmeasured{fmt.Errorf("broker restore: %w", err)}
				}
				backup = func(ctx context.Context) (store.Store, error) { return openBackup(ctx, args[0]) }
			}
			restored, err := restore(cmd.Context(), backup, func(ctx context.Context) (store.Store, error) { return connect(ctx, at.config.Name) }, replace)
			if err != nil {
				return unmeasured{fmt.Errorf("broker restore: %w", err)}
			}
			return printAs(cmd.OutOrStdout(), format, restored, func(w io.Writer) {
				fmt.Fprintf(w, "%s has the rows of %s as of %s: %s\n", reports.Visible(restored.In), reports.Visible(restored.Of),
					restored.Backup.Format(time.RFC3339), countsOf(restored.Counts))
				fmt.Fprintf(w, "  dropped: %d messages that waited, up to %s after the backup; come again: %d; took %s\n",
					restored.Dropped, restored.Span.Round(time.Millisecond), restored.Again, restored.Took.Round(time.Millisecond))
			})
		},
	}
	flags := cmd.Flags()
	at.places(flags)
	flags.StringVar(&from, "from", "", "name of the connection that has the backup, exactly")
	flags.BoolVar(&replace, "replace", false, "drop the rows that are there")
	textOrJSON(cmd, &format)
	return cmd
}

func restore(ctx context.Context, from, to func(context.Context) (store.Store, error), replace bool) (restored handover.Restored, err error) {
	backup, err := from(ctx)
	if err != nil {
		return restored, err
	}
	defer func() { err = errors.Join(err, backup.Close()) }()
	rows, err := to(ctx)
	if err != nil {
		return restored, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	return handover.Restore(ctx, backup, rows, replace)
}
