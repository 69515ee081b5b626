// Command mutants measures what the checklist and exploration detect. It makes
// small changes to the reference broker, its client and the business database,
// one at a time, and asks custody run and custody explore whether a claim is
// violated. Unit tests take no part.
//
// Exit codes: 0 measured · 1 the score is below -min, or a mutant marked as
// equivalent was killed · 2 invalid usage · 3 could not measure.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"go/build"
	"io"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// packages are those that are mutated.
var packages = []string{"broker/client", "broker/core", "broker/store/sqlite", "broker/wire", "business"}

type options struct {
	tool, equivalent, out, only, stages string
	n, workers                          int
	seed                                uint64
	min                                 float64
	list, resume                        bool
}

func main() {
	var o options
	flag.StringVar(&o.tool, "gremlins", "bin/gremlins", "the mutation tool; make bin/gremlins installs it")
	flag.StringVar(&o.equivalent, "equivalent", "mutants/equivalent.yaml", "the equivalent mutants")
	flag.StringVar(&o.out, "out", "report/mutants", "folder for results.jsonl, summary.md, survived.diff and noticed.diff")
	flag.StringVar(&o.only, "only", "", "only mutants whose file and function, as printed by -list, contain this text")
	flag.StringVar(&o.stages, "stages", "", "only the stages whose name contains this text: quick, and what survives them may be killed by the others")
	flag.IntVar(&o.n, "n", 0, "sample size; 0 judges all mutants")
	flag.Uint64Var(&o.seed, "seed", 1, "of the sample")
	flag.IntVar(&o.workers, "workers", 2*runtime.NumCPU(), "mutants at once; most of a run is spent waiting")
	flag.Float64Var(&o.min, "min", 0, "the score, in percent, below which the exit code is 1")
	flag.BoolVar(&o.list, "list", false, "list the mutants without judging them")
	flag.BoolVar(&o.resume, "resume", false, "keep existing results and measure the rest")
	flag.Parse()
	if flag.NArg() > 0 || o.n < 0 || o.workers < 1 || o.min < 0 || o.min > 100 {
		fmt.Fprintln(os.Stderr, "mutants: takes flags only; -n must not be negative, -workers at least 1, -min from 0 to 100 (see mutants -help)")
		os.Exit(2)
	}
	if err := knownStages(o.stages); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	exit, err := measure(ctx, o, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		exit = 3
	}
	os.Exit(exit)
}

// knownStages is an error if no stage's name contains the text: every mutant would
// survive.
func knownStages(text string) error {
	var names []string
	for _, pkg := range packages {
		for _, s := range stagesFor(pkg) {
			if strings.Contains(s.Name, text) {
				return nil
			}
			if !slices.Contains(names, s.Name) {
				names = append(names, s.Name)
			}
		}
	}
	return fmt.Errorf("-stages %q: no stage's name contains this text; the stages are %s", text, strings.Join(names, ", "))
}

func measure(ctx context.Context, o options, stdout, stderr io.Writer) (exit int, err error) {
	root, err := filepath.Abs(".")
	if err != nil {
		return 0, err
	}
	all, err := generate(ctx, o.tool, root, packages)
	if err != nil {
		return 0, err
	}
	equivalent, err := readEquivalents(o.equivalent, all)
	if err != nil {
		return 0, err
	}
	all = slices.DeleteFunc(all, func(m Mutant) bool { return !strings.Contains(m.File+" "+m.Func, o.only) })
	if len(all) == 0 {
		return 0, fmt.Errorf("no mutant's file and function hold %q", o.only)
	}
	if o.list {
		for _, m := range all {
			fmt.Fprintf(stdout, "%s\n", m.Identity)
		}
		return 0, nil
	}
	out, err := filepath.Abs(o.out)
	if err != nil {
		return 0, err
	}
	work := filepath.Join(out, "work")
	if err := os.RemoveAll(work); err != nil { // of an interrupted run
		return 0, err
	}
	if err := os.MkdirAll(work, 0o755); err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(work) }()
	judge := &Judge{Root: root, Work: work, Stages: func(pkg string) []Stage {
		return slices.DeleteFunc(stagesFor(pkg), func(s Stage) bool { return !strings.Contains(s.Name, o.stages) })
	}}
	command, err := judge.Control(ctx, packages)
	if err != nil {
		return 0, err
	}
	results, err := openResults(filepath.Join(out, "results.jsonl"), command, o.resume)
	if err != nil {
		return 0, err
	}
	defer results.Close()
	draw(all, o.seed)
	judged, err := judgeAll(ctx, judge.Mutant, results, all, o, stderr)
	if err != nil {
		return 0, err
	}
	s := Summary{All: all, Results: judged, Equivalent: equivalent}
	return report(s, o, out, stdout)
}

