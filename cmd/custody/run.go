package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/mattn/go-runewidth"
	"github.com/spf13/cobra"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/reports"
	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/scenarios"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/adapter"
	"github.com/custodymq/custody/systems/external"
	"github.com/custodymq/custody/systems/registry"
	"github.com/custodymq/custody/systems/zeromq/simulated"
)

type runFlags struct {
	system, out, format, defect string
	sign                        string
	seed                        uint64
	parallel, repeat            int
	scale                       float64
	resume, allowRemote         bool
	simulated, disk             bool
	profile, adapter            string
	group, business             string
	budget                      time.Duration
}

func runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [SCENARIO|FILE|FOLDER…]",
		Short: "Run scenarios against a system and judge the evidence",
		Long: `Run scenarios by name, or scripts from files and folders (their paths hold a dot
or a slash); without any, the whole checklist. Each run leaves a folder of evidence, from
which it is judged, and from which it can be judged again.`,
		Example: `  custody run
  custody run ack-lost broker-killed --system zeromq:at-least-once-history
  custody run my.scenario --system nats --repeat 5
  custody run --adapter "python3 adapter.py"
  custody run --format json > result.json`,
		RunE: func(cmd *cobra.Command, args []string) error { return runScenarios(cmd, args, f) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.system, "system", "zeromq", "SYSTEM[:PROFILE][@IMAGE] or FILE.yaml; see custody list profiles")
	flags.StringVar(&f.adapter, "adapter", "", "COMMAND of an adapter of your own, the same as --system adapter:COMMAND; see custody adapter")
	flags.StringVar(&f.profile, "profile", "", "FILE.yaml of a server of your own, the same as --system FILE.yaml; with --adapter the name of one of its profiles")
	flags.StringVar(&f.group, "group", scenarios.GroupChecklist, "checklist, or application: the mechanisms of an application, and what breaks without each of them")
	flags.StringVar(&f.business, "business", "sqlite", "where the application's database is: sqlite, a file of each run; or postgres, a database of each run in the server that PGHOST, PGUSER, PGPASSWORD and PGDATABASE name")
	flags.BoolVar(&f.allowRemote, "allow-remote", false, remoteUsage)
	flags.StringVar(&f.out, "out", "", "folder for the evidence (default custody-runs/ and the time)")
	flags.StringVar(&f.format, "format", "terminal", "what is printed: terminal, json, junit, markdown or html")
	flags.StringVar(&f.defect, "defect", "", "switch on a seeded defect of the broker or of clients; see custody defects --list")
	flags.BoolVar(&f.simulated, "simulated", false, "in virtual time and in memory, in a fraction of a second; only the reference broker can be")
	flags.BoolVar(&f.disk, "disk", false, diskUsage)
	flags.Uint64Var(&f.seed, "seed", 1, "of everything that is drawn by chance")
	flags.IntVar(&f.parallel, "parallel", 2*runtime.NumCPU(), "runs at once")
	flags.IntVar(&f.repeat, "repeat", 1, "run each scenario so often; every verdict is shown")
	flags.Float64Var(&f.scale, "scale", runner.DefaultScale, "factor on deadlines, bounds and periods, for a slow machine")
	flags.DurationVar(&f.budget, "budget", 0, "run what fits into this time, what covers most first, and say what was left out")
	flags.StringVar(&f.sign, "sign", "", signUsage)
	flags.BoolVar(&f.resume, "resume", false, "take the whole runs that the folder given with --out already holds, and make the others")
	return cmd
}

