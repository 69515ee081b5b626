// Package adapters_test runs the checklist through the adapters in this folder,
// and shows that a seeded defect in each is caught.
package adapters_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/runner/child"
	"github.com/custodymq/custody/scenarios"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems/adapter"
	"github.com/custodymq/custody/systems/conformance"
	"github.com/custodymq/custody/systems/registry"
	"github.com/custodymq/custody/systems/systemtest"
)

func TestMain(m *testing.M) {
	child.Run(registry.Find)
	goleak.VerifyTestMain(m)
}

// adapters are those in this folder.
var adapters = []struct {
	name, program, command string
	judged                 []string // scenarios that are held; the files are here
	defect, breaks, seenIn string   // a switch of the adapter's own
}{
	{"python-sqlite", "python3", "python3 python-sqlite/adapter.py",
		[]string{"processing-failure", "poison-message", "worker-killed.scenario"},
		"--defect takes-for-good", evidence.NoAcceptedLoss, "worker-killed.scenario"},
	{"node-broker", "node", "node node-broker/adapter.js",
		[]string{"ack-lost", "duplicate-delivery", "broker-killed", "competing-consumers", "partition-consumer"},
		"--defect volatile", evidence.NoAcceptedLoss, "broker-killed"},
}

func TestAdaptersConform(t *testing.T) {
	for _, a := range adapters {
		t.Run(a.name, func(t *testing.T) {
			needs(t, a.program)
			err := adapter.Check(t.Context(), a.command, 20*time.Second, func(profile string, f conformance.Finding) {
				for _, wrong := range f.Wrong {
					t.Errorf("%s: %s: %s", profile, f.Obligation, wrong)
				}
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAdaptersHoldTheirClaims(t *testing.T) {
	for _, a := range adapters {
		t.Run(a.name, func(t *testing.T) {
			needs(t, a.program)
			for _, name := range a.judged {
				if j := run(t, a.command, name); j.Outcome != guarantees.Held {
					t.Errorf("%s: %v: %s", name, j.Outcome, j.Why)
				}
			}
		})
	}
}

func TestDefectsAreCaught(t *testing.T) {
	for _, a := range adapters {
		t.Run(a.name, func(t *testing.T) {
			needs(t, a.program)
			j := run(t, a.command+" "+a.defect, a.seenIn)
			broken := func(f guarantees.Finding) bool { return f.Guarantee == a.breaks }
			if j.Outcome != guarantees.Violated || !slices.ContainsFunc(j.Broken, broken) {
				t.Errorf("%v: %s; want %s violated", j.Outcome, j.Why, a.breaks)
			}
		})
	}
}

// TestProtocolsAreThoseOfTheSkeletons: an example begins as a skeleton does.
func TestProtocolsAreThoseOfTheSkeletons(t *testing.T) {
	for _, a := range adapters {
		language, _, _ := strings.Cut(a.name, "-")
		dir := filepath.Join(t.TempDir(), language)
		if err := adapter.New(language, dir); err != nil {
			t.Fatal(err)
		}
		files, err := filepath.Glob(filepath.Join(dir, "protocol.*"))
		if err != nil || len(files) != 1 {
			t.Fatalf("%v, %v", files, err)
		}
		want, err := os.ReadFile(files[0])
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(a.name, filepath.Base(files[0]))); err != nil || string(got) != string(want) {
			t.Errorf("%s/%s differs from the skeleton's (%v)", a.name, filepath.Base(files[0]), err)
		}
	}
}

func needs(t *testing.T, program string) {
	t.Helper()
	_, err := exec.LookPath(program)
	systemtest.Needs(t, err)
}

// run makes one run. Custody's own measurement is repeated where the machine
// stood still.
func run(t *testing.T, command, name string) guarantees.Judgement {
	t.Helper()
	const tries = 3
	scenario, err := scenarios.Find(name)
	if strings.HasSuffix(name, ".scenario") {
		var text []byte
		if text, err = os.ReadFile(name); err == nil {
			scenario, err = script.Parse(name, string(text))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	var j guarantees.Judgement
	for range tries {
		if j, err = once(t, command, scenario); err == nil {
			return j
		}
	}
	t.Fatalf("%s: %v", name, err)
	return j
}

func once(t *testing.T, command string, scenario script.Scenario) (guarantees.Judgement, error) {
	t.Helper()
	spec := adapter.Spec(command, "")
	system, err := registry.Find(spec, runner.DefaultScale)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	return scenarios.Run(ctx, runner.Options{System: system, Spec: spec, Scenario: scenario, Dir: filepath.Join(t.TempDir(), "run"), Seed: 1, Scale: runner.DefaultScale})
}

// TestAnAdapterThatDiesIsNoVerdict: what its system then seems to lose is not its
// system's loss.
func TestAnAdapterThatDiesIsNoVerdict(t *testing.T) {
	needs(t, "node")
	scenario, err := scenarios.Find("shared-work")
	if err != nil {
		t.Fatal(err)
	}
	j, err := once(t, "sh -c 'node node-broker/adapter.js | sed -u 40q'", scenario)
	if err == nil || !strings.Contains(err.Error(), "it exited with code 0") || j.Outcome == guarantees.Held || j.Outcome == guarantees.Violated {
		t.Errorf("%v: %s (%v)", j.Outcome, j.Why, err)
	}
}
