package reports

import (
	"github.com/custodymq/custody/guarantees"
)

// Status is a judged outcome, or what stands in its place: the words that every
// format shows, and that JSON and comparisons carry.
type Status string

const (
	StatusViolated      Status = "violated"
	StatusUnmeasured    Status = "unmeasured" // the harness or the machine failed: an error, never a verdict
	StatusInconclusive  Status = "inconclusive"
	StatusHeld          Status = "held"
	StatusNotClaimed    Status = "not-claimed"
	StatusNotApplicable Status = "not-applicable"
	StatusAbsent        Status = "absent" // of a comparison only: one side has no such run or verdict
)

// Statuses is the list of them, those that ask most of the reader first.
func Statuses() []Status {
	return []Status{StatusViolated, StatusUnmeasured, StatusInconclusive, StatusHeld, StatusNotClaimed, StatusNotApplicable}
}

// statuses says how each is shown. Mark is never the only difference to a
// reader who sees no colour: the words or the shape differ too.
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

// statusOf an outcome. One that this version does not know proves nothing.
func statusOf(o guarantees.Outcome) Status {
	if s, ok := ofOutcome[o]; ok {
		return s
	}
	return StatusInconclusive
}
