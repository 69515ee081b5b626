// Command custody tests message systems under faults and proves which delivery
// guarantee held, and at which hand-over it broke.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/runner/child"
	"github.com/custodymq/custody/systems/registry"
	"github.com/custodymq/custody/tasks"
)

func main() {
	child.Run(registry.Find)
	os.Exit(run(os.Args[1:]))
}

// exit is the exit code of a command that has already printed everything.
type exit int

func (e exit) Error() string { return fmt.Sprintf("exit %d", int(e)) }

// exitOf returns the error that ends a command with the exit code of its runs.
func exitOf(code int) error {
	if code == guarantees.ExitHeld {
		return nil
	}
	return exit(code)
}

// unmeasured is an error that is not a usage error.
type unmeasured struct{ error }

func (u unmeasured) Unwrap() error { return u.error }

func run(args []string) (code int) {
	defer func() {
		if p := recover(); p != nil { // Go's exit code 2 would mean inconclusive
			fmt.Fprintln(os.Stderr, "custody: could not measure:", tasks.Panic(p))
			code = guarantees.ExitUnmeasured
		}
	}()
	ctx, stop := signal.NotifyContext(context.Background(), endSignals()...)
	defer stop()
	context.AfterFunc(ctx, tasks.Guarded(stop)) // a second signal ends the process at once
	root := rootCommand()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	var told exit
	var failed unmeasured
	switch {
	case err == nil:
		return guarantees.ExitHeld
	case errors.As(err, &told):
		return int(told)
	case errors.As(err, &failed):
		fmt.Fprintln(os.Stderr, "custody:", firstLine(err))
		return guarantees.ExitUnmeasured
	}
	mistaken(os.Stderr, cmd, err)
	return guarantees.ExitUsage
}

// endSignals returns the signals that end a command in an orderly way: servers
// are stopped and temporary folders removed. SIGHUP, sent when a terminal closes,
// is among them unless nohup has made the process ignore it.
func endSignals() []os.Signal {
	list := []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT}
	if !signal.Ignored(syscall.SIGHUP) {
		list = append(list, syscall.SIGHUP)
	}
	return list
}

// readsOnly lets signals end a command at once: it has nothing to clean up, and
// reading gigabytes of evidence must be interruptible.
func readsOnly(cmd *cobra.Command) *cobra.Command {
	cmd.PreRun = func(*cobra.Command, []string) { signal.Reset(endSignals()...) }
	return cmd
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "custody",
		Short: "Prove which delivery guarantee held, and at which hand-over it broke",
		Long: `Custody runs scripted scenarios with injected faults against a message broker,
records every call, delivery, acknowledgement, business commit and stored row,
and judges the evidence: which guarantee held, which layer carried it, and at
which hand-over it broke.

Exit codes: 0 every claim held · 1 a claim is violated · 2 inconclusive, or
nothing claimed · 3 could not measure · 64 usage.`,
		Example: `  custody run                              the checklist on the reference broker
  custody run ack-lost --system nats       one scenario on NATS JetStream
  custody run my.scenario                  a script of your own
  custody explain ack-lost                 what it does and what it exercises
  custody replay custody-runs/ack-lost     run a saved script again and compare`,
		Version: evidence.Version(),
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := unknownCommand(cmd, args); err != nil {
				return err
			}
			return cmd.Help()
		},
		SilenceUsage:       true,
		SilenceErrors:      true,
		DisableSuggestions: true, // the error line has them
	}
	root.AddCommand(runCommand(), readsOnly(judgeCommand()), readsOnly(verifyCommand()), replayCommand(), readsOnly(reportCommand()), listCommand(), explainCommand(),
		readsOnly(diffCommand()), defectsCommand(), matrixCommand(), sweepCommand(), exploreCommand(), doctorCommand(), brokerCommand(), dlqCommand(), adapterCommand(), versionCommand())
	root.SetFlagErrorFunc(unknownFlag)
	complete(root)
	return root
}
