package guarantees

import (
	"testing"

	"github.com/custodymq/custody/evidence"
)

func TestCombine(t *testing.T) {
	judged := func(o Outcome) Verdict { return Verdict{Outcome: o, Claimed: true, Covered: true} }
	uncovered := Verdict{Outcome: Violated, Claimed: true}
	unclaimed := Verdict{Outcome: Violated}
	cases := []struct {
		name     string
		verdicts []Verdict
		want     Outcome
	}{
		{"nothing", nil, NotClaimed},
		{"held", []Verdict{judged(Held), judged(Held)}, Held},
		{"violated before all", []Verdict{judged(Held), judged(Inconclusive), judged(Violated)}, Violated},
		{"inconclusive before held", []Verdict{judged(Inconclusive), judged(Held)}, Inconclusive},
		{"not applicable takes no part", []Verdict{judged(NotApplicable), judged(Held)}, Held},
		{"only not applicable", []Verdict{judged(NotApplicable)}, NotClaimed},
		{"uncovered takes no part", []Verdict{uncovered, judged(Held)}, Held},
		{"unclaimed takes no part", []Verdict{unclaimed}, NotClaimed},
	}
	for _, c := range cases {
		if got := Combine(c.verdicts); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestExitCode(t *testing.T) {
	cases := []struct {
		j    Judgement
		want int
	}{
		{Judgement{}, ExitInconclusive}, // the zero judgement is not a pass
		{Judgement{Outcome: Held}, ExitHeld},
		{Judgement{Outcome: Violated}, ExitViolated},
		{Judgement{Outcome: NotClaimed}, ExitNone},
		{Judgement{Outcome: NotApplicable}, ExitNone},
		{Judgement{Outcome: Inconclusive, Error: "disk full"}, ExitUnmeasured},
		{Judgement{Outcome: NotClaimed, Error: "disk full"}, ExitUnmeasured},
		{Judgement{Outcome: Violated, Error: "disk full"}, ExitViolated},
	}
	for _, c := range cases {
		if got := ExitCode(c.j); got != c.want {
			t.Errorf("%v %q: %d, want %d", c.j.Outcome, c.j.Error, got, c.want)
		}
	}
}

func TestCombineExits(t *testing.T) {
	cases := []struct {
		codes []int
		want  int
	}{
		{nil, ExitInconclusive},
		{[]int{ExitNone, ExitNone}, ExitInconclusive},
		{[]int{0, 0}, ExitHeld},
		{[]int{0, ExitNone}, ExitHeld},
		{[]int{0, 2}, ExitInconclusive},
		{[]int{2, 3, 0}, ExitUnmeasured},
		{[]int{3, 1, 2, 0}, ExitViolated},
		{[]int{0, 137}, ExitUnmeasured},
	}
	for _, c := range cases {
		if got := CombineExits(c.codes); got != c.want {
			t.Errorf("%v: %d, want %d", c.codes, got, c.want)
		}
	}
}

func TestCoverage(t *testing.T) {
	claims := []evidence.Claim{
		{Guarantee: "g", Under: []evidence.Class{evidence.Link}, Owner: evidence.OwnerSystem},
		{Guarantee: "g", Under: []evidence.Class{evidence.Link, evidence.Store}, Owner: evidence.OwnerApplication},
	}
	cases := []struct {
		name             string
		guarantee        string
		fired            []evidence.Class
		claimed, covered bool
		owner            evidence.Owner
	}{
		{"no fault is always covered", "g", nil, true, true, evidence.OwnerSystem},
		{"the second claim covers", "g", []evidence.Class{evidence.Store}, true, true, evidence.OwnerApplication},
		{"every class must be covered", "g", []evidence.Class{evidence.Link, evidence.Clock}, true, false, evidence.OwnerSystem},
		{"not claimed", "h", nil, false, false, ""},
	}
	for _, c := range cases {
		claimed, covered, owner := coverage(claims, c.guarantee, c.fired)
		if claimed != c.claimed || covered != c.covered || owner != c.owner {
			t.Errorf("%s: %v %v %q", c.name, claimed, covered, owner)
		}
	}
}
