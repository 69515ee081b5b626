package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/reports"
	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/scenarios"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/external"
	"github.com/custodymq/custody/systems/registry"
)

type matrixFlags struct {
	out, format, only string
	parallel, repeat  int
	seed              uint64
	scale             float64
	resume, require   bool
	allowRemote       bool
}

func matrixCommand() *cobra.Command {
	var f matrixFlags
	cmd := &cobra.Command{
		Use:   "matrix [SYSTEM[:PROFILE][@IMAGE]|FILE.yaml…]",
		Short: "Compare what every profile claims with what its runs show",
		Long: `Run the checklist over systems and profiles (without any named: all of them) and
set claims against evidence: one row for each profile, one column for each
guarantee and class of fault. A system that is not on this machine gets a row
that says how to install it. With @IMAGE its server runs from a container image:
two versions of a system, side by side.

An interrupted matrix goes on where it was with --resume and the same --out.`,
		Example: `  custody matrix
  custody matrix rabbitmq redis:no-aof
  custody matrix redis redis@custody/redis:trixie
  custody matrix --out matrix --resume
  custody matrix nats --scenarios baseline,broker-killed --format markdown`,
		RunE: func(cmd *cobra.Command, args []string) error { return makeMatrix(cmd, args, f) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.out, "out", "", "folder for the evidence and the pages (default custody-runs/matrix- and the time)")
	flags.StringVar(&f.format, "format", "terminal", "what is printed: terminal, markdown, html or json; all but the first are left in the folder too")
	flags.StringVar(&f.only, "scenarios", "", "only these scenarios, with commas between them")
	flags.IntVar(&f.parallel, "parallel", 2*runtime.NumCPU(), "runs at once")
	flags.IntVar(&f.repeat, "repeat", 1, "run each scenario so often; the worst decides a cell")
	flags.Uint64Var(&f.seed, "seed", 1, "of everything that is drawn by chance")
	flags.Float64Var(&f.scale, "scale", runner.DefaultScale, "factor on deadlines, bounds and periods, for a slow machine")
	flags.BoolVar(&f.allowRemote, "allow-remote", false, remoteUsage)
	flags.BoolVar(&f.resume, "resume", false, "take the whole runs that the folder already holds")
	flags.BoolVar(&f.require, "require", false, "a system that is not on this machine is a failure (exit 3)")
	return cmd
}

// usualRun estimates a run's duration until one has been measured.
const usualRun = 4 * time.Second

func makeMatrix(cmd *cobra.Command, args []string, f matrixFlags) error {
	format, err := findGridFormat(f.format)
	if err != nil {
		return err
	}
	if f.parallel < 1 || f.repeat < 1 || f.scale <= 0 {
		return errors.New("--parallel, --repeat and --scale must be positive")
	}
	chosen, err := matrixSystems(args, f.scale)
	if err != nil {
		return err
	}
	checklist := scenarios.All()
	if f.only != "" {
		if checklist, err = scenarios.Choose(strings.Split(f.only, ",")...); err != nil {
			return err
		}
	}
	for _, s := range chosen {
		if err := evidence.FileName(folderName(s)); err != nil {
			return fmt.Errorf("the profile %s: %w", specOf(s), err)
		}
	}
	err = inOrder(f.out, f.resume, func() (string, error) {
		for _, s := range chosen {
			plan := scenarios.Plan{Scenarios: checklist, Dir: filepath.Join(f.out, folderName(s)), Repeat: f.repeat}
			if taken, err := plan.Taken(); taken != "" || err != nil {
				return taken, err
			}
		}
		return "", nil
	})
	if err != nil {
		return err
	}
	dir, err := folderFor(f.out, "matrix-")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return unmeasured{fmt.Errorf("a folder for the matrix: %w", err)}
	}
	say := cmd.ErrOrStderr()
	total := len(chosen) * len(checklist) * f.repeat
	fmt.Fprintf(say, "%d profiles, %d scenarios: up to %d runs, about %s with %d at once\n",
		len(chosen), len(checklist), total, (time.Duration(total) * usualRun / time.Duration(f.parallel)).Round(time.Minute), f.parallel)
	servers := process.NewPool()
	defer func() {
		if err := servers.Close(cmd.Context()); err != nil {
			fmt.Fprintln(say, "custody:", err)
		}
	}()
	whole := reports.Report{Title: "Claims against evidence", Command: commandLine(), Custody: evidence.Version()}
	var absent []reports.GridRow
	var outcomes []scenarios.Outcome
	began := time.Now()
	for i, s := range chosen {
		spec := specOf(s)
		if need, ok := s.(systems.Installed); ok {
			if err := need.Installed(); err != nil {
				fmt.Fprintf(say, "%s: not on this machine: %v\n", spec, err)
				absent = append(absent, reports.GridRow{Name: spec, Text: s.Describe().Profile.Summary, Absent: "not on this machine: " + err.Error()})
				continue
			}
		}
		fmt.Fprintf(say, "%s (%d of %d)\n", spec, i+1, len(chosen))
		report, made, err := measure(cmd, s, f, scenarios.Plan{Scenarios: checklist, Dir: filepath.Join(dir, folderName(s)),
			Repeat: f.repeat, Parallel: f.parallel, Resume: f.resume, Options: runner.Options{Seed: f.seed, Scale: f.scale, Servers: servers}})
		if err != nil {
			return err
		}
		whole.Runs = append(whole.Runs, report.Runs...)
		whole.Failed = append(whole.Failed, report.Failed...)
		outcomes = append(outcomes, made...)
		left := time.Since(began) / time.Duration(i+1) * time.Duration(len(chosen)-i-1)
		fmt.Fprintf(say, "%s: %s; about %s to go\n", spec, report.Status(), left.Round(time.Second))
	}
	grid := reports.Matrix(whole, pageOf(dir))
	for _, row := range absent {
		row.Cells = make([]reports.Cell, len(grid.Columns))
		grid.Rows = append(grid.Rows, row)
	}
	if err := showGrid(cmd, grid, dir, "matrix", format); err != nil {
		return err
	}
	if f.require && len(absent) > 0 {
		return unmeasured{fmt.Errorf("%d profiles are not on this machine, and --require is given", len(absent))}
	}
	return exitOf(scenarios.Exit(outcomes))
}

