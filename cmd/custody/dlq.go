package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/custodymq/custody/broker"
	"github.com/custodymq/custody/broker/certificates"
	"github.com/custodymq/custody/broker/client"
	"github.com/custodymq/custody/broker/wire"
	"github.com/custodymq/custody/reports"
)

// dlqFlags select the broker.
type dlqFlags struct {
	command                   string // "dlq"
	address, tokenEnv, format string
	secure                    secureFlags
	timeout                   time.Duration
}

func (f *dlqFlags) add(flags *pflag.FlagSet, timeout time.Duration) {
	flags.StringVar(&f.address, "address", defaultAddress, "of the broker")
	flags.StringVar(&f.tokenEnv, "token-env", "", "environment variable with the token")
	f.secure.add(flags)
	flags.DurationVar(&f.timeout, "timeout", timeout, "for the connection and the answer")
}

// secureFlags say how a client uses TLS.
type secureFlags struct {
	on            bool
	ca, cert, key string
}

func (f *secureFlags) add(flags *pflag.FlagSet) {
	flags.BoolVar(&f.on, "tls", false, "use TLS, and trust the authorities of this machine")
	flags.StringVar(&f.ca, "tls-ca", "", "use TLS, and trust the authorities in this file (PEM)")
	flags.StringVar(&f.cert, "tls-cert", "", "use TLS, and show this certificate (PEM)")
	flags.StringVar(&f.key, "tls-key", "", "its key")
}

func (f *secureFlags) config() (*tls.Config, error) {
	switch {
	case (f.cert == "") != (f.key == ""):
		return nil, errors.New("--tls-cert and --tls-key go together")
	case !f.on && f.ca == "" && f.cert == "":
		return nil, nil
	}
	config, err := certificates.Client(f.ca, f.cert, f.key)
	if err != nil {
		return nil, unmeasured{err}
	}
	return config, nil
}

func dlqCommand() *cobra.Command {
	f := dlqFlags{command: "dlq"}
	cmd := &cobra.Command{
		Use:   "dlq list|show|redrive|discard",
		Short: "Inspect and settle the dead letters of a reference broker",
		Long: `Look at the dead letters of a running reference broker: messages that were
delivered as often as it allows, or that a consumer refused for good. Each keeps
its reason, its attempts and its last consumer. To redrive one is to deliver it
again, with its attempts counted anew; to discard one is to lose it on purpose.`,
		Example: `  custody dlq list
  custody dlq show MESSAGE-ID
  custody dlq redrive MESSAGE-ID --address 127.0.0.1:5577 --token-env CUSTODY_TOKEN
  custody dlq list --address broker.example:5577 --tls-ca authority.pem --token-env CUSTODY_TOKEN`,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("dlq has no command %q; there are list, show, redrive and discard", args[0])
			}
			return errors.New("say what to do with the dead letters: list, show, redrive or discard")
		},
	}
	f.add(cmd.PersistentFlags(), 10*time.Second)
	textOrJSON(cmd, &f.format)

	cmd.AddCommand(
		&cobra.Command{
			Use: "list", Short: "List the dead letters", Example: "  custody dlq list --format json",
			Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return f.read(cmd, "dlq.list", "", listLetters) },
		},
		&cobra.Command{
			Use: "show MESSAGE-ID", Short: "Show one dead letter with its headers and payload", Example: "  custody dlq show 4QTX-1",
			Args: oneMessage,
			RunE: func(cmd *cobra.Command, args []string) error { return f.read(cmd, "dlq.show", args[0], showLetters) },
		},
		&cobra.Command{
			Use: "redrive MESSAGE-ID", Short: "Deliver a dead letter again", Example: "  custody dlq redrive 4QTX-1",
			Args: oneMessage,
			RunE: func(cmd *cobra.Command, args []string) error { return f.settle(cmd, "redrive", "redriven", args[0]) },
		},
		&cobra.Command{
			Use: "discard MESSAGE-ID", Short: "Remove a dead letter for good", Example: "  custody dlq discard 4QTX-1",
			Args: oneMessage,
			RunE: func(cmd *cobra.Command, args []string) error { return f.settle(cmd, "discard", "discarded", args[0]) },
		},
	)
	return cmd
}

func oneMessage(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("dlq %s takes one message ID, not %d; custody dlq list shows them", cmd.Name(), len(args))
	}
	return nil
}

// read prints a command's reply, all of its pages.
func (f *dlqFlags) read(cmd *cobra.Command, command, object string, text func(io.Writer, broker.RowsView)) error {
	var all broker.RowsView
	for {
		var page broker.RowsView
		if err := f.view(cmd.Context(), command, object, &page); err != nil {
			return err
		}
		all.Rows = append(all.Rows, page.Rows...)
		if page.Next == "" || page.Next == object {
			all.Truncated = page.Truncated
			return printAs(cmd.OutOrStdout(), f.format, all, func(w io.Writer) { text(w, all) })
		}
		object = page.Next
	}
}

