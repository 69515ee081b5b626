package scenarios_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/custodymq/custody/business"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/scenarios"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems/registry"
	"github.com/custodymq/custody/systems/zeromq/simulated"
)

func TestApplicationIsWrittenAsCustodyPrintsIt(t *testing.T) {
	names := map[string]bool{}
	for _, s := range scenarios.Application() {
		text, err := os.ReadFile(filepath.Join("application", s.Name+".scenario"))
		if err != nil {
			t.Error(err)
		}
		if printed := script.Print(s); string(text) != printed {
			t.Errorf("%s is not written as Custody prints it:\n%s", s.Name, printed)
		}
		names[s.Name] = true
	}
	for _, v := range scenarios.Variants() {
		if _, _, err := v.Scenario(); err != nil {
			t.Error(err)
		}
		if names[v.Name] {
			t.Errorf("%s stands twice", v.Name)
		}
		names[v.Name] = true
	}
	for _, s := range scenarios.All() {
		if names[s.Name] {
			t.Errorf("%s is in both groups", s.Name)
		}
	}
	group, err := scenarios.ApplicationGroup()
	if err != nil || len(group) != len(scenarios.Application())+len(scenarios.Variants()) {
		t.Errorf("%d scenarios in the group: %v", len(group), err)
	}
	for _, s := range group {
		if err := scenarios.Check(s); err != nil {
			t.Error(err)
		}
	}
}

// Each pattern and policy is used in a run that shows what it is worth.
func TestEveryPatternIsShown(t *testing.T) {
	holds, breaks := map[string]bool{}, map[string]bool{}
	note := func(s script.Scenario, ablation bool) {
		for _, step := range s.Steps {
			name := ""
			switch step := step.(type) {
			case script.Consumer:
				name = step.Handler
			case script.Relay:
				name = step.Policy
				if name == "" {
					name = business.AtLeastOnce
				}
			}
			if ablation {
				breaks[name] = true
			} else {
				holds[name] = true
			}
		}
	}
	for _, s := range scenarios.Application() {
		note(s, false)
	}
	ablations := 0
	for _, v := range scenarios.Variants() {
		varied, _, err := v.Scenario()
		if err != nil {
			t.Fatal(err)
		}
		note(varied, v.Breaks != "")
		if v.Breaks != "" {
			ablations++
		}
	}
	for _, p := range business.Patterns() {
		if shown := map[bool]map[string]bool{true: holds, false: breaks}[p.Whole]; !shown[p.Name] {
			t.Errorf("no run shows the pattern %s", p.Name)
		}
	}
	for _, p := range business.Policies() {
		if shown := map[bool]map[string]bool{true: holds, false: breaks}[p.Whole]; !shown[p.Name] {
			t.Errorf("no run shows the policy %s", p.Name)
		}
	}
	if ablations < 18 {
		t.Errorf("only %d ablations", ablations)
	}
}

