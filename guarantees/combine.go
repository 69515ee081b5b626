package guarantees

import (
	"slices"

	"github.com/custodymq/custody/evidence"
)

// ExitNone is the exit code of a run that takes no part: nothing it exercised
// is claimed for the faults that fired, or it cannot run on this system.
const ExitNone = -1

// Combine gives the outcome of several verdicts. Those not applicable, not
// claimed, not covered or known take no part; of the rest Violated if any is; else
// Inconclusive if any is; else Held; nothing left is NotClaimed. Never a plain
// maximum: one guarantee that could not be judged is not made good by ten that held.
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

// exits of each outcome of a run.
var exits = [...]int{
	Inconclusive: ExitInconclusive, Held: ExitHeld, Violated: ExitViolated,
	NotApplicable: ExitNone, NotClaimed: ExitNone,
}

// ExitCode of one run. A failure of the harness or machine is no verdict, yet
// what was proven to be broken before it stays broken.
func ExitCode(j Judgement) int {
	if j.Error != "" && j.Outcome != Violated {
		return ExitUnmeasured
	}
	return exits[j.Outcome]
}

// CombineExits gives the exit code of several runs: violated before could not
// measure before inconclusive before held. With no claim judged at all,
// inconclusive: zero requests are never counted as success. A code that is none
// of these (a run that ended in some other way) could not measure.
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

// coverage finds the claim on a guarantee that counts: one that covers the
// classes that fired before one that does not.
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
