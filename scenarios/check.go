package scenarios

import (
	"slices"

	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/script"
)

// Check adds to runner.Check that expected guarantees exist. Its error is a
// *runner.UsageError.
func Check(s script.Scenario) error {
	if err := runner.Check(s); err != nil {
		return err
	}
	var names []string
	for _, g := range guarantees.Guarantees() {
		names = append(names, g.Name)
	}
	for i, name := range s.Expect {
		if !slices.Contains(names, name) {
			return &runner.UsageError{At: s.ErrorAt(script.PartExpect, i, name, "%q is no guarantee%s", name, script.Suggest(name, names))}
		}
	}
	return nil
}
