package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/custodymq/custody/broker"
	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/handover"
	"github.com/custodymq/custody/broker/store/open"
	"github.com/custodymq/custody/reports"
)

// places are the flags that name where a broker's rows are.
func (f *brokerFlags) places(flags *pflag.FlagSet) {
	flags.StringVar(&f.config.Name, "name", "custody", "of the broker, by which its connection is found")
	flags.StringVar(&f.store, "store", "sqlite", "where rows are kept: "+strings.Join(open.Drivers(), " or "))
	flags.StringVar(&f.data, "data", "custody.db", "file of the sqlite store")
	flags.StringArrayVar(&f.connections, "connections", nil, "file with a list of connections, instead of --store and --data or after them")
}

func brokerMaintainCommand() *cobra.Command {
	var f brokerFlags
	var format string
	cmd := &cobra.Command{
		Use:   "maintain",
		Short: "Purge and compact the rows of a broker that is stopped",
		Long: `End the expired rows of one broker's partition, delete the IDs of messages that
ended longer ago than they are kept, give their space back, and count what is left. A partition
whose rows were swapped or migrated away is emptied of the copies that it has left.

It touches this one partition: that of the name and of the storage identity
(` + store.IdentityVariable + `, otherwise the host's name). One that a running
broker has is refused: that broker does the same over time. A file of sqlite is not
compacted while a broker has another partition in it.`,
		Example: `  custody broker maintain --name orders --connections connections.json
  custody broker maintain --data custody.db --format json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return maintain(cmd, f, format) },
	}
	f.places(cmd.Flags())
	textOrJSON(cmd, &format)
	return cmd
}

func maintain(cmd *cobra.Command, f brokerFlags, format string) error {
	if err := knownOutput(format); err != nil {
		return err
	}
	connections, err := f.lists(cmd.Flags().Changed("store") || cmd.Flags().Changed("data"))
	if err != nil {
		return err
	}
	rows, err := opener(connections, open.Options{})(cmd.Context(), f.config.Name)
	if err != nil {
		return unmeasured{fmt.Errorf("broker maintain: %w", err)}
	}
	report, err := maintained(cmd.Context(), rows)
	if err = errors.Join(err, rows.Close()); err != nil {
		return unmeasured{fmt.Errorf("broker maintain: %w", err)}
	}
	return printAs(cmd.OutOrStdout(), format, report, func(w io.Writer) {
		fmt.Fprintf(w, "%s: %d expired, %d settled IDs over their window\n", reports.Visible(report.Partition), report.Expired, report.Swept)
		for _, state := range slices.Sorted(maps.Keys(report.Before)) {
			fmt.Fprintf(w, "  %s: %d, before %d\n", state, report.After[state], report.Before[state])
		}
		if !report.Compacted {
			fmt.Fprintf(w, "not compacted: %s\n", reports.Visible(report.NotCompacted))
		}
	})
}

// maintained empties a partition that is not in charge any more before anything
// else.
func maintained(ctx context.Context, rows store.Store) (store.Maintained, error) {
	mark, err := handover.Read(ctx, rows)
	if err != nil {
		return store.Maintained{}, err
	}
	if mark != nil {
		if mark.To == (store.Partition{}) {
			return store.Maintained{}, handover.Refusal(ctx, rows)
		}
		err := handover.Empty(ctx, rows)
		if kept := (*handover.Refused)(nil); err != nil && !errors.As(err, &kept) { // history stays, as it always does
			return store.Maintained{}, err
		}
	}
	now := time.Now()
	return store.Maintain(ctx, rows, now, now.Add(broker.DefaultSettledWindow))
}