// A run that shows nothing, or the wrong thing, is never what an ablation must be.
func TestShow(t *testing.T) {
	broken := func(guarantee string, at guarantees.HandOver) guarantees.Judgement {
		return guarantees.Judgement{Outcome: guarantees.Violated, Exit: guarantees.ExitViolated, Broken: []guarantees.Finding{{Guarantee: guarantee, HandOver: at}}}
	}
	for _, c := range []struct {
		name string
		run  string
		j    guarantees.Judgement
		want int
	}{
		{"its guarantee at its hand-over", "log-after-commit", broken(evidence.SingleEffect, guarantees.ConsumerToBusiness), guarantees.ExitHeld},
		{"its guarantee elsewhere", "log-after-commit", broken(evidence.SingleEffect, guarantees.ClientToBroker), guarantees.ExitViolated},
		{"another guarantee", "log-after-commit", broken(evidence.NoAcceptedLoss, guarantees.ConsumerToBusiness), guarantees.ExitViolated},
		{"nothing", "log-after-commit", guarantees.Judgement{Outcome: guarantees.Held}, guarantees.ExitViolated},
		{"nothing claimed", "log-after-commit", guarantees.Judgement{Outcome: guarantees.NotClaimed, Exit: guarantees.ExitNone}, guarantees.ExitViolated},
		{"undecided", "log-after-commit", guarantees.Judgement{Exit: guarantees.ExitInconclusive}, guarantees.ExitInconclusive},
		{"unmeasured", "log-after-commit", guarantees.Judgement{Exit: guarantees.ExitUnmeasured}, guarantees.ExitUnmeasured},
		{"not applicable", "log-after-commit", guarantees.Judgement{Outcome: guarantees.NotApplicable, Exit: guarantees.ExitNone}, guarantees.ExitNone},
		{"an equal mechanism", "lock-two-instances", guarantees.Judgement{Outcome: guarantees.Held}, guarantees.ExitHeld},
		{"an equal mechanism that is none", "lock-two-instances", broken(evidence.SingleEffect, guarantees.ConsumerToBusiness), guarantees.ExitViolated},
		{"the complete application", "two-instances", broken(evidence.SingleEffect, guarantees.ConsumerToBusiness), guarantees.ExitViolated},
	} {
		if s := scenarios.Show(scenarios.Outcome{Name: c.run, Judgement: c.j}); s.Exit != c.want {
			t.Errorf("%s: exit %d, want %d: %s", c.name, s.Exit, c.want, s.Text)
		}
	}
}

