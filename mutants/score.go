package main

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
)

// Tally counts outcomes of a package, or of all.
type Tally struct {
	Mutants    int // generated
	Judged     int // that compile
	Killed     int
	Noticed    int
	Survived   int
	Equivalent int // judged and marked; not counted elsewhere
}

func (t *Tally) add(r Result, equivalent bool) {
	if r.Outcome == Stillborn {
		return
	}
	t.Judged++
	switch {
	case equivalent && r.Outcome != Killed:
		t.Equivalent++
	case r.Outcome == Killed:
		t.Killed++
	case r.Outcome == Noticed:
		t.Noticed++
	default:
		t.Survived++
	}
}

func (t Tally) of() int { return t.Judged - t.Equivalent }

// Score returns the percentage killed of those not equivalent, or NaN.
func (t Tally) Score() float64 { return 100 * float64(t.Killed) / float64(t.of()) }

// Interval returns the score's 95 % confidence interval (Wilson), if the
// mutants judged are a random sample.
func (t Tally) Interval() (low, high float64) { return wilson(t.Killed, t.of()) }

func wilson(k, n int) (low, high float64) {
	if n == 0 {
		return 0, 100
	}
	const z = 1.959964
	p, m := float64(k)/float64(n), float64(n)
	middle := (p + z*z/(2*m)) / (1 + z*z/m)
	half := z / (1 + z*z/m) * math.Sqrt(p*(1-p)/m+z*z/(4*m*m))
	return 100 * max(0, middle-half), 100 * min(1, middle+half)
}

// Summary summarises a run.
type Summary struct {
	All        []Mutant // generated
	Results    []Result
	Equivalent map[Identity]string
}

func (s Summary) tallies() (packages map[string]*Tally, total Tally) {
	packages = map[string]*Tally{}
	of := func(id Identity) *Tally {
		t := packages[id.Package()]
		if t == nil {
			t = &Tally{}
			packages[id.Package()] = t
		}
		return t
	}
	for _, m := range s.All {
		of(m.Identity).Mutants++
		total.Mutants++
	}
	for _, r := range s.Results {
		_, equivalent := s.Equivalent[r.Identity]
		of(r.Identity).add(r, equivalent)
		total.add(r, equivalent)
	}
	return packages, total
}

// Contradictions returns killed mutants that are marked as equivalent.
func (s Summary) Contradictions() []Result {
	var found []Result
	for _, r := range s.Results {
		if _, marked := s.Equivalent[r.Identity]; marked && r.Outcome == Killed {
			found = append(found, r)
		}
	}
	return found
}

// Print writes the scores as a Markdown table, and the number killed per stage.
func (s Summary) Print(w io.Writer) {
	packages, total := s.tallies()
	t := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprintln(t, "| package\t| mutants\t| judged\t| equivalent\t| killed\t| noticed\t| survived\t| score\t| 95 %\t| with noticed\t|")
	fmt.Fprintln(t, "|---\t|---\t|---\t|---\t|---\t|---\t|---\t|---\t|---\t|---\t|")
	row := func(name string, n Tally) {
		low, high := n.Interval()
		fmt.Fprintf(t, "| %s\t| %d\t| %d\t| %d\t| %d\t| %d\t| %d\t| %s\t| %.0f–%.0f %%\t| %s\t|\n", name, n.Mutants, n.Judged, n.Equivalent,
			n.Killed, n.Noticed, n.Survived, share(n.Killed, n.of()), low, high, share(n.Killed+n.Noticed, n.of()))
	}
	for _, name := range slices.Sorted(maps.Keys(packages)) {
		row(name, *packages[name])
	}
	row("all", total)
	t.Flush()
	stages := map[string]int{}
	for _, r := range s.Results {
		if r.Outcome == Killed {
			stages[r.Stage]++
		}
	}
	fmt.Fprintln(w)
	for _, name := range slices.Sorted(maps.Keys(stages)) {
		fmt.Fprintf(w, "killed by %s: %d\n", name, stages[name])
	}
}

func share(k, n int) string {
	if n == 0 {
		return "–"
	}
	return fmt.Sprintf("%.0f %%", 100*float64(k)/float64(n))
}

// Diffs writes the mutants with an outcome, each with its diff.
func (s Summary) Diffs(w io.Writer, outcome Outcome) {
	for _, r := range s.Results {
		if r.Outcome != outcome {
			continue
		}
		if _, marked := s.Equivalent[r.Identity]; marked {
			continue
		}
		fmt.Fprintf(w, "%s %s:%d %s in %s\n", r.Outcome, r.File, r.Row, r.Operator, r.Func)
		if r.By != "" {
			fmt.Fprintf(w, "%s: %s\n", r.Stage, r.By)
		}
		fmt.Fprintf(w, "%s\n", strings.TrimSuffix(r.Diff, "\n"))
		fmt.Fprintln(w)
	}
}
