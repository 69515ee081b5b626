package main

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/reports"
	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/scenarios"
)

// TestDefaultFoldersNeverCollide checks that commands started in the same second
// get separate directories.
func TestDefaultFoldersNeverCollide(t *testing.T) {
	t.Chdir(t.TempDir())
	seen := map[string]bool{}
	for range 5 {
		dir, err := folderFor("", "")
		if err != nil {
			t.Fatal(err)
		}
		if seen[dir] {
			t.Errorf("%s is given twice", dir)
		}
		seen[dir] = true
	}
}

// TestARunWithoutEvidenceIsNotHeld checks that the output agrees with the exit
// code even if a run left no evidence.
func TestARunWithoutEvidenceIsNotHeld(t *testing.T) {
	held := scenarios.Outcome{Name: "held", Dir: foreign(t, func(*evidence.Manifest) {})}
	none := scenarios.Outcome{Name: "refused", Dir: t.TempDir(), Err: fmt.Errorf("%w: the folder is taken", runner.ErrNoEvidence)}
	gone := scenarios.Outcome{Name: "gone", Dir: t.TempDir(), Err: errors.New("the machine stopped")}
	for _, outcomes := range [][]scenarios.Outcome{{none}, {gone}, {none, gone}, {held, none}} {
		var say, out bytes.Buffer
		report, err := loadOutcomes(&say, outcomes)
		if err != nil {
			t.Fatal(err)
		}
		if err := reports.WriteTerminal(&out, report); err != nil {
			t.Fatal(err)
		}
		if report.Exit() != guarantees.ExitUnmeasured || scenarios.Exit(outcomes[len(outcomes)-1:]) != guarantees.ExitUnmeasured {
			t.Errorf("%v: exit %d", outcomes, report.Exit())
		}
		for _, o := range outcomes {
			if o.Err != nil && (!strings.Contains(out.String(), o.Name) || !strings.Contains(say.String(), o.Name)) {
				t.Errorf("nothing is said of %s:\n%s", o.Name, out.String())
			}
		}
		if strings.Contains(out.String(), "every claimed guarantee held") {
			t.Errorf("said to hold:\n%s", out.String())
		}
	}
}
