package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/handover"
	"github.com/custodymq/custody/broker/store/open"
	"github.com/custodymq/custody/broker/store/relational"
)

func brokerMigrateCommand() *cobra.Command {
	var f brokerFlags
	var print string
	var from, to string
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Make the tables of a database server's store, or bring them up to date",
		Long: `Make the tables in which a broker keeps its rows in PostgreSQL, MySQL, MariaDB or
SQL Server, or bring those of an older build up to date. A broker makes no tables
itself: where they are missing or of another version it does not start.

Two migrations at once wait for each other, and running it again changes nothing.
Where an administrator alone may change tables, --print gives the statements.

The sqlite store makes its own tables, and the memory store has none.

With --from-identity and --to-identity the rows of a broker that is stopped move to
another storage identity, in the same place: a host whose name has changed finds
them again. Under the new identity there must be no rows yet.`,
		Example: `  custody broker migrate --connections connections.json
  custody broker migrate --name orders --connections connections.json
  custody broker migrate --print postgres > schema.sql
  custody broker migrate --from-identity old-host --to-identity new-host --connections connections.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if print != "" {
				return printSchema(cmd, print)
			}
			if from != "" || to != "" {
				return migrateIdentity(cmd, f, from, to)
			}
			return migrate(cmd, f)
		},
	}
	flags := cmd.Flags()
	f.places(flags)
	flags.StringVar(&from, "from-identity", "", "storage identity under which the rows are")
	flags.StringVar(&to, "to-identity", "", "storage identity to which they move")
	flags.StringVar(&print, "print", "", "print the statements for this driver instead: "+strings.Join(serverDrivers(), ", "))
	return cmd
}

func serverDrivers() []string {
	return slices.DeleteFunc(open.Drivers(), func(name string) bool { _, ok := relational.Dialects()[name]; return !ok })
}

func printSchema(cmd *cobra.Command, driver string) error {
	d, ok := relational.Dialects()[driver]
	if !ok {
		return fmt.Errorf("--print %s: there are tables to make for %s", driver, strings.Join(serverDrivers(), ", "))
	}
	fmt.Fprint(cmd.OutOrStdout(), relational.Schema(d))
	return nil
}

func migrate(cmd *cobra.Command, f brokerFlags) error {
	if len(f.connections) == 0 {
		return errors.New("say where the database is: --connections FILE")
	}
	connections, err := f.lists(false)
	if err != nil {
		return err
	}
	connection, err := connections.Find(f.config.Name)
	if err != nil {
		return unmeasured{err}
	}
	d, ok := relational.Dialects()[connection.Driver]
	if !ok {
		return unmeasured{fmt.Errorf("broker migrate: connection %q has the driver %s, for which there is nothing to migrate; there is for %s",
			connection.Name, connection.Driver, strings.Join(serverDrivers(), ", "))}
	}
	from, err := relational.Migrate(cmd.Context(), d, connection.DSN)
	if err != nil {
		return unmeasured{fmt.Errorf("broker migrate: connection %q: %w", connection.Name, err)}
	}
	switch to := d.Version(); {
	case from == to:
		fmt.Fprintf(cmd.OutOrStdout(), "the tables of connection %q are of version %d already\n", connection.Name, to)
	case from == 0:
		fmt.Fprintf(cmd.OutOrStdout(), "the tables of connection %q were made, version %d\n", connection.Name, to)
	default:
		fmt.Fprintf(cmd.OutOrStdout(), "the tables of connection %q were brought from version %d to %d\n", connection.Name, from, to)
	}
	return nil
}

// migrateIdentity moves the rows of one partition to that of another identity.
func migrateIdentity(cmd *cobra.Command, f brokerFlags, from, to string) (err error) {
	if from == "" || to == "" || from == to {
		return errors.New("--from-identity and --to-identity go together, and differ")
	}
	connections, err := f.lists(cmd.Flags().Changed("store") || cmd.Flags().Changed("data"))
	if err != nil {
		return err
	}
	var at [2]store.Store
	for i, identity := range []string{from, to} {
		named := store.Identity(func(string) (string, bool) { return identity, true }, nil)
		if at[i], err = open.Open(cmd.Context(), connections, f.config.Name, named, open.Options{}); err != nil {
			return unmeasured{fmt.Errorf("broker migrate: %w", err)}
		}
		defer at[i].Close()
	}
	counts, err := handover.Migrate(cmd.Context(), at[0], at[1])
	if err = errors.Join(err, at[0].Close(), at[1].Close()); err != nil {
		return unmeasured{fmt.Errorf("broker migrate: %w", err)}
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%v has the rows of %v: %s\n", at[1].Partition(), at[0].Partition(), countsOf(counts))
	return nil
}
