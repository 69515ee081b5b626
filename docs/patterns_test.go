package docs_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/custodymq/custody/business"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/scenarios"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems/registry"
	"github.com/custodymq/custody/systems/zeromq/simulated"
)

// shown is one run of the application's group.
type shown struct {
	scenarios.Showing
	why  string
	uses map[string]bool // patterns and policies
	held []string        // guarantees that held in an ablation
}

// application runs the application's group in the simulation, once.
var application = sync.OnceValue(func() []shown {
	runs, err := runApplication()
	if err != nil {
		panic(err) // the generated parts cannot be made
	}
	return runs
})

func runApplication() ([]shown, error) {
	group, err := scenarios.ApplicationGroup()
	if err != nil {
		return nil, err
	}
	found, err := registry.Find("zeromq", 1)
	if err != nil {
		return nil, err
	}
	system, _ := simulated.Of(found, false)
	dir, err := os.MkdirTemp("", "custody-docs-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	plan := scenarios.Plan{Options: runner.Options{System: system, Spec: "zeromq", Seed: 1, Scale: 1}, Dir: filepath.Join(dir, "runs"), Scenarios: group}
	outcomes, err := plan.Run(context.Background())
	if err != nil {
		return nil, err
	}
	var runs []shown
	for i, o := range outcomes {
		one := shown{Showing: scenarios.Show(o), why: group[i].Why, uses: uses(group[i])}
		if one.Exit != guarantees.ExitHeld {
			return nil, fmt.Errorf("%s: %s", one.Name, one.Text)
		}
		for _, v := range o.Judgement.Verdicts {
			if v.Outcome == guarantees.Held && v.Counts() {
				one.held = append(one.held, "`"+v.Guarantee+"`")
			}
		}
		runs = append(runs, one)
	}
	return runs, nil
}

func uses(s script.Scenario) map[string]bool {
	used := map[string]bool{}
	for _, step := range s.Steps {
		switch step := step.(type) {
		case script.Consumer:
			used[step.Handler] = true
		case script.Relay:
			p, err := business.FindPolicy(step.Policy)
			if err != nil {
				panic(err) // it ran
			}
			used[p.Name] = true
		}
	}
	return used
}

// worth tells of a pattern or policy what it protects against and what not, with
// the runs that show it.
func worth(b *strings.Builder, name, text, gives, lacks string, whole bool, shows func(shown) bool) {
	claim := ""
	if whole {
		claim = " Claimed."
	}
	fmt.Fprintf(b, "### %s\n\n%s%s\n\n", name, text, claim)
	var holding, breaking []string
	for _, r := range application() {
		switch {
		case !r.uses[name]:
		case r.Breaks == "":
			holding = append(holding, "`"+r.Name+"`")
		case shows(r):
			breaking = append(breaking, fmt.Sprintf("`%s`: `%s` is broken at %s; held: %s", r.Name, r.Breaks, r.At, strings.Join(r.held, ", ")))
		}
	}
	fmt.Fprintf(b, "*Protects against.* %s%s\n\n", gives, list("Holds in", holding))
	fmt.Fprintf(b, "*Does not protect against.* %s", lacks)
	if len(breaking) == 0 {
		b.WriteString(" (No run of the group shows it.)")
	}
	b.WriteString("\n")
	for _, line := range breaking {
		b.WriteString("\n- " + line)
	}
	b.WriteString("\n\n")
}

func list(head string, names []string) string {
	if len(names) == 0 {
		return ""
	}
	return " " + head + " " + strings.Join(names, ", ") + "."
}

func patternSections() string {
	var b strings.Builder
	for _, p := range business.Patterns() {
		// What breaks at a producer or relay says nothing of the consumer.
		worth(&b, p.Name, p.Text, p.Gives, p.Lacks, p.Whole, func(r shown) bool {
			return r.At == guarantees.ConsumerToBusiness && !slices.ContainsFunc(business.Policies(), func(q business.Policy) bool { return !q.Whole && r.uses[q.Name] })
		})
	}
	return b.String()
}

func policySections() string {
	var b strings.Builder
	for _, p := range business.Policies() {
		worth(&b, p.Name, p.Text, p.Gives, p.Lacks, p.Whole, func(shown) bool { return !p.Whole })
	}
	return b.String()
}

func operationsTable() string {
	var rows [][]string
	for _, op := range business.Ops() {
		var in []string
		for _, p := range business.Patterns() {
			if slices.Contains(slices.Concat(append([][]business.Op{p.First}, p.Then...)...), op) {
				in = append(in, "`"+p.Name+"`")
			}
		}
		rows = append(rows, []string{"`" + string(op) + "`", op.Text(), strings.Join(in, ", ")})
	}
	return table([]string{"operation", "what it does", "handlers"}, rows)
}

func ablationsTable() string {
	var rows [][]string
	for _, r := range application() {
		breaks, of := "nothing", ""
		if r.Breaks != "" {
			breaks = fmt.Sprintf("`%s` at %s", r.Breaks, r.At)
		}
		if r.Of != "" {
			of = "`" + r.Of + "`"
		}
		rows = append(rows, []string{"`" + r.Name + "`", of, changed(r), breaks})
	}
	return table([]string{"run", "variant of", "what happens, or what is changed", "breaks"}, rows)
}

// changed is why there is a run, or the lines that make it a variant.
func changed(r shown) string {
	for _, v := range scenarios.Variants() {
		if v.Name == r.Name {
			var lines []string
			for _, l := range v.Lines {
				lines = append(lines, "`"+l[1]+"`")
			}
			return strings.Join(lines, "; ")
		}
	}
	return r.why
}
