package reports

import (
	"fmt"
	"slices"
	"strings"

	"github.com/custodymq/custody/guarantees"
)

// group holds the findings of one kind about one guarantee. They are shown as
// one, so that repetitions do not bury the one that matters.
type group struct {
	Guarantee, Kind string
	Findings        []guarantees.Finding // never empty
}

// First represents the group.
func (g group) First() guarantees.Finding { return g.Findings[0] }

// Rest returns the other findings.
func (g group) Rest() []guarantees.Finding { return g.Findings[1:] }

// groups returns groups in the order of their first findings.
func groups(fs []guarantees.Finding) []group {
	var all []group
	at := map[[2]string]int{}
	for _, f := range fs {
		k := [2]string{f.Guarantee, f.Kind}
		i, ok := at[k]
		if !ok {
			i = len(all)
			at[k] = i
			all = append(all, group{Guarantee: f.Guarantee, Kind: f.Kind})
		}
		all[i].Findings = append(all[i].Findings, f)
	}
	return all
}

// leftOut counts the findings that a judgement does not list: verdicts and runs
// keep a bounded number. Unlisted findings of a violated claim count as
// breaking it; unconfirmed ones break none.
func leftOut(j guarantees.Judgement, listed []guarantees.Finding, broken bool) int {
	shown := map[string]int{}
	for _, f := range listed {
		shown[f.Guarantee]++
	}
	left := 0
	for _, v := range j.Verdicts {
		n := 0
		for _, f := range v.Findings {
			if broken == (v.Counts() && !f.Unconfirmed) {
				n++
			}
		}
		if broken == (v.Counts() && v.Outcome == guarantees.Violated) {
			n += v.FindingsLeftOut
		}
		left += max(0, n-shown[v.Guarantee])
	}
	return left
}

// findings holds the findings of a run that break a claim, or those that break
// none.
type findings struct {
	Groups []group
	Total  int
	Left   int // part of Total that the judgement does not list
}

func brokenOf(j guarantees.Judgement) findings { return findingsOf(j, j.Broken, true) }

func seenOf(j guarantees.Judgement) findings { return findingsOf(j, seenOnly(j), false) }

func findingsOf(j guarantees.Judgement, listed []guarantees.Finding, broken bool) findings {
	left := leftOut(j, listed, broken)
	return findings{groups(listed), len(listed) + left, left}
}

// heading titles a list of findings with their total number.
func (f findings) heading(what string) string {
	if f.Total == len(f.Groups) {
		return what
	}
	return fmt.Sprintf("%s: %s of %s", what, plural(f.Total, "finding"), plural(len(f.Groups), "kind"))
}

// more says how many further findings the group represents.
func (g group) more() string {
	if n := len(g.Findings) - 1; n > 0 {
		return fmt.Sprintf("and %d more like it", n)
	}
	return ""
}

// standing is the state of an expected guarantee that takes no part in the
// outcome. Omitting it would read as "held".
type standing struct {
	Guarantee string
	What      string // "seen broken, not claimed", "not applicable: …"
	Scenarios []string
}

const seenBroken = "seen broken, not claimed"

// standingOf returns the standing of a verdict. It is empty if the verdict
// takes part in the outcome, or if the tally covers it: held or undecided
// without a claim.
func standingOf(v guarantees.Verdict) string {
	switch {
	case v.Outcome == guarantees.NotApplicable:
		return strings.TrimSuffix("not applicable: "+v.Why, ": ")
	case v.Outcome != guarantees.Violated || v.Counts():
		return ""
	case v.Known != "":
		return "seen broken, " + v.Known
	}
	return seenBroken
}

// standings returns those of expected guarantees, seen broken first.
func (r Report) standings() []standing {
	var all []standing
	at := map[[2]string]int{}
	for _, run := range r.Runs {
		for _, v := range run.Judgement.Verdicts {
			what := standingOf(v)
			if what == "" || !run.expected(v.Guarantee) {
				continue
			}
			k := [2]string{v.Guarantee, what}
			i, ok := at[k]
			if !ok {
				i = len(all)
				at[k] = i
				all = append(all, standing{Guarantee: v.Guarantee, What: what})
			}
			if name := run.Judgement.Scenario; !slices.Contains(all[i].Scenarios, name) {
				all[i].Scenarios = append(all[i].Scenarios, name)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b standing) int {
		rank := func(s standing) int {
			if strings.HasPrefix(s.What, "seen broken") {
				return 0
			}
			return 1
		}
		return rank(a) - rank(b)
	})
	return all
}

func (s standing) String() string {
	const most = 4
	some, left := bounded(s.Scenarios, most)
	where := strings.Join(some, ", ")
	if left > 0 {
		where += fmt.Sprintf(" and %d more", left)
	}
	return fmt.Sprintf("%s: %s (%s)", s.Guarantee, s.What, where)
}
