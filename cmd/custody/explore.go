package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/custodymq/custody/explore"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/reports"
	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/systems/registry"
	"github.com/custodymq/custody/systems/zeromq/simulated"
)

type exploreFlags struct {
	system, defect, out, format string
	runs, parallel              int
	seed                        uint64
	bound                       time.Duration
	scale                       float64
	disk                        bool
}

func exploreCommand() *cobra.Command {
	var f exploreFlags
	cmd := &cobra.Command{
		Use:   "explore",
		Short: "Explore random schedules until one breaks a guarantee, and shrink it",
		Long: `Draw small scenarios by chance (producers, consumers, faults at hand-overs), run
and judge each, and stop at the first that breaks a claim covering it. That one
is shrunk to the fewest and plainest steps that still break it, and written as a
script for custody run.

The reference broker is simulated: its own state machine and seeded defects in
virtual time, with network, store and clients in memory, a thousand schedules
and more a second for each core. The same seed gives the same histories: the
hash says so. To see one schedule again, give its seed with --runs 1.

With --disk the rows are in the broker's real store, whose files lie on a
simulated disk: faults strike its files, and a kill is a power cut, which keeps,
loses or tears what was not synced. That is some hundred schedules a second.

Any other system is run. There a seed fixes the script and its faults, not the
timing: a step of shrinking is kept if two of three runs break the promise.

Exit codes: 0 nothing found · 1 a claim is broken · 3 could not measure.`,
		Example: `  custody explore
  custody explore --seed 7 --runs 100000 --for 60s
  custody explore --disk
  custody explore --defect dead-letter-lost
  custody explore --system nats --runs 20 --out scenarios/regressions`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return exploreSystem(cmd, f) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.system, "system", "zeromq", "SYSTEM[:PROFILE][@IMAGE] or FILE.yaml; see custody list profiles")
	flags.StringVar(&f.defect, "defect", "", "switch on a seeded defect of the reference broker; see custody defects --list")
	flags.IntVar(&f.runs, "runs", 0, "schedules (default 20000 in the simulation, 20 on a system)")
	flags.Uint64Var(&f.seed, "seed", 1, "of the first schedule; each next one has the next")
	flags.DurationVar(&f.bound, "for", 0, "begin no schedule after this time; 0 is no limit")
	flags.IntVar(&f.parallel, "parallel", 0, "schedules at once (default one for each core)")
	flags.BoolVar(&f.disk, "disk", false, diskUsage)
	flags.StringVar(&f.out, "out", "custody-explored", "folder for the script that is found, and for the evidence of a system")
	flags.StringVar(&f.format, "format", "text", "text, or json: one object")
	flags.Float64Var(&f.scale, "scale", runner.DefaultScale, "factor on deadlines, bounds and periods of a system")
	return cmd
}

// found is a result with commands to follow it up.
type found struct {
	explore.Result
	Path   string `json:"path,omitempty"`
	Replay string `json:"replay,omitempty"`
}

func exploreSystem(cmd *cobra.Command, f exploreFlags) error {
	if f.runs < 0 || f.parallel < 0 || f.bound < 0 || f.scale <= 0 {
		return errors.New("--runs, --parallel and --for must not be negative, --scale must be positive")
	}
	if err := knownOutput(f.format); err != nil {
		return err
	}
	system, err := registry.Find(f.system, f.scale)
	if err != nil {
		return err
	}
	runs := 20
	if _, ok := simulated.Of(system, f.disk); ok {
		if system, f.scale, err = simulate(f.system, f.disk); err != nil {
			return err
		}
		if runs = 20000; f.disk {
			runs = 2000
		}
		// Schedules allocate much and retain little, so collect less often.
		defer debug.SetGCPercent(debug.SetGCPercent(800))
	} else if f.disk {
		return fmt.Errorf("--disk is simulated, and %s cannot be: only the reference broker can (--system zeromq)", f.system)
	}
	if f.runs == 0 {
		f.runs = runs
	}
	ticker := newTicker(cmd.ErrOrStderr(), f.runs)
	r, err := explore.Explore(cmd.Context(), explore.Options{System: system, Spec: f.system, Defect: f.defect, Seed: f.seed, Runs: f.runs, For: f.bound,
		Parallel: f.parallel, Scale: f.scale, Dir: f.out, Progress: ticker.show})
	ticker.clear()
	if err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	if r.Schedules == r.Unmeasured+r.Inapplicable {
		return unmeasured{fmt.Errorf("none of %d schedules could be measured, and %d do not apply: %s", r.Schedules, r.Inapplicable, r.Error)}
	}
	told := found{Result: r}
	if v := r.Found; v != nil {
		if told.Path, err = v.Keep(f.out); err != nil {
			return unmeasured{err}
		}
		told.Replay = "custody run " + reports.ShellLine([]string{told.Path, "--system", f.system})
		if f.disk {
			told.Replay += " --simulated --disk"
		}
		if f.defect != "" {
			told.Replay += " --defect " + f.defect
		}
	}
	if err := printAs(cmd.OutOrStdout(), f.format, told, func(w io.Writer) { tell(w, told) }); err != nil {
		return err
	}
	if r.Found != nil {
		return exit(guarantees.ExitViolated)
	}
	return nil
}

func tell(w io.Writer, r found) {
	how := "run on"
	if r.Simulated {
		how = "simulated of"
	}
	fmt.Fprintf(w, "%d schedules %s %s from seed %d in %.1fs (%.0f/s)", r.Schedules, how, r.System, r.Seed, r.Took.Seconds(), float64(r.Schedules)/r.Took.Seconds())
	if r.Unmeasured > 0 {
		fmt.Fprintf(w, ", %d of them not measured", r.Unmeasured)
	}
	if r.Inapplicable > 0 {
		fmt.Fprintf(w, ", %d of them not applicable", r.Inapplicable)
	}
	if r.Hash != "" {
		fmt.Fprintf(w, "\nhistories %s", r.Hash)
	}
	v := r.Found
	if v == nil {
		fmt.Fprintln(w, "\nno claim is broken")
		return
	}
	fmt.Fprintf(w, "\n\nthe schedule with seed %d breaks %s\n%s\n", v.Seed, strings.Join(v.Broken, ", "), v.Why)
	fmt.Fprintf(w, "shrunk from %d steps to %d, in %d tries:\n\n%s\n", v.Drawn, v.Steps, v.Tries, v.Script)
	fmt.Fprintf(w, "written to %s\nrun it       %s\n", r.Path, r.Replay)
}

// ticker shows progress on a terminal a few times a second.
type ticker struct {
	w     io.Writer
	live  bool
	total int

	mu    sync.Mutex
	shown time.Time
}

func newTicker(w io.Writer, total int) *ticker {
	return &ticker{w: w, live: onTerminal(w), total: total}
}

func (t *ticker) show(schedules int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.live || time.Since(t.shown) < 200*time.Millisecond {
		return
	}
	t.shown = time.Now()
	fmt.Fprintf(t.w, "%s%d of %d schedules", clearLine, schedules, t.total)
}

func (t *ticker) clear() {
	if t.live {
		fmt.Fprint(t.w, clearLine)
	}
}
