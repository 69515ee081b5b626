package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"github.com/custodymq/custody/bench"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/reports"
	"github.com/custodymq/custody/scenarios"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/all"
	"github.com/custodymq/custody/systems/own"
)

type runFlags struct {
	system, out, format, defect string
	sign                        string
	seed                        uint64
	parallel, repeat            int
	scale                       float64
	resume, allowRemote         bool
	profile                     string
	budget                      time.Duration
}

func runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [SCENARIO|FILE…]",
		Short: "Run scenarios against a system and judge the evidence",
		Long: `Run scenarios by name, or scripts from files (they hold a dot or a slash);
without any, the whole checklist. Each run leaves a folder of evidence, from
which it is judged, and from which it can be judged again.`,
		Example: `  custody run
  custody run ack-lost broker-killed --system zeromq:at-least-once-history
  custody run my.scenario --system nats --repeat 5
  custody run --format json > result.json`,
		RunE: func(cmd *cobra.Command, args []string) error { return runScenarios(cmd, args, f) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.system, "system", "zeromq", "SYSTEM[:PROFILE][@IMAGE] or FILE.yaml; see custody list profiles")
	flags.StringVar(&f.profile, "profile", "", "FILE.yaml of a server of your own, the same as --system FILE.yaml")
	flags.BoolVar(&f.allowRemote, "allow-remote", false, remoteUsage)
	flags.StringVar(&f.out, "out", "", "folder for the evidence (default custody-runs/ and the time)")
	flags.StringVar(&f.format, "format", "terminal", "what is printed: terminal, json, junit, markdown or html")
	flags.StringVar(&f.defect, "defect", "", "switch on a seeded defect of the broker or of clients; see custody defects --list")
	flags.Uint64Var(&f.seed, "seed", 1, "of everything that is drawn by chance")
	flags.IntVar(&f.parallel, "parallel", 2*runtime.NumCPU(), "runs at once")
	flags.IntVar(&f.repeat, "repeat", 1, "run each scenario so often; every verdict is shown")
	flags.Float64Var(&f.scale, "scale", bench.DefaultScale, "factor on deadlines, bounds and periods, for a slow machine")
	flags.DurationVar(&f.budget, "budget", 0, "run what fits into this time, most telling first, and say what was left out")
	flags.StringVar(&f.sign, "sign", "", signUsage)
	flags.BoolVar(&f.resume, "resume", false, "take the whole runs that the folder given with --out already holds, and make the others")
	return cmd
}

func runScenarios(cmd *cobra.Command, args []string, f runFlags) error {
	format, err := findFormat(f.format)
	if err != nil {
		return err
	}
	if f.parallel < 1 || f.repeat < 1 || f.scale <= 0 || f.budget < 0 {
		return errors.New("--parallel, --repeat, --scale and --budget must be positive")
	}
	if f.profile != "" {
		if cmd.Flags().Changed("system") || !own.IsFile(f.profile) {
			return errors.New("--profile takes a file that ends in .yaml or .yml, and no --system beside it; profiles of an adapter are named by --system SYSTEM:PROFILE")
		}
		f.system = f.profile
	}
	system, err := findInstalled(f.system, f.scale, f.allowRemote)
	if err != nil {
		return err
	}
	chosen, err := choose(args)
	if err != nil {
		return err
	}
	sign, err := signer(f.sign)
	if err != nil {
		return err
	}
	dir := folderFor(f.out, "")
	plan := scenarios.Plan{Scenarios: chosen, Dir: dir, Repeat: f.repeat, Parallel: f.parallel, Resume: f.resume, Budget: f.budget,
		Options: bench.Options{System: system, Spec: f.system, Seed: f.seed, Scale: f.scale, Defect: f.defect}}
	if f.budget > 0 {
		plan.Scenarios = scenarios.MostTelling(chosen)
	}
	progress := newProgress(cmd.ErrOrStderr(), len(chosen)*f.repeat)
	plan.Began, plan.Done = progress.began, progress.done
	outcomes, err := plan.Run(cmd.Context())
	if err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	sayLeftOut(cmd.ErrOrStderr(), f.budget, plan.Scenarios, outcomes)
	sign(outcomes)
	return show(cmd, format, dir, outcomes)
}

// folderFor evidence: the one that was named, or one with the time in its name.
func folderFor(out, prefix string) string {
	if out != "" {
		return out
	}
	return filepath.Join("custody-runs", prefix+time.Now().Format("20060102-150405"))
}

