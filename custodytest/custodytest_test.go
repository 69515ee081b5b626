package custodytest_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/custodymq/custody/custodytest"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/zeromq"
	"github.com/custodymq/custody/systems/zeromq/simulated"
)

var reference = zeromq.Profiles(runner.DefaultScale)[0]

// withoutMain makes TestMain skip Main, in a child process.
const withoutMain = "CUSTODYTEST_WITHOUT_MAIN"

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(process.RoleVariable) == zeromq.RoleName: // the reference broker's own role
		process.RunRole(map[string]func() process.Role{zeromq.RoleName: zeromq.Role})
	case os.Getenv(withoutMain) != "":
		os.Exit(m.Run())
	}
	custodytest.Main(m, reference)
}

func noLeak(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}

// The consumer that is killed is this binary, through Main.
func TestKilledConsumer(t *testing.T) {
	noLeak(t)
	custodytest.Accept(t, reference, custodytest.Scenarios("consumer-crash"))
}

// absent is a system that cannot be started.
type absent struct{ lacks map[systems.Need]string }

func (a absent) Describe() systems.Description {
	return systems.Description{System: "absent", Profile: evidence.Profile{Name: "none"}, Lacks: a.lacks}
}

func (absent) Start(context.Context, systems.Env) (systems.Instance, error) {
	return nil, errors.New("there is none")
}

// boastful claims of the reference broker, in virtual time, what it does not
// promise.
type boastful struct{ systems.System }

func (boastful) Simulated() {}

func (b boastful) Describe() systems.Description {
	d := b.System.Describe()
	d.Claims = append(d.Claims, evidence.Claim{Guarantee: evidence.NoDuplicateDelivery, Under: []evidence.Class{evidence.Link}, Owner: evidence.OwnerSystem, Source: "nowhere"})
	return d
}

func TestSweep(t *testing.T) {
	noLeak(t)
	custodytest.Sweep(t, virtual(), custodytest.Scale(1))
}

func virtual() systems.System {
	s, _ := simulated.Of(reference, false)
	return s
}

// failing are tests that must fail, each in a child process.
var failing = map[string]struct {
	run  func(t *testing.T)
	env  string
	says []string
	not  string
}{
	"not measured": {run: func(t *testing.T) {
		custodytest.Accept(t, absent{}, custodytest.Scenarios("baseline", "late-consumer"), custodytest.Parallel(1), custodytest.Seed(3))
	}, says: []string{"could not measure", "there is none", "/^absent:none$/^baseline$' (seed 3)", "/^late-consumer$'"}},
	"nothing judged": {run: func(t *testing.T) {
		custodytest.Accept(t, absent{lacks: map[systems.Need]string{systems.NeedTTL: "nothing ever expires"}}, custodytest.Scenarios("expiry"))
	}, says: []string{"not applicable: nothing ever expires", "no claim was put to the test"}},
	"no such scenario": {run: func(t *testing.T) { custodytest.Accept(t, absent{}, custodytest.Scenarios("ack-lots")) },
		says: []string{"ack-lots", "ack-lost"}},
	"bad option": {run: func(t *testing.T) { custodytest.Accept(t, absent{}, custodytest.Parallel(0)) },
		says: []string{"must be positive"}},
	"scenarios of a sweep": {run: func(t *testing.T) { custodytest.Sweep(t, absent{}, custodytest.Scenarios("baseline")) },
		says: []string{"Scenarios is an option of Accept"}},
	"nothing to sweep": {run: func(t *testing.T) { custodytest.Sweep(t, channels(false)) },
		says: []string{"could not measure: the run without a fault shows no hand-over"}},
	"a broken claim at a hand-over": {run: func(t *testing.T) {
		custodytest.Sweep(t, boastful{virtual()}, custodytest.Scale(1))
	}, says: []string{"--- PASS: TestFailing/zeromq:at-least-once/sweep-p1-publish-delay", "--- FAIL: TestFailing/zeromq:at-least-once/sweep-c1-ack-drop", "no-duplicate-delivery (handed-twice)"}},
	"no Main": {run: func(t *testing.T) { custodytest.Accept(t, reference) }, env: withoutMain + "=1",
		says: []string{"let TestMain call custodytest.Main"}, not: "baseline"},
}

// failingCase selects the case of TestFailing.
const failingCase = "CUSTODYTEST_FAILING"

func TestFailing(t *testing.T) {
	c, ok := failing[os.Getenv(failingCase)]
	if !ok {
		t.Skip("only in a process of its own")
	}
	c.run(t)
}

func TestAcceptFails(t *testing.T) {
	for name, c := range failing {
		t.Run(name, func(t *testing.T) {
			out := runFailing(t, name, c.env)
			for _, want := range c.says {
				if !strings.Contains(out, want) {
					t.Errorf("does not say %q:\n%s", want, out)
				}
			}
			if c.not != "" && strings.Contains(out, c.not) {
				t.Errorf("says %q:\n%s", c.not, out)
			}
		})
	}
}

func TestEvidenceIsKept(t *testing.T) {
	out := t.TempDir()
	for range 2 {
		runFailing(t, "not measured", "CUSTODY_OUT="+out)
	}
	for _, run := range []string{"baseline", "baseline-2", "late-consumer", "late-consumer-2"} {
		if _, err := evidence.Open(filepath.Join(out, "TestFailing", "absent:none", run)); err != nil {
			t.Error(err)
		}
	}
}

// runFailing returns the output of a test that must fail.
func runFailing(t *testing.T, name string, env ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestFailing$", "-test.v")
	cmd.Env = append(append(os.Environ(), "CUSTODY_OUT=", failingCase+"="+name), env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Fatalf("ended with %v, want exit status 1:\n%s", err, out.String())
	}
	return out.String()
}