func (f *dlqFlags) settle(cmd *cobra.Command, verb, done, id string) error {
	if _, err := f.ask(cmd.Context(), "dlq."+verb, id); err != nil {
		return err
	}
	result := map[string]string{"messageId": id, "result": done}
	return printAs(cmd.OutOrStdout(), f.format, result, func(w io.Writer) { fmt.Fprintf(w, "%s %s\n", done, id) })
}

// ask sends one command. Any answer but Accepted is an error: Unknown must not
// look like success.
func (f *dlqFlags) ask(ctx context.Context, command, id string) (wire.Message, error) {
	if err := knownOutput(f.format); err != nil {
		return wire.Message{}, err
	}
	token, err := tokenFrom(f.tokenEnv)
	if err != nil {
		return wire.Message{}, err
	}
	secure, err := f.secure.config()
	if err != nil {
		return wire.Message{}, err
	}
	if f.timeout <= 0 {
		return wire.Message{}, errors.New("--timeout must be positive")
	}
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	conn, err := client.Dial(ctx, f.address, client.Options{Name: "custody " + f.command, Token: token, TLS: secure})
	switch {
	case errors.Is(err, client.ErrRefused):
		return wire.Message{}, unmeasured{fmt.Errorf("%s: the broker on %s refuses the connection: %s", f.command, f.address, reports.Visible(firstLine(err)))}
	case err != nil:
		return wire.Message{}, unmeasured{fmt.Errorf("%s: no broker answers on %s (is custody broker running there? --address names another): %s", f.command, f.address, firstLine(err))}
	}
	defer conn.Close()
	reply, err := conn.Admin(ctx, command, id)
	switch {
	case err != nil:
		return reply, unmeasured{fmt.Errorf("%s on %s: %w", command, f.address, err)}
	case reply.Answer == wire.Refused:
		return reply, unmeasured{fmt.Errorf("%s on %s: the broker did nothing: %s", command, f.address, reports.Visible(reply.Reason))}
	case reply.Answer != wire.Accepted:
		return reply, unmeasured{fmt.Errorf("%s on %s: it may or may not be done: look what the broker says: %s", command, f.address, reports.Visible(reply.Reason))}
	}
	return reply, nil
}

// view asks, and reads the reply's payload.
func (f *dlqFlags) view(ctx context.Context, command, id string, to any) error {
	reply, err := f.ask(ctx, command, id)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(reply.Payload, to); err != nil {
		return unmeasured{fmt.Errorf("%s: the answer of %s cannot be read (is it a Custody broker of this version?): %w", f.command, f.address, err)}
	}
	return nil
}

func listLetters(w io.Writer, view broker.RowsView) {
	if len(view.Rows) == 0 {
		fmt.Fprintln(w, "no dead letters")
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "MESSAGE ID\tBUSINESS ID\tTOPIC\tATTEMPTS\tLAST CONSUMER\tREASON")
	for _, r := range view.Rows {
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\n", reports.Visible(r.MessageID), reports.Visible(r.BusinessID),
			reports.Visible(r.Topic), r.Attempts, reports.Visible(r.LastConsumer), reports.Visible(r.Reason))
	}
	t.Flush()
	if view.Truncated {
		fmt.Fprintln(w, "and more that were left out")
	}
}

func showLetters(w io.Writer, view broker.RowsView) {
	for _, r := range view.Rows {
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, line := range [][2]string{
			{"message ID", r.MessageID}, {"business ID", r.BusinessID}, {"topic", r.Topic}, {"group", r.Group}, {"key", r.Key},
			{"inserted", moment(r.InsertedAt)}, {"expires", moment(r.ExpiresAt)},
			{"attempts", fmt.Sprint(r.Attempts)}, {"last consumer", r.LastConsumer}, {"reason", r.Reason}, {"partition", r.Partition},
		} {
			if line[1] != "" {
				fmt.Fprintf(t, "%s\t%s\n", line[0], reports.Visible(line[1]))
			}
		}
		for _, name := range slices.Sorted(maps.Keys(r.Headers)) {
			fmt.Fprintf(t, "header %s\t%s\n", reports.Visible(name), reports.Visible(r.Headers[name]))
		}
		size := fmt.Sprintf("%d bytes", r.Size)
		if view.Truncated {
			size += fmt.Sprintf(", the first %d of the payload shown", len(r.Payload))
		}
		fmt.Fprintf(t, "payload\t%s\n", size)
		t.Flush()
		for line := range strings.SplitSeq(string(r.Payload), "\n") {
			fmt.Fprintf(w, "  %s\n", reports.Visible(line))
		}
	}
}

func moment(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Format(time.RFC3339)
}
