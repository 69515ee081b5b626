package scenarios

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/script"
)

// SeededDefect is one that the catalogue must catch.
type SeededDefect struct {
	Name    string
	Breaks  string   // the guarantee that must be seen broken
	Follows []string // others that may lawfully break with it
	Shown   string   // the scenario to run first; where it does not apply, nor does the defect; empty is none
}

// Detection is what became of the search for one defect.
type Detection struct {
	SeededDefect `json:"-"`
	Defect       string        `json:"defect"`
	Breaks       string        `json:"breaks,omitempty"`
	Caught       bool          `json:"caught"`             // by the guarantee that it breaks
	By           []string      `json:"by,omitempty"`       // every claimed guarantee seen broken, over the scenarios that were run
	Wrong        []string      `json:"wrong,omitempty"`    // …of these, those that may not break from it
	Scenario     string        `json:"scenario,omitempty"` // the one that caught it
	Finding      string        `json:"finding,omitempty"`
	Ran          []string      `json:"ran,omitempty"`
	Took         time.Duration `json:"took"`
	Error        string        `json:"error,omitempty"` // a run that could not be measured
	// Inapplicable is why the system has no place for this defect.
	Inapplicable string `json:"inapplicable,omitempty"`
	// NotBuilt is why the defect cannot be switched on at all: it was not looked for.
	NotBuilt string `json:"notBuilt,omitempty"`
}

// Detect runs, for one defect, the scenarios that exercise the guarantee which it
// breaks, until one of them shows it broken.
func Detect(ctx context.Context, q SeededDefect, o runner.Options, dir string) (Detection, error) {
	began := time.Now()
	c := Detection{SeededDefect: q, Defect: q.Name, Breaks: q.Breaks}
	o.Defect = q.Name
	list, err := q.scenarios()
	if err != nil {
		return c, err
	}
	for _, s := range list {
		if ctx.Err() != nil {
			return c, context.Cause(ctx)
		}
		o.Scenario, o.Dir = s, filepath.Join(dir, q.Name, s.Name)
		j, err := Run(ctx, o)
		c.Ran = append(c.Ran, s.Name)
		if err != nil {
			c.Error = fmt.Sprintf("%s: %v", s.Name, err)
		}
		c.note(j)
		if s.Name == q.Shown && j.Outcome == guarantees.NotApplicable {
			c.Inapplicable = j.Why
			break
		}
		if c.Caught {
			break
		}
	}
	c.Took = time.Since(began)
	return c, nil
}

// note what one run has shown.
func (c *Detection) note(j guarantees.Judgement) {
	for _, f := range j.Broken {
		if !slices.Contains(c.By, f.Guarantee) {
			c.By = append(c.By, f.Guarantee)
			if f.Guarantee != c.Breaks && !slices.Contains(c.Follows, f.Guarantee) {
				c.Wrong = append(c.Wrong, f.Guarantee)
			}
		}
		if f.Guarantee == c.Breaks && !c.Caught {
			c.Caught, c.Scenario, c.Finding = true, j.Scenario, f.Text
		}
	}
}

// scenarios to run for it, in order.
func (q SeededDefect) scenarios() ([]script.Scenario, error) {
	if q.Shown == "" {
		return exercising(q.Breaks), nil
	}
	first, err := Find(q.Shown)
	if err != nil {
		return nil, err
	}
	rest := slices.DeleteFunc(exercising(q.Breaks), func(s script.Scenario) bool { return s.Name == q.Shown })
	return append([]script.Scenario{first}, rest...), nil
}

// exercising are the scenarios that put a guarantee to the test.
func exercising(guarantee string) []script.Scenario {
	var found []script.Scenario
	for _, s := range All() {
		if slices.Contains(s.Expect, guarantee) {
			found = append(found, s)
		}
	}
	return found
}
