package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/reports"
	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/scenarios"
	"github.com/custodymq/custody/script"
)

type sweepFlags struct {
	system, out, format, defect string
	guarantees                  []string
	parallel                    int
	seed                        uint64
	scale                       float64
	resume, allowRemote         bool
}

func sweepCommand() *cobra.Command {
	var f sweepFlags
	cmd := &cobra.Command{
		Use:   "sweep",
		Short: "Apply every applicable fault to every hand-over of a message",
		Long: `Make one run without a fault, read from its evidence which hand-overs a message
really has on this system (frames on each link, operations of the store), and
strike each of them with every fault that applies: one run each. The grid of
hand-overs and faults links every cell to its run.

An interrupted sweep goes on where it was with --resume and the same --out.`,
		Example: `  custody sweep
  custody sweep --system nats --guarantee no-accepted-loss
  custody sweep --defect accept-before-persist --out sweep --resume`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return sweep(cmd, f) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.system, "system", "zeromq", "SYSTEM[:PROFILE][@IMAGE] or FILE.yaml; see custody list profiles")
	flags.StringSliceVar(&f.guarantees, "guarantee", nil, "judge only these (default: the usual ones)")
	flags.StringVar(&f.out, "out", "", "folder for the evidence and the pages (default custody-runs/sweep- and the time)")
	flags.StringVar(&f.format, "format", "terminal", "what is printed: terminal, markdown, html or json; all but the first are left in the folder too")
	flags.StringVar(&f.defect, "defect", "", "switch on a seeded defect; see custody defects --list")
	flags.IntVar(&f.parallel, "parallel", 2*runtime.NumCPU(), "runs at once")
	flags.Uint64Var(&f.seed, "seed", 1, "of everything that is drawn by chance")
	flags.Float64Var(&f.scale, "scale", runner.DefaultScale, "factor on deadlines, bounds and periods, for a slow machine")
	flags.BoolVar(&f.allowRemote, "allow-remote", false, remoteUsage)
	flags.BoolVar(&f.resume, "resume", false, "take the whole runs that the folder already holds")
	return cmd
}

func sweep(cmd *cobra.Command, f sweepFlags) error {
	format, err := findGridFormat(f.format)
	if err != nil {
		return err
	}
	if f.parallel < 1 || f.scale <= 0 {
		return errors.New("--parallel and --scale must be positive")
	}
	if err := knownGuarantees(f.guarantees); err != nil {
		return err
	}
	system, err := findInstalled(f.system, f.scale, f.allowRemote)
	if err != nil {
		return err
	}
	if err := knownDefect(f.defect, system.Describe().System); err != nil {
		return err
	}
	err = inOrder(f.out, f.resume, scenarios.Plan{Scenarios: []script.Scenario{scenarios.SweepBase}, Dir: filepath.Join(f.out, "runs")}.Taken)
	if err != nil {
		return err
	}
	dir, err := folderFor(f.out, "sweep-")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return unmeasured{fmt.Errorf("a folder for the sweep: %w", err)}
	}
	say := cmd.ErrOrStderr()
	plan := scenarios.Plan{Dir: filepath.Join(dir, "runs"), Parallel: f.parallel, Resume: f.resume,
		Options: runner.Options{System: system, Spec: f.system, Seed: f.seed, Scale: f.scale}}
	handOvers, err := plan.HandOvers(cmd.Context())
	if err != nil {
		return unmeasured{err}
	}
	plan.Options.Defect = f.defect
	var cells []reports.SweepCell
	place := map[string]int{} // index of a scenario's cell
	for _, h := range handOvers {
		for _, s := range scenarios.SweepFaults() {
			if strike, ok := h.Strike(s, f.guarantees); ok {
				place[strike.Name] = len(cells)
				plan.Scenarios = append(plan.Scenarios, strike)
			}
			cells = append(cells, reports.SweepCell{Row: h.String(), Column: s.String()})
		}
	}
	fmt.Fprintf(say, "%d hand-overs, %d runs\n", len(handOvers), len(plan.Scenarios))
	progress := newProgress(say, len(plan.Scenarios))
	plan.Began, plan.Done = progress.began, progress.done
	outcomes, err := plan.Run(cmd.Context())
	if err != nil {
		return unmeasured{err}
	}
	report, err := loadRuns(say, plan.Dir, outcomes)
	if err != nil {
		return err
	}
	for i := range report.Runs {
		cells[place[report.Runs[i].Judgement.Scenario]].Run = &report.Runs[i]
	}
	title := "Sweep of " + specOf(system)
	if f.defect != "" {
		title += " with the defect " + f.defect
	}
	grid := reports.SweepGrid(title, report.Command, cells, pageOf(dir))
	if err := showGrid(cmd, grid, dir, "sweep", format); err != nil {
		return err
	}
	return exitOf(scenarios.Exit(outcomes))
}

func knownGuarantees(names []string) error {
	for _, name := range names {
		if _, err := named("guarantee", name, guarantees.Guarantees(), func(g guarantees.Guarantee) string { return g.Name }); err != nil {
			return err
		}
	}
	return nil
}