func runScenarios(cmd *cobra.Command, args []string, f runFlags) error {
	format, err := findFormat(f.format)
	if err == nil && f.group == scenarios.GroupApplication && f.format != "terminal" && f.format != "json" {
		err = fmt.Errorf("--group %s prints terminal or json; a page of its runs: custody report FOLDER --format %s", scenarios.GroupApplication, f.format)
	}
	if err != nil {
		return err
	}
	if f.parallel < 1 || f.repeat < 1 || f.scale <= 0 || f.budget < 0 {
		return errors.New("--parallel, --repeat, --scale and --budget must be positive")
	}
	switch {
	case f.adapter != "":
		if cmd.Flags().Changed("system") {
			return errors.New("--adapter names the system: leave out --system")
		}
		f.system = adapter.Spec(f.adapter, f.profile)
	case f.profile != "":
		if cmd.Flags().Changed("system") || !external.IsFile(f.profile) {
			return errors.New("--profile takes a file that ends in .yaml or .yml, and no --system beside it; profiles of an adapter are named by --system SYSTEM:PROFILE")
		}
		f.system = f.profile
	}
	system, err := findInstalled(f.system, f.scale, f.allowRemote)
	if err != nil {
		return err
	}
	switch {
	case f.simulated:
		if system, f.scale, err = simulate(f.system, f.disk); err != nil {
			return err
		}
	case f.disk:
		return errors.New("--disk needs --simulated: a real disk's power is not cut")
	}
	if err := knownDefect(f.defect, system.Describe().System); err != nil {
		return err
	}
	if f.business != "sqlite" && f.business != "postgres" {
		return fmt.Errorf("no database %q for --business; there are sqlite and postgres", f.business)
	}
	postgres := f.business == "postgres"
	if postgres && f.simulated {
		return errors.New("--business postgres is for real time: a simulated run keeps its rows in memory")
	}
	choose, application := scenarios.Choose, f.group == scenarios.GroupApplication
	switch {
	case application:
		choose = scenarios.ApplicationGroup
	case f.group != scenarios.GroupChecklist:
		return fmt.Errorf("no group %q; there are %s and %s", f.group, scenarios.GroupChecklist, scenarios.GroupApplication)
	}
	chosen, err := choose(args...)
	if err != nil {
		return err
	}
	sign, err := signer(f.sign)
	if err != nil {
		return err
	}
	plan := scenarios.Plan{Scenarios: chosen, Dir: f.out, Repeat: f.repeat, Parallel: f.parallel, Resume: f.resume, Budget: f.budget,
		Options: runner.Options{System: system, Spec: f.system, Seed: f.seed, Scale: f.scale, Defect: f.defect, Postgres: postgres}}
	if virtual, _, err := simulate(f.system, false); err == nil && !f.simulated {
		plan.Virtual = virtual
	}
	if f.budget > 0 {
		plan.Scenarios = scenarios.OrderByCoverage(chosen)
	}
	if err := inOrder(f.out, f.resume, plan.Taken); err != nil {
		return err
	}
	if plan.Dir, err = folderFor(f.out, ""); err != nil {
		return err
	}
	progress := newProgress(cmd.ErrOrStderr(), len(chosen)*f.repeat)
	plan.Began, plan.Done = progress.began, progress.done
	if application {
		plan.Began, plan.Done = nil, func(o scenarios.Outcome) { sayShowing(cmd.ErrOrStderr(), scenarios.Show(o)) }
	}
	outcomes, err := plan.Run(cmd.Context())
	if err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	if left := len(chosen)*f.repeat - len(outcomes); err != nil && left > 0 {
		outcomes = append(outcomes, scenarios.Outcome{Name: fmt.Sprintf("%d more of %d runs", left, len(chosen)*f.repeat),
			Err: fmt.Errorf("%w: interrupted before they were begun", runner.ErrNoEvidence)})
	}
	sayLeftOut(cmd.ErrOrStderr(), f.budget, plan.Scenarios, outcomes)
	sign(outcomes)
	if application {
		return showApplication(cmd, f.format, plan.Dir, outcomes)
	}
	return show(cmd, format, plan.Dir, outcomes)
}

// defaultRuns is the default directory of evidence.
const defaultRuns = "custody-runs"

// maxSameTime bounds the commands started within one second.
const maxSameTime = 1000

// folderFor returns the directory for evidence: the given one, or a new one
// named by the time.
func folderFor(out, prefix string) (string, error) {
	if out != "" {
		return out, nil
	}
	if err := os.MkdirAll(defaultRuns, 0o700); err != nil {
		return "", unmeasured{fmt.Errorf("a folder for the evidence: %w", err)}
	}
	first := filepath.Join(defaultRuns, prefix+time.Now().Format("20060102-150405"))
	for n := 1; n <= maxSameTime; n++ {
		dir := first
		if n > 1 {
			dir = fmt.Sprintf("%s-%d", first, n)
		}
		switch err := os.Mkdir(dir, 0o700); {
		case err == nil:
			return dir, nil
		case !errors.Is(err, fs.ErrExist):
			return "", unmeasured{fmt.Errorf("a folder for the evidence: %w", err)}
		}
	}
	return "", unmeasured{fmt.Errorf("%s and %d others exist: name a folder with --out", first, maxSameTime-1)}
}

// sayLeftOut names the scenarios skipped for lack of time.
func sayLeftOut(w io.Writer, budget time.Duration, wanted []script.Scenario, outcomes []scenarios.Outcome) {
	var left []string
	for _, s := range wanted {
		if !slices.ContainsFunc(outcomes, func(o scenarios.Outcome) bool { return o.Judgement.Scenario == s.Name || o.Name == s.Name }) {
			left = append(left, s.Name)
		}
	}
	if budget > 0 && len(left) > 0 {
		fmt.Fprintf(w, "left out, because the budget of %s is spent: %s\n", budget, strings.Join(left, ", "))
	}
}

// remoteUsage describes --allow-remote.
const remoteUsage = "a server of your own may be on another machine; it is flooded, and struck if it has commands for that"

// findInstalled finds a system that is installed or, if allowed, remote.
func findInstalled(spec string, scale float64, remote bool) (systems.System, error) {
	s, err := registry.Find(spec, scale)
	if err != nil {
		return nil, err
	}
	if need, ok := s.(systems.Installed); ok {
		if err := need.Installed(); err != nil {
			return nil, unmeasured{fmt.Errorf("%s is not on this machine: %w", spec, err)}
		}
	}
	if remote {
		s = external.AllowRemote(s)
	}
	return s, nil
}

