// Command siege runs the reference broker in a cgroup with honest clients,
// attackers, kills and restarts, and reports what became of the honest messages.
//
// Exit codes: 0 nothing was lost and the broker still serves · 1 it lost,
// invented or withheld messages, or ended by itself · 2 invalid usage · 3 could
// not measure.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/docker/go-units"

	"github.com/custodymq/custody/broker/attack"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/tasks"
)

type options struct {
	broker, out, memory, attacks string
	lasting, kill                time.Duration
	rate                         float64
	seed                         uint64
}

func main() {
	process.RunRole(map[string]func() process.Role{attackersRole: attackers})
	var o options
	flag.StringVar(&o.broker, "broker", "bin/custody", "the custody command; make build makes it")
	flag.StringVar(&o.out, "out", "report/siege", "folder for figures.json, journal.txt and the logs; it must not be there, or be empty")
	flag.StringVar(&o.memory, "memory", "1GiB", "what the broker may use, by a cgroup; 0: as much as it likes")
	flag.StringVar(&o.attacks, "attacks", "", "only these, by name, separated by commas; all of them if empty")
	flag.DurationVar(&o.lasting, "for", 30*time.Minute, "how long")
	flag.DurationVar(&o.kill, "kill-every", 40*time.Second, "between two ends of the broker, on average; one in four is in order; 0: none")
	flag.Float64Var(&o.rate, "rate", 100, "honest publishes a second")
	flag.Uint64Var(&o.seed, "seed", 1, "of the order of attacks and the times of kills")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	exit, err := run(ctx, o, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "siege:", err)
	}
	os.Exit(exit)
}

const usage = 2

func run(ctx context.Context, o options, stdout io.Writer) (exit int, err error) {
	if flag.NArg() > 0 || o.lasting < leastLasting || o.kill < 0 || !(o.rate > 0 && o.rate <= math.MaxInt16) {
		return usage, fmt.Errorf("takes flags only; -for at least %v, -rate above 0, -kill-every not negative (see siege -help)", leastLasting)
	}
	limit, err := units.RAMInBytes(o.memory)
	if err != nil || limit < 0 {
		return usage, fmt.Errorf("-memory %q: give a size such as 1GiB, or 0", o.memory)
	}
	var attacks []string
	for _, a := range attack.All() {
		attacks = append(attacks, a.Name)
	}
	if o.attacks != "" {
		attacks = strings.Split(o.attacks, ",")
	}
	for _, name := range attacks {
		if _, err := attack.Named(name); err != nil {
			return usage, fmt.Errorf("-attacks: %w", err)
		}
	}
	s := &Siege{options: o, attacks: attacks, limit: limit, progress: stdout}
	figures, err := s.Run(ctx)
	if err != nil {
		return tasks.ExitUnmeasured, err
	}
	figures.Print(stdout)
	switch {
	case len(figures.Faults()) > 0:
		return 1, nil
	case len(figures.Unmeasured()) > 0:
		return tasks.ExitUnmeasured, nil
	}
	return 0, nil
}