// measure runs a plan on one profile and writes a page of its runs.
func measure(cmd *cobra.Command, s systems.System, f matrixFlags, plan scenarios.Plan) (reports.Report, []scenarios.Outcome, error) {
	plan.Options.Spec = specOf(s) // child processes find the system by it
	if mine, ok := s.(external.System); ok {
		plan.Options.Spec = mine.Path()
	}
	if f.allowRemote {
		s = external.AllowRemote(s)
	}
	plan.Options.System = s
	progress := newProgress(cmd.ErrOrStderr(), len(plan.Scenarios)*plan.Repeat)
	plan.Began, plan.Done = progress.began, progress.done
	made, err := plan.Run(cmd.Context())
	if err != nil {
		return reports.Report{}, nil, unmeasured{err}
	}
	report, err := loadRuns(cmd.ErrOrStderr(), plan.Dir, made)
	return report, made, err
}

// folderName returns the name of the folder for a profile's runs.
func folderName(s systems.System) string {
	return strings.NewReplacer(":", "-", "/", "-").Replace(specOf(s))
}

func specOf(s systems.System) string { return profileName(s.Describe()) }

// matrixSystems returns the profiles named by args: one, or all of a system.
func matrixSystems(args []string, scale float64) ([]systems.System, error) {
	if len(args) == 0 {
		return registry.Systems(scale), nil
	}
	var chosen []systems.System
	for _, arg := range args {
		found, err := registry.Named(arg, scale)
		if err != nil {
			return nil, err
		}
		chosen = append(chosen, found...)
	}
	return chosen, nil
}