var _ = Describe("The application", func() {
	BeforeEach(noLeaks)

	It("holds with its mechanisms, and breaks without each of them where it must", SpecTimeout(scaledLimit()), func(ctx SpecContext) {
		group, err := scenarios.ApplicationGroup()
		Expect(err).NotTo(HaveOccurred())
		found, err := registry.Find("zeromq", 1)
		Expect(err).NotTo(HaveOccurred())
		system, ok := simulated.Of(found, false)
		Expect(ok).To(BeTrue())
		plan := scenarios.Plan{Options: runner.Options{System: system, Spec: "zeromq", Seed: 1, Scale: 1}, Dir: evidenceDir("application"), Parallel: runtime.NumCPU(), Scenarios: group}
		outcomes, err := plan.Run(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(outcomes).To(HaveLen(len(group)))
		for _, o := range outcomes {
			s := scenarios.Show(o)
			Expect(s.Exit).To(Equal(guarantees.ExitHeld), "%s: %s\n%s", s.Name, s.Text, s.Dir)
		}
	})

	// The chain with all three mechanisms, each of its hand-overs struck by each fault.
	It("has each effect once, whatever strikes the chain", SpecTimeout(scaledLimit()), func(ctx SpecContext) {
		found, err := registry.Find("zeromq", 1)
		Expect(err).NotTo(HaveOccurred())
		system, _ := simulated.Of(found, false)
		chain := chainStruck()
		Expect(len(chain)).To(BeNumerically(">", 60))
		plan := scenarios.Plan{Options: runner.Options{System: system, Spec: "zeromq", Seed: 1, Scale: 1}, Dir: evidenceDir("application-chain"), Parallel: runtime.NumCPU(), Scenarios: chain}
		outcomes, err := plan.Run(ctx)
		Expect(err).NotTo(HaveOccurred())
		held := 0
		for i, o := range outcomes {
			Expect(o.Err).NotTo(HaveOccurred())
			if o.Judgement.Outcome == guarantees.NotApplicable {
				continue
			}
			held++
			Expect(o.Judgement.Outcome).To(Equal(guarantees.Held), "%s\n%s\n%s", script.Print(chain[i]), o.Judgement.Why, o.Dir)
		}
		Expect(held).To(BeNumerically(">", 60))
	})

	// The same on SQLite and with processes of the operating system, which is what a
	// simulation can be wrong about. Not two relays: which of them publishes, and so
	// whether the one that is to die has work, is the scheduler's choice.
	It("does so outside of the simulation", SpecTimeout(scaledLimit()), func(ctx SpecContext) {
		group, err := scenarios.ApplicationGroup("exactly-once-effect", "exactly-once-effect-without-outbox", "exactly-once-effect-without-late-ack",
			"exactly-once-effect-without-log", "log-after-commit-and-dies", "log-without-constraint", "by-position")
		Expect(err).NotTo(HaveOccurred())
		system, err := registry.Find("zeromq", runner.DefaultScale)
		Expect(err).NotTo(HaveOccurred())
		plan := scenarios.Plan{Options: runner.Options{System: system, Spec: "zeromq", Seed: 1}, Dir: evidenceDir("application-real"), Parallel: 2 * runtime.NumCPU(), Scenarios: group}
		outcomes, err := plan.Run(ctx)
		Expect(err).NotTo(HaveOccurred())
		broken := map[string]bool{}
		for _, o := range outcomes {
			s := scenarios.Show(o)
			Expect(s.Exit).To(Equal(guarantees.ExitHeld), "%s: %s\n%s", s.Name, s.Text, s.Dir)
			if s.Of == "exactly-once-effect" {
				broken[s.Breaks] = true
			}
		}
		Expect(slices.Sorted(maps.Keys(broken))).To(Equal([]string{evidence.NoAcceptedLoss, evidence.OutboxAtomicity, evidence.SingleEffect}))
	})
})

// chainStruck returns the whole chain under each fault at each hand-over of order-2.
func chainStruck() (list []script.Scenario) {
	strike := func(fault, restart string) {
		text := fmt.Sprintf(`scenario chain-%d
relay r1 from orders, child
consumer c1 on orders, handler log, child
producer p1 to orders, outbox
publish order-1 by p1
await effect of order-1
fault struck: %s
publish order-2 by p1, background
await fired struck
heal struck
%ssettle p1
publish order-3 by p1
await effect of order-3
reached fired struck
expect no-accepted-loss, no-phantom, single-effect, outbox-atomicity, survives
`, len(list)+1, fault, restart)
		s, err := script.Parse("chain", text)
		Expect(err).NotTo(HaveOccurred())
		list = append(list, s)
	}
	for _, at := range []struct {
		actor  string
		frames []string
	}{{"r1", []string{"publish", "accept"}}, {"c1", []string{"deliver", "ack", "ack-confirm"}}} {
		actor := at.actor
		for _, frame := range at.frames {
			at := fmt.Sprintf("frame %s of order-2 on %s", frame, actor)
			for _, verb := range []string{"drop %s", "duplicate %s", "delay %s by 300ms", "hold %s", "cut before %s", "cut after %s"} {
				strike(fmt.Sprintf(verb, at), "")
			}
			for _, when := range []string{"before", "after"} {
				strike(fmt.Sprintf("kill %s %s %s", actor, when, at), "start "+actor+"\n")
				strike(fmt.Sprintf("kill broker %s %s", when, at), "")
			}
		}
	}
	for _, by := range []struct {
		actor string
		ops   []business.Op
	}{{"p1", []business.Op{business.Record, business.Enqueue, business.Commit}}, {"r1", []business.Op{business.Mark}}, {"c1", []business.Op{business.Log, business.Effect, business.Commit}}} {
		actor := by.actor
		for _, op := range by.ops {
			for _, when := range []string{"before", "after"} {
				at := fmt.Sprintf("%s operation %s of order-2 on %s", when, op, actor)
				strike("unreachable business "+at, "")
				strike("slow business "+at+" by 300ms", "")
				if actor != "p1" {
					strike(fmt.Sprintf("kill %s %s operation %s of order-2 on business", actor, when, op), "start "+actor+"\n")
				}
			}
		}
	}
	return list
}