// generate returns every mutant of the packages, in file order.
func generate(ctx context.Context, tool, root string, packages []string) ([]Mutant, error) {
	tool, err := filepath.Abs(tool)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(tool); err != nil {
		return nil, fmt.Errorf("the mutation tool is missing, make mutants installs it: %w", err)
	}
	var all []Mutant
	for _, pkg := range packages {
		places, err := gremlins(ctx, tool, root, pkg)
		if err != nil {
			return nil, err
		}
		folder, err := build.ImportDir(filepath.Join(root, filepath.FromSlash(pkg)), 0)
		if err != nil {
			return nil, err
		}
		for _, name := range folder.GoFiles { // those built here, without tests
			text, err := os.ReadFile(filepath.Join(folder.Dir, name))
			if err != nil {
				return nil, err
			}
			s, err := parseSource(path.Join(pkg, name), text)
			if err != nil {
				return nil, err
			}
			exchanged, err := tokens(s, places[s.file])
			if err != nil {
				return nil, err
			}
			all = append(append(all, exchanged...), omissions(s)...)
		}
	}
	return distinct(all), nil
}

// judgeAll judges mutants in order until n that compile have a result, or all.
func judgeAll(ctx context.Context, judge func(context.Context, Mutant) (Result, error), results *Results, all []Mutant, o options,
	progress io.Writer) ([]Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	want := o.n
	if want == 0 {
		want = len(all)
	}
	var (
		mu     sync.Mutex
		next   int
		under  int // in progress
		tally  Tally
		judged []Result
		freed  = sync.NewCond(&mu)
	)
	// take returns the next mutant. While the wanted number is in progress it
	// waits, as one of them may turn out not to compile.
	take := func() (Mutant, bool) {
		mu.Lock()
		defer mu.Unlock()
		for ctx.Err() == nil && tally.Judged+under >= want && under > 0 {
			freed.Wait()
		}
		if ctx.Err() != nil || next == len(all) || tally.Judged >= want {
			return Mutant{}, false
		}
		m := all[next]
		next++
		under++
		return m, true
	}
	one := func(m Mutant) error {
		r, known := results.Of(m.Identity)
		if !known {
			var err error
			if r, err = judge(ctx, m); err != nil {
				return fmt.Errorf("%s: %w", m.Identity, err)
			}
			if err := results.Add(r); err != nil {
				return err
			}
		}
		mu.Lock()
		defer mu.Unlock()
		judged = append(judged, r)
		tally.add(r, false)
		if r.Outcome != Stillborn && !known {
			fmt.Fprintf(progress, "%d of %d: %d killed, %d noticed, %d survived · %.1f s: %s %s\n", tally.Judged, want, tally.Killed, tally.Noticed, tally.Survived,
				r.Seconds, r.Outcome, r.Identity)
		}
		return nil
	}
	stopped := context.AfterFunc(ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		freed.Broadcast()
	})
	defer stopped()
	var workers sync.WaitGroup
	for range o.workers {
		workers.Go(func() {
			for m, ok := take(); ok; m, ok = take() {
				if err := one(m); err != nil {
					cancel(err)
				}
				mu.Lock()
				under--
				freed.Broadcast()
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	slices.SortFunc(judged, func(a, b Result) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Row, b.Row), cmp.Compare(a.Identity.String(), b.Identity.String()))
	})
	return judged, nil
}

// report writes the reports and decides the exit code.
func report(s Summary, o options, out string, stdout io.Writer) (exit int, err error) {
	write := func(name string, print func(io.Writer)) {
		var text strings.Builder
		print(&text)
		err = errors.Join(err, os.WriteFile(filepath.Join(out, name), []byte(text.String()), 0o644))
	}
	write("summary.md", s.Print)
	write("survived.diff", func(w io.Writer) { s.Diffs(w, Survived) })
	write("noticed.diff", func(w io.Writer) { s.Diffs(w, Noticed) })
	if err != nil {
		return 0, err
	}
	s.Print(stdout)
	fmt.Fprintln(stdout)
	s.Diffs(stdout, Survived)
	fmt.Fprintf(stdout, "results, survivors and what was only noticed: %s\n", o.out)
	_, total := s.tallies()
	if total.of() == 0 {
		return 0, errors.New("no mutant was judged")
	}
	for _, r := range s.Contradictions() {
		fmt.Fprintf(stdout, "marked as equivalent, and killed by %s (%s): %s\n", r.Stage, r.By, r.Identity)
		exit = 1
	}
	if total.Score() < o.min {
		fmt.Fprintf(stdout, "the score is %.0f %%, below the required %.0f %%\n", total.Score(), o.min)
		exit = 1
	}
	return exit, nil
}
