package reports

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"gonum.org/v1/gonum/mathext"

	"github.com/custodymq/custody/guarantees"
)

// Trials are the runs of one scenario on one profile that tested one guarantee.
// A run is a single trial, however many messages it carried: those share
// servers, faults and luck and are not independent.
type Trials struct {
	Target    string  `json:"target"` // system:profile, and the seeded defect if any
	Scenario  string  `json:"scenario"`
	Guarantee string  `json:"guarantee"`
	Claimed   bool    `json:"claimed"`            // under the faults that fired, in every run
	Expected  bool    `json:"expected,omitempty"` // some run was meant to test it
	Runs      int     `json:"runs"`
	Broken    int     `json:"broken"`           // runs in which it was violated
	Seeded    bool    `json:"seeded,omitempty"` // with a seeded defect, whose rate says nothing about the system
	RateFrom  float64 `json:"rateFrom"`         // bounds of the failure rate at 95 % confidence
	RateTo    float64 `json:"rateTo"`           //
	CleanRuns int     `json:"cleanRuns"`        // clean runs needed before calling it fixed; 0 if none failed
}

// confidence is the level of all failure rates in words, wrong the probability
// of error.
const (
	confidence = "95 %"
	wrong      = 0.05
)

// Excluded is the failure rate that n clean trials exclude with 95 %
// confidence. It is less than 3/n.
func Excluded(n int) float64 {
	if n < 1 {
		return 1
	}
	return 1 - math.Pow(wrong, 1/float64(n))
}

// Rates returns the bounds of the failure rate after n trials at 95 %
// confidence: the exact Clopper-Pearson interval, or 0 to Excluded(n) without
// failures.
func Rates(failures, n int) (from, to float64) {
	k, all := float64(failures), float64(n)
	switch {
	case n < 1 || failures < 0 || failures > n:
		return 0, 1
	case failures == 0:
		return 0, Excluded(n)
	}
	from, to = mathext.InvRegIncBeta(k, all-k+1, wrong/2), 1
	if failures < n {
		to = mathext.InvRegIncBeta(k+1, all-k, 1-wrong/2)
	}
	return from, to
}

// CleanRuns returns the number of clean trials needed before a failure seen
// this often may be called fixed: even at the lower bound of its rate, that
// many clean trials have a probability below 5 %.
func CleanRuns(failures, n int) int {
	from, _ := Rates(failures, n)
	if failures == 0 || from <= 0 {
		return 0
	}
	return int(math.Floor(math.Log(wrong)/math.Log1p(-from))) + 1
}

// trials returns the report's trials, broken ones first, then in the order of
// its runs. Copies of a run count once.
func (r Report) trials() []Trials {
	type key struct{ target, scenario, guarantee string }
	type same struct {
		key
		run     string
		started time.Time
		after   time.Duration
	}
	at, counted := map[key]int{}, map[same]bool{}
	measured := map[key]int{} // runs per scenario, under an empty guarantee
	expected := map[key]bool{}
	var all []Trials
	for _, run := range r.Runs {
		j := run.Judgement
		if run.Status() == StatusUnmeasured || j.Outcome == guarantees.NotApplicable {
			continue
		}
		k := key{run.subject(), j.Scenario, ""}
		id := same{key: k, run: j.Run, started: run.Manifest.StartedAt}
		if end := run.Manifest.End; end != nil {
			id.after = end.After
		}
		if counted[id] {
			continue
		}
		counted[id] = true
		measured[k]++
		for _, v := range j.Verdicts {
			if v.Outcome != guarantees.Held && v.Outcome != guarantees.Violated {
				continue
			}
			k.guarantee = v.Guarantee
			expected[k] = expected[k] || slices.Contains(run.Manifest.Expect, v.Guarantee)
			i, ok := at[k]
			if !ok {
				i = len(all)
				at[k] = i
				all = append(all, Trials{Target: k.target, Scenario: k.scenario, Guarantee: k.guarantee, Claimed: true, Seeded: run.Manifest.Defect != ""})
			}
			t := &all[i]
			t.Claimed = t.Claimed && v.Claimed && v.Covered
			t.Runs++
			if v.Outcome == guarantees.Violated {
				t.Broken++
			}
		}
	}
	for i := range all {
		t := &all[i]
		k := key{t.Target, t.Scenario, t.Guarantee}
		if t.Expected = expected[k]; !t.Expected { // reported only if violated
			k.guarantee = ""
			t.Runs = measured[k]
		}
		t.RateFrom, t.RateTo = Rates(t.Broken, t.Runs)
		t.CleanRuns = CleanRuns(t.Broken, t.Runs)
	}
	slices.SortStableFunc(all, func(a, b Trials) int {
		return min(b.Broken, 1) - min(a.Broken, 1)
	})
	return all
}

func (t Trials) String() string {
	what := fmt.Sprintf("%s in %s on %s", t.Guarantee, t.Scenario, t.Target)
	if t.Broken == 0 {
		return fmt.Sprintf("%s: broken in none of %s, a rate below %s", what, plural(t.Runs, "run"), percentOf(t.RateTo))
	}
	return fmt.Sprintf("%s: broken in %d of %s, a rate between %s and %s; %s before it may be called fixed",
		what, t.Broken, plural(t.Runs, "run"), percentOf(t.RateFrom), percentOf(t.RateTo), plural(t.CleanRuns, "clean run"))
}

// rare returns the trials with failures of claims, and of expected guarantees
// that were tested more than once.
func rare(all []Trials) []Trials {
	return slices.DeleteFunc(slices.Clone(all), func(t Trials) bool {
		return t.Broken == 0 || t.Seeded || !t.Claimed && (!t.Expected || t.Runs < 2)
	})
}

// proofs returns a sentence per number of runs: how many held verdicts rest on
// it, and the failure rate that it excludes.
func proofs(all []Trials) []string {
	held := map[int]int{}
	for _, t := range all {
		if t.Claimed && t.Broken == 0 && !t.Seeded {
			held[t.Runs]++
		}
	}
	var lines []string
	counts := make([]int, 0, len(held))
	for n := range held {
		counts = append(counts, n)
	}
	slices.Sort(counts)
	for _, n := range counts {
		rest := "rest on " + plural(n, "run") + " each"
		if held[n] == 1 {
			rest = "rests on " + plural(n, "run")
		}
		lines = append(lines, fmt.Sprintf("%s %s: a failure in %s of runs or more is excluded (%s confidence)",
			plural(held[n], "held claim"), rest, percentOf(Excluded(n)), confidence))
	}
	return lines
}

// prove adds to a grid what its runs prove together.
func (g *Grid) prove(r Report) {
	all := r.trials()
	for _, t := range rare(all) {
		g.Proofs = append(g.Proofs, t.String())
	}
	g.Proofs = append(proofs(all), g.Proofs...)
}

// percentOf formats a rate to two figures.
func percentOf(rate float64) string {
	p := rate * 100
	if p >= 99.95 {
		return "100 %"
	}
	if p >= 10 {
		return strconv.FormatFloat(p, 'f', 0, 64) + " %"
	}
	return strconv.FormatFloat(p, 'g', 2, 64) + " %"
}
