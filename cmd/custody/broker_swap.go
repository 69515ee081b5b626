package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/custodymq/custody/broker"
	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/handover"
	"github.com/custodymq/custody/broker/store/open"
)

// opener opens the stores of connections for this process's storage identity.
func opener(connections store.Connections, options open.Options) handover.Opener {
	return func(ctx context.Context, name string) (store.Store, error) {
		return open.Open(ctx, connections, name, store.ProcessIdentity, options)
	}
}

func countsOf(c handover.Counts) string {
	return fmt.Sprintf("%d pending, %d dead, %d processed, %d IDs of settled messages", c.Pending, c.Dead, c.Processed, c.Settled)
}

func brokerSwapCommand() *cobra.Command {
	f := dlqFlags{command: "broker swap"}
	var to string
	cmd := &cobra.Command{
		Use:   "swap --to CONNECTION",
		Short: "Move the rows of a running broker to the store of another connection",
		Long: `Have a running broker move its rows to the store of another connection of its own
lists, and go on with that one. It needs the permission to administer.

Pending rows, dead letters, history and the IDs of settled messages are copied, in
their order and with their attempts. While that takes place publishes wait, and are
answered when they are durable in the store that is in charge then. All else goes
on. If it cannot be done in a minute, or fails in any way, the broker stays with
the store that it has.

The place must be empty, or the one that these rows were swapped away from before.
Rows of the store that was left stay in it, under a mark that says where they were
handed over to: a broker that starts from it follows the mark. custody broker
maintain empties it.`,
		Example: `  custody broker swap --to orders-postgres
  custody broker swap --to orders-postgres --address 127.0.0.1:5577 --token-env OPERATOR`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if to == "" {
				return errors.New("say to which connection of the broker's lists: --to NAME")
			}
			var view broker.SwapView
			if err := f.view(cmd.Context(), "swap", to, &view); err != nil {
				return err
			}
			return printAs(cmd.OutOrStdout(), f.format, view, func(w io.Writer) {
				fmt.Fprintf(w, "%s was swapped for %s: %s; publishes waited for %s\n", view.From, view.To, countsOf(view.Counts), view.Took.Round(time.Millisecond))
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&to, "to", "", "name of the connection, exactly")
	f.add(flags, 3*time.Minute)
	textOrJSON(cmd, &f.format)
	return cmd
}
