package guarantees

import (
	"slices"

	"github.com/custodymq/custody/evidence"
)

// ExitNone is the exit code of a run that does not count: it is NotClaimed or
// NotApplicable.
const ExitNone = -1

// Combine returns the outcome of several verdicts. Verdicts that are not
// applicable, not claimed, not covered or known do not count. Of the rest, it
// is Violated if any is, else Inconclusive if any is, else Held; NotClaimed if
// there are none.
func Combine(verdicts []Verdict) Outcome {
	var n [NotClaimed + 1]int
	for _, v := range verdicts {
		if v.Counts() {
			n[v.Outcome]++
		}
	}
	for _, o := range []Outcome{Violated, Inconclusive, Held} {
		if n[o] > 0 {
			return o
		}
	}
	return NotClaimed
}

// exits maps outcomes to exit codes.
var exits = [...]int{
	Inconclusive: ExitInconclusive, Held: ExitHeld, Violated: ExitViolated,
	NotApplicable: ExitNone, NotClaimed: ExitNone,
}

// ExitCode returns the exit code of one run. A failure of the harness or
// machine is not a verdict, but violations proven before it stand.
func ExitCode(j Judgement) int {
	if j.Error != "" && j.Outcome != Violated {
		return ExitUnmeasured
	}
	return exits[j.Outcome]
}

// CombineExits returns the exit code of several runs: violated, else
// unmeasured, else inconclusive, else held. If no run counts it is
// inconclusive, because nothing judged is never success. Any other code counts
// as unmeasured.
func CombineExits(codes []int) int {
	ranked := []int{ExitHeld, ExitInconclusive, ExitUnmeasured, ExitViolated}
	worst := -1
	for _, c := range codes {
		if c == ExitNone {
			continue
		}
		rank := slices.Index(ranked, c)
		if rank < 0 {
			rank = slices.Index(ranked, ExitUnmeasured)
		}
		worst = max(worst, rank)
	}
	if worst < 0 {
		return ExitInconclusive
	}
	return ranked[worst]
}

// coverage finds the claim on a guarantee, preferring one that covers the
// classes that fired.
func coverage(claims []evidence.Claim, guarantee string, fired []evidence.Class) (claimed, covered bool, owner evidence.Owner) {
	for _, c := range claims {
		if c.Guarantee != guarantee {
			continue
		}
		if c.Covers(fired) {
			return true, true, c.Owner
		}
		if !claimed {
			claimed, owner = true, c.Owner
		}
	}
	return claimed, false, owner
}