// sayLeftOut names the scenarios for which the budget did not suffice.
func sayLeftOut(w io.Writer, budget time.Duration, wanted []script.Scenario, outcomes []scenarios.Outcome) {
	var left []string
	for _, s := range wanted {
		if !slices.ContainsFunc(outcomes, func(o scenarios.Outcome) bool { return o.Judgement.Scenario == s.Name || o.Name == s.Name }) {
			left = append(left, s.Name)
		}
	}
	if budget > 0 && len(left) > 0 {
		fmt.Fprintf(w, "left out, for the budget of %s is spent: %s\n", budget, strings.Join(left, ", "))
	}
}

// remoteUsage is of --allow-remote.
const remoteUsage = "a server of your own may be on another machine; it is flooded, and struck if it has commands for that"

// findInstalled finds a system that is on this machine, or that may be on another.
func findInstalled(spec string, scale float64, remote bool) (systems.System, error) {
	s, err := all.Find(spec, scale)
	if err != nil {
		return nil, err
	}
	if need, ok := s.(systems.Installed); ok {
		if err := need.Installed(); err != nil {
			return nil, unmeasured{fmt.Errorf("%s is not on this machine: %w", spec, err)}
		}
	}
	if remote {
		s = own.AllowRemote(s)
	}
	return s, nil
}

// show renders the runs of a plan; its error carries the exit code.
func show(cmd *cobra.Command, format reports.Format, dir string, outcomes []scenarios.Outcome) error {
	var dirs []string
	judged := make(map[string]guarantees.Judgement)
	for _, o := range outcomes {
		if o.Judgement.Judge != "" {
			judged[o.Dir] = o.Judgement
		}
		if o.Err != nil {
			fmt.Fprintf(cmd.ErrOrStderr(), "custody: %s: could not measure: %v\n", o.Name, firstLine(o.Err))
		}
		if !errors.Is(o.Err, bench.ErrNoEvidence) {
			dirs = append(dirs, o.Dir)
		}
	}
	if len(dirs) == 0 && len(outcomes) > 0 {
		return exit(guarantees.ExitUnmeasured) // each has said why
	}
	report, err := reports.LoadJudged(dirs, judged)
	if err != nil {
		return unmeasured{err}
	}
	report.Command = strings.Join(os.Args[1:], " ")
	if err := format.Write(cmd.OutOrStdout(), report); err != nil {
		return unmeasured{err}
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "evidence in %s; a page of it: custody report %s --format html --out report.html\n", dir, dir)
	return exitOf(scenarios.Exit(outcomes))
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// choose finds scenarios by name, or reads scripts from files.
func choose(args []string) ([]script.Scenario, error) {
	if len(args) == 0 {
		return scenarios.All(), nil
	}
	var chosen []script.Scenario
	for _, a := range args {
		s, err := scenarios.Find(a)
		if strings.ContainsAny(a, "./") {
			s, err = readScript(a)
		}
		if err != nil {
			return nil, err
		}
		if err := bench.Check(s); err != nil {
			return nil, err
		}
		chosen = append(chosen, s)
	}
	return chosen, nil
}

// maxScriptFile bounds the file of a script, in bytes.
const maxScriptFile = 16 << 20

func readScript(file string) (script.Scenario, error) {
	text, err := evidence.ReadRegular(file, maxScriptFile)
	if err != nil {
		return script.Scenario{}, fmt.Errorf("read a script: %w", err)
	}
	return script.Parse(file, string(text))
}

func findFormat(name string) (reports.Format, error) {
	return named("format", name, reports.Formats(), func(f reports.Format) string { return f.Name })
}

// named is the one of list that has this name.
func named[T any](what, name string, list []T, nameOf func(T) string) (found T, err error) {
	names := make([]string, len(list))
	for i, one := range list {
		if names[i] = nameOf(one); names[i] == name {
			return one, nil
		}
	}
	return found, fmt.Errorf("no %s %q%s", what, name, script.Suggest(name, names))
}

// progress tells of long work: a line for each run that has ended and, on a
// terminal, what is running now.
type progress struct {
	w       io.Writer
	live    bool
	total   int
	mu      sync.Mutex
	ended   int
	running []string
	started map[string]time.Time
}

func newProgress(w io.Writer, total int) *progress {
	return &progress{w: w, live: onTerminal(w), total: total, started: make(map[string]time.Time)}
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
	fmt.Fprintf(p.w, "%3d/%d  %-28s %-16s %5.1fs\n", p.ended, p.total, o.Name, what, time.Since(p.started[o.Name]).Seconds())
	p.show()
}

const clearLine = "\r\x1b[K"

func (p *progress) clear() {
	if p.live {
		fmt.Fprint(p.w, clearLine)
	}
}

// show what is running, on one line that the next one replaces.
func (p *progress) show() {
	if !p.live || len(p.running) == 0 {
		return
	}
	line := strings.Join(p.running, ", ")
	if len(line) > 80 {
		line = line[:79] + "…"
	}
	fmt.Fprintf(p.w, "%srunning: %s", clearLine, line)
}
