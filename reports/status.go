package reports

import (
	"github.com/custodymq/custody/guarantees"
)

// Status is an outcome, or what replaces it, as shown by every format and
// carried by JSON and comparisons.
type Status string

const (
	StatusViolated      Status = "violated"
	StatusUnmeasured    Status = "unmeasured" // the harness or the machine failed: an error, never a verdict
	StatusInconclusive  Status = "inconclusive"
	StatusHeld          Status = "held"
	StatusNotClaimed    Status = "not-claimed"
	StatusNotApplicable Status = "not-applicable"
	StatusAbsent        Status = "absent" // in comparisons: one side has no such run or verdict
)

// Statuses lists all statuses, the most urgent first.
func Statuses() []Status {
	return []Status{StatusViolated, StatusUnmeasured, StatusInconclusive, StatusHeld, StatusNotClaimed, StatusNotApplicable}
}

// statuses defines how each status is shown. Colour is never the only
// difference.
var statuses = map[Status]struct {
	mark, words string
	exit        int
	exitText    string
}{
	StatusViolated:      {"✗", "violated", guarantees.ExitViolated, "a claimed guarantee is violated"},
	StatusUnmeasured:    {"!", "not measured", guarantees.ExitUnmeasured, "the harness or the machine failed; no verdict"},
	StatusInconclusive:  {"?", "inconclusive", guarantees.ExitInconclusive, "nothing broke, and not everything was put to the test"},
	StatusHeld:          {"✓", "held", guarantees.ExitHeld, "every claimed guarantee held"},
	StatusNotClaimed:    {"○", "not claimed", guarantees.ExitNone, ""},
	StatusNotApplicable: {"–", "not applicable", guarantees.ExitNone, ""},
	StatusAbsent:        {"·", "absent", guarantees.ExitNone, ""},
}

func (s Status) words() string { return statuses[s].words }
func (s Status) mark() string  { return statuses[s].mark }

var ofOutcome = map[guarantees.Outcome]Status{
	guarantees.Inconclusive:  StatusInconclusive,
	guarantees.Held:          StatusHeld,
	guarantees.Violated:      StatusViolated,
	guarantees.NotApplicable: StatusNotApplicable,
	guarantees.NotClaimed:    StatusNotClaimed,
}

// statusOf returns the status of an outcome. An unknown outcome proves
// nothing.
func statusOf(o guarantees.Outcome) Status {
	if s, ok := ofOutcome[o]; ok {
		return s
	}
	return StatusInconclusive
}
