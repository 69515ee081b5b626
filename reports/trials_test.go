package reports

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/custodymq/custody/guarantees"
)

func TestExcluded(t *testing.T) {
	for n, want := range map[int]float64{0: 1, 1: 0.95, 5: 0.45072, 10: 0.25887, 100: 0.029513, 1000: 0.0029913} {
		if got := Excluded(n); math.Abs(got-want) > want/1e4 {
			t.Errorf("%d runs exclude %v, want %v", n, got, want)
		}
	}
	for n := 1; n < 5000; n++ {
		if got := Excluded(n); got >= 3/float64(n) {
			t.Fatalf("%d runs exclude %v, which is not less than 3/n", n, got)
		}
	}
}

// The expected values come from bisecting the binomial distribution itself,
// without a beta function.
func TestRates(t *testing.T) {
	for _, c := range []struct {
		k, n     int
		from, to float64
	}{
		{1, 112, 0.0002260296, 0.04874330},
		{9, 12, 0.4281415, 0.9451394},
		{4, 10, 0.1215523, 0.7376219},
		{3, 20, 0.03207094, 0.3789268},
		{7, 10, 0.3475471, 0.9332605},
		{5, 5, 0.4781762, 1},
		{1, 1, 0.025, 1},
		{0, 100, 0, 0.029513},
		{0, 0, 0, 1},
	} {
		from, to := Rates(c.k, c.n)
		if math.Abs(from-c.from) > 1e-6 || math.Abs(to-c.to) > 1e-5 {
			t.Errorf("%d of %d: %v to %v, want %v to %v", c.k, c.n, from, to, c.from, c.to)
		}
	}
}

// The bounds are exact: at the lower one, this many failures or more have a
// probability of 2.5 %; at the upper one, this many or fewer.
func TestRatesAreExact(t *testing.T) {
	atMost := func(k, n int, p float64) (sum float64) {
		for i := range k + 1 {
			a, _ := math.Lgamma(float64(n + 1))
			b, _ := math.Lgamma(float64(i + 1))
			c, _ := math.Lgamma(float64(n - i + 1))
			sum += math.Exp(a - b - c + float64(i)*math.Log(p) + float64(n-i)*math.Log1p(-p))
		}
		return sum
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 2000).Draw(t, "n")
		k := rapid.IntRange(1, n-1).Draw(t, "k")
		from, to := Rates(k, n)
		if got := 1 - atMost(k-1, n, from); math.Abs(got-0.025) > 1e-6 {
			t.Errorf("%d of %d: at %v the chance is %v", k, n, from, got)
		}
		if got := atMost(k, n, to); math.Abs(got-0.025) > 1e-6 {
			t.Errorf("%d of %d: at %v the chance is %v", k, n, to, got)
		}
	})
}

func TestCleanRuns(t *testing.T) {
	for _, c := range []struct{ k, n, want int }{{1, 112, 13253}, {9, 12, 6}, {1, 1, 119}, {0, 100, 0}, {5, 5, 5}} {
		got := CleanRuns(c.k, c.n)
		if got != c.want {
			t.Errorf("%d of %d: %d clean runs, want %d", c.k, c.n, got, c.want)
		}
		if from, _ := Rates(c.k, c.n); got > 0 && (math.Pow(1-from, float64(got)) >= 0.05 || math.Pow(1-from, float64(got-1)) < 0.05) {
			t.Errorf("%d of %d: %d is not the fewest", c.k, c.n, got)
		}
	}
}

// Trials add up over runs, by scenario, profile and guarantee. An unmeasured
// run is not a trial, and a copy of a run is not another one.
func TestTrialsAddUp(t *testing.T) {
	run := func(scenario string, n int, verdicts ...guarantees.Verdict) Run {
		r := sampleRun(scenario, "", time.Second)
		r.Manifest.StartedAt = started.Add(time.Duration(n) * time.Minute)
		r.Manifest.Expect = []string{"no-accepted-loss", "order"}
		r.Judgement.Verdicts, r.Judgement.Outcome = verdicts, guarantees.Combine(verdicts)
		return r
	}
	held := verdict("no-accepted-loss", guarantees.Held, "", 9)
	lost := verdict("no-accepted-loss", guarantees.Violated, "", 9)
	twice := guarantees.Verdict{Guarantee: "no-duplicate-delivery", Outcome: guarantees.Violated}
	unsure := verdict("order", guarantees.Inconclusive, "", 0)
	failed := run("a", 5, held)
	failed.Judgement.Error = "the machine stopped"
	r := Report{Runs: []Run{run("a", 1, held), run("a", 2, lost, unsure), run("a", 3, held, twice), run("a", 3, held, twice), run("b", 4, held), failed}}
	var got []string
	for _, x := range r.trials() {
		got = append(got, x.String())
	}
	want := []string{
		"no-accepted-loss in a on zeromq:sqlite: broken in 1 of 3 runs, a rate between 0.84 % and 91 %; 355 clean runs before it may be called fixed",
		"no-duplicate-delivery in a on zeromq:sqlite: broken in 1 of 3 runs, a rate between 0.84 % and 91 %; 355 clean runs before it may be called fixed",
		"no-accepted-loss in b on zeromq:sqlite: broken in none of 1 run, a rate below 95 %",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if got := proofs(r.trials()); len(got) != 1 || !strings.Contains(got[0], "1 held claim rests on 1 run: a failure in 95 % of runs or more is excluded (95 % confidence)") {
		t.Errorf("proofs are %q", got)
	}
}
