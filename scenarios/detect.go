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

// SeededDefect is a defect that the catalogue must detect.
type SeededDefect struct {
	Name    string
	Breaks  string   // the guarantee it must violate
	Follows []string // others it may violate
	Shown   string   // the scenario to run first, which decides whether the defect applies; may be empty
}

// Detection is the result of searching for one defect.
type Detection struct {
	SeededDefect `json:"-"`
	Defect       string        `json:"defect"`
	Breaks       string        `json:"breaks,omitempty"`
	Caught       bool          `json:"caught"`             // the expected guarantee was violated
	By           []string      `json:"by,omitempty"`       // all claimed guarantees violated
	Wrong        []string      `json:"wrong,omitempty"`    // …those the defect must not violate
	Scenario     string        `json:"scenario,omitempty"` // that detected it
	Finding      string        `json:"finding,omitempty"`
	Ran          []string      `json:"ran,omitempty"`
	Took         time.Duration `json:"took"`
	Error        string        `json:"error,omitempty"` // a run that could not be measured
	// Inapplicable says why the defect does not apply to the system.
	Inapplicable string `json:"inapplicable,omitempty"`
	// NotBuilt says why the defect cannot be enabled; it was not searched for.
	NotBuilt string `json:"notBuilt,omitempty"`
}

// Detect runs the scenarios that exercise the guarantee a defect violates,
// until one shows it.
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

// note adds the result of one run.
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

// scenarios returns those to run, in order.
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

// exercising returns the scenarios that exercise a guarantee.
func exercising(guarantee string) []script.Scenario {
	var found []script.Scenario
	for _, s := range All() {
		if slices.Contains(s.Expect, guarantee) {
			found = append(found, s)
		}
	}
	return found
}