const diskUsage = "in the simulation: the rows are in the broker's real store, on a simulated disk that may lose what was not synced when the broker is killed"

// simulate finds a system to run in virtual time, which needs no slack: its
// scale is 1.
func simulate(spec string, disk bool) (systems.System, float64, error) {
	found, err := registry.Find(spec, 1)
	if err != nil {
		return nil, 0, err
	}
	system, ok := simulated.Of(found, disk)
	if !ok {
		return nil, 0, fmt.Errorf("%s cannot be simulated: only the reference broker can (--system zeromq)", spec)
	}
	return system, 1, nil
}

// show renders the runs of a plan; its error carries the exit code.
func show(cmd *cobra.Command, format reports.Format, dir string, outcomes []scenarios.Outcome) error {
	report, err := loadOutcomes(cmd.ErrOrStderr(), outcomes)
	if err != nil {
		return err
	}
	if err := format.Write(cmd.OutOrStdout(), report); err != nil {
		return unmeasured{err}
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "evidence in %s; a page of it: custody report %s --format html --out report.html\n", dir, dir)
	return exitOf(scenarios.Exit(outcomes))
}

// loadOutcomes loads runs by their outcomes. One without usable evidence is
// counted and reported all the same.
func loadOutcomes(say io.Writer, outcomes []scenarios.Outcome) (reports.Report, error) {
	report := reports.Report{Command: commandLine(), Custody: evidence.Version()}
	for _, o := range outcomes {
		if o.Err != nil {
			fmt.Fprintf(say, "custody: %s: could not measure: %v\n", o.Name, firstLine(o.Err))
		}
		if errors.Is(o.Err, runner.ErrNoEvidence) { // anything there belongs to another run
			report.Failed = append(report.Failed, reports.Failure{Name: o.Name, Why: firstLine(o.Err)})
			continue
		}
		one, err := reports.LoadJudged([]string{o.Dir}, judgedAs(o))
		switch {
		case err != nil && o.Err == nil:
			return report, unmeasured{err}
		case err != nil, o.Exit() == guarantees.ExitUnmeasured && one.Exit() != guarantees.ExitUnmeasured:
			report.Failed = append(report.Failed, reports.Failure{Name: o.Name, Why: firstLine(errors.Join(o.Err, err))})
		default:
			report.Runs = append(report.Runs, one.Runs...)
		}
	}
	return report, nil
}

// judgedAs avoids judging an outcome's evidence twice.
func judgedAs(o scenarios.Outcome) map[string]guarantees.Judgement {
	if o.Judgement.Judge == "" {
		return nil
	}
	return map[string]guarantees.Judgement{o.Dir: o.Judgement}
}

// commandLine is the command as typed, quoted for a shell.
func commandLine() string { return "custody " + reports.ShellLine(os.Args[1:]) }

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

func findFormat(name string) (reports.Format, error) {
	return named("format", name, reports.Formats(), func(f reports.Format) string { return f.Name })
}

// named finds an element of list by name.
func named[T any](what, name string, list []T, nameOf func(T) string) (found T, err error) {
	names := make([]string, len(list))
	for i, one := range list {
		if names[i] = nameOf(one); names[i] == name {
			return one, nil
		}
	}
	return found, fmt.Errorf("no %s %q%s", what, name, script.Suggest(name, names))
}

// progress reports on long work: a line per finished run and, on a terminal,
// what is running.
type progress struct {
	w       io.Writer
	live    bool
	width   int // of a line in cells
	total   int
	mu      sync.Mutex
	ended   int
	running []string
	started map[string]time.Time
}

func newProgress(w io.Writer, total int) *progress {
	return &progress{w: w, live: onTerminal(w), width: reports.Width(w), total: total, started: make(map[string]time.Time)}
}

func onTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}

func (p *progress) began(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.started[name] = time.Now()
	p.running = append(p.running, name)
	p.show()
}

func (p *progress) done(o scenarios.Outcome) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended++
	p.running = slices.DeleteFunc(p.running, func(name string) bool { return name == o.Name })
	what := o.Judgement.Outcome.String()
	if o.Err != nil {
		what = "could not measure"
	}
	p.clear()
	name := p.width - 33 // the rest of the line, at most 28
	fmt.Fprintf(p.w, "%3d/%d  %s %-16s %5.1fs\n", p.ended, p.total, runewidth.FillRight(runewidth.Truncate(o.Name, min(name, 28), "…"), min(name, 28)),
		what, time.Since(p.started[o.Name]).Seconds())
	p.show()
}

const clearLine = "\r\x1b[K"

func (p *progress) clear() {
	if p.live {
		fmt.Fprint(p.w, clearLine)
	}
}

// show prints what is running on a line that the next call replaces.
func (p *progress) show() {
	if !p.live || len(p.running) == 0 {
		return
	}
	fmt.Fprint(p.w, clearLine, runewidth.Truncate("running: "+strings.Join(p.running, ", "), p.width-1, "…"))
}
