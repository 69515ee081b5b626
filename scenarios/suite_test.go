package scenarios_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"go.uber.org/goleak"

	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/runner/child"
	"github.com/custodymq/custody/scenarios"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems/registry"
	"github.com/custodymq/custody/systems/systemtest"
)

func TestMain(m *testing.M) {
	child.Run(registry.Find)
	os.Exit(m.Run())
}

func TestScenarios(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "Scenarios")
}

// limit bounds one run, together with those in parallel, before scaling.
const limit = 2 * time.Minute

func scaledLimit() time.Duration { return time.Duration(float64(limit) * runner.DefaultScale) }

// evidenceDir is where the suite keeps its evidence: CUSTODY_OUT, or a
// temporary directory.
func evidenceDir(name string) string {
	if dir := os.Getenv("CUSTODY_OUT"); dir != "" {
		return filepath.Join(dir, name)
	}
	return filepath.Join(GinkgoT().TempDir(), name)
}

// noLeaks checks that a spec releases every goroutine.
func noLeaks() {
	before := goleak.IgnoreCurrent()
	DeferCleanup(func() {
		Eventually(func() error { return goleak.Find(before) }).WithTimeout(10 * time.Second).Should(Succeed())
	})
}

// checklists are the systems that pass the whole catalogue.
var checklists = []string{"zeromq:at-least-once", "zeromq:at-least-once-history", "zeromq:at-most-once", "nats"}

// inapplicable pins the scenarios that do not apply to each of them, so that
// the suite cannot shrink unnoticed.
var inapplicable = map[string][]string{
	"zeromq:at-least-once": {"recover-from-timestamp", "recover-from-sequence", "two-subscribers", "periods", "crowds", "store-slow",
		"store-server-killed", "store-server-paused", "store-link-slow", "store-connections-exhausted", "store-read-only", "node-lost"},
	"zeromq:at-least-once-history": {"recover-from-timestamp", "recover-from-sequence", "two-subscribers", "damaged-rows", "bounds", "periods", "crowds", "store-troubles", "store-slow", "stopped-in-order", "store-restored",
		"store-server-killed", "store-server-paused", "store-link-slow", "store-connections-exhausted", "store-read-only", "node-lost"},
	"zeromq:at-most-once": {
		"backup-restored", "store-restored", "identity-migrated", "swap-store", "swap-killed-before", "swap-killed-after",
		"ack-lost", "ack-window-killed", "ack-window-delete-fails", "ack-window-consumer-exits", "disconnect-before-ack",
		"disconnect-after-ack", "storage-down", "storage-reply-lost", "storage-full", "storage-slow", "fsync-error", "expiry",
		"expiry-clock-jump", "competing-consumers", "poison-message", "consumer-crash", "storage-identity-changed",
		"old-protocol-payload", "damaged-rows", "partition-consumer", "commit-held", "storage-down-crash", "publisher-retries",
		"publish-window", "storage-repaired", "lookups", "repeat-in-flight",
		"recover-from-timestamp", "recover-from-sequence", "steady-load", "two-subscribers", "shared-work", "backlog-restarted",
		"backlog-killed", "kill-in-flight", "consumer-leaves", "assigned-unsent", "consumer-paused", "redelivery-in-order", "dead-letters",
		"expiry-over-restart", "group-commit", "restart-replay",
		"bounds", "periods", "crowds", "store-troubles", "store-slow", "stopped-in-order", "permissions",
		"store-server-killed", "store-server-paused", "store-link-slow", "store-volume-full", "store-connections-exhausted", "store-read-only", "node-lost",
	},
	"nats": {
		"store-restored", "identity-migrated", "swap-store", "swap-killed-before", "swap-killed-after",
		"ack-window-killed", "ack-window-delete-fails", "mode-mismatch", "storage-down", "storage-reply-lost", "storage-full",
		"storage-slow", "fsync-error", "no-online-consumer", "expiry-clock-jump", "poison-message", "storage-identity-changed",
		"old-protocol-payload", "damaged-rows", "commit-held", "storage-down-crash", "recover-from-timestamp", "recover-from-sequence",
		"limits", "storage-files", "publish-window", "storage-repaired", "lookups", "repeat-in-flight",
		"wildcards", "two-subscribers", "dead-letters", "group-commit", "assigned-unsent",
		"bounds", "periods", "crowds", "store-troubles", "store-slow", "stopped-in-order", "permissions",
		"store-server-killed", "store-server-paused", "store-link-slow", "store-volume-full", "store-connections-exhausted", "store-read-only", "node-lost",
	},
}

var _ = Describe("The checklist", func() {
	for _, spec := range checklists {
		// A system's runs are made in parallel, as they mostly wait. Each spec
		// waits for its own.
		Describe(spec, Ordered, ContinueOnFailure, Label(spec), func() {
			outcomes := make(map[string]chan scenarios.Outcome)
			BeforeAll(func() {
				noLeaks()
				system, err := registry.Find(spec, runner.DefaultScale)
				Expect(err).NotTo(HaveOccurred())
				systemtest.Require(GinkgoTB(), system)
				ctx, cancel := context.WithCancel(context.Background())
				plan := scenarios.Plan{Options: runner.Options{System: system, Spec: spec, Seed: 1}, Dir: evidenceDir(spec), Parallel: 2 * runtime.NumCPU(),
					Done: func(o scenarios.Outcome) { outcomes[o.Name] <- o }}
				for _, s := range scenarios.All() {
					if Label(spec, s.Name).MatchesLabelFilter(GinkgoLabelFilter()) {
						plan.Scenarios = append(plan.Scenarios, s)
						outcomes[s.Name] = make(chan scenarios.Outcome, 1)
					}
				}
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					_, _ = plan.Run(ctx) // outcomes are reported by Done
				}()
				DeferCleanup(func() {
					cancel()
					Eventually(ended).WithTimeout(scaledLimit()).Should(BeClosed())
				})
			})
			for _, s := range scenarios.All() {
				It(s.Name, Label(s.Name), SpecTimeout(scaledLimit()), func(ctx SpecContext) {
					var o scenarios.Outcome
					select {
					case o = <-outcomes[s.Name]:
					case <-ctx.Done():
						Fail("no outcome in time")
					}
					AddReportEntry("evidence", o.Dir)
					Expect(o.Err).NotTo(HaveOccurred())
					Expect(o.Judgement.Outcome == guarantees.NotApplicable).To(Equal(slices.Contains(inapplicable[spec], s.Name)),
						"applies, or not, against what is written in this file: %s", o.Judgement.Why)
					if o.Judgement.Outcome == guarantees.NotApplicable {
						Skip("not applicable: " + o.Judgement.Why)
					}
					Expect(o.Judgement.Outcome).To(Or(Equal(guarantees.Held), Equal(guarantees.NotClaimed)), "%s\n%s", o.Judgement.Why, o.Dir)
				})
			}
		})
	}
})

var _ = Describe("A run", func() {
	BeforeEach(noLeaks)

	run := func(ctx context.Context, text string) (guarantees.Judgement, string) {
		GinkgoHelper()
		s, err := script.Parse("test.custody", text)
		Expect(err).NotTo(HaveOccurred())
		system, err := registry.Find("zeromq", runner.DefaultScale)
		Expect(err).NotTo(HaveOccurred())
		dir := evidenceDir(fmt.Sprintf("run-%s", s.Name))
		j, err := scenarios.Run(ctx, runner.Options{System: system, Spec: "zeromq", Scenario: s, Dir: dir, Seed: 1})
		Expect(err).NotTo(HaveOccurred())
		return j, dir
	}

	It("whose fault does not fire is inconclusive", SpecTimeout(scaledLimit()), func(ctx SpecContext) {
		j, _ := run(ctx, `scenario never-fires
producer p1 to orders
consumer c1 on orders, idempotent
fault lost: drop frame ack of order-2 on c1
publish order-1 by p1
await effect of order-1
expect no-accepted-loss, single-effect`)
		Expect(j.Outcome).To(Equal(guarantees.Inconclusive))
		Expect(j.Exit).To(Equal(guarantees.ExitInconclusive))
		Expect(j.Why).To(ContainSubstring("did not fire"))
	})

	It("gives the same verdict bytes when judged again elsewhere", SpecTimeout(scaledLimit()), func(ctx SpecContext) {
		_, dir := run(ctx, `scenario again
producer p1 to orders
consumer c1 on orders, idempotent
publish order-1 by p1
await effect of order-1
expect no-accepted-loss, single-effect`)
		first, err := os.ReadFile(filepath.Join(dir, "verdict.json"))
		Expect(err).NotTo(HaveOccurred())
		moved := filepath.Join(GinkgoT().TempDir(), "elsewhere")
		Expect(os.CopyFS(moved, os.DirFS(dir))).To(Succeed())
		_, err = scenarios.Judge(moved)
		Expect(err).NotTo(HaveOccurred())
		second, err := os.ReadFile(filepath.Join(moved, "verdict.json"))
		Expect(err).NotTo(HaveOccurred())
		Expect(second).To(Equal(first))
	})

	It("that was found once is judged the same ever after", func() {
		dir := filepath.Join(GinkgoT().TempDir(), "found")
		Expect(os.CopyFS(dir, os.DirFS("testdata/found/nats-acknowledged-row-returns"))).To(Succeed())
		j, err := scenarios.Judge(dir)
		Expect(err).NotTo(HaveOccurred())
		Expect(j.Outcome).To(Equal(guarantees.Violated))
		Expect(j.Broken[0].Guarantee).To(Equal("ack-is-final"))
		Expect(j.Broken[0].Kind).To(Equal("row-kept"))
		Expect(j.Broken[0].BusinessID).To(Equal("order-2"))
	})

	It("that is cancelled leaves readable evidence and is never held", SpecTimeout(scaledLimit()), func(ctx SpecContext) {
		s, err := scenarios.Find("ack-lost")
		Expect(err).NotTo(HaveOccurred())
		system, err := registry.Find("zeromq", runner.DefaultScale)
		Expect(err).NotTo(HaveOccurred())
		dir := evidenceDir("cancelled")
		cancelled, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		j, err := scenarios.Run(cancelled, runner.Options{System: system, Spec: "zeromq", Scenario: s, Dir: dir, Seed: 1})
		Expect(err).To(HaveOccurred())
		Expect(j.Outcome).NotTo(Equal(guarantees.Held))
		Expect(j.Exit).To(Equal(guarantees.ExitUnmeasured))
		again, err := scenarios.Judge(dir)
		Expect(err).NotTo(HaveOccurred())
		Expect(again).To(Equal(j))
	})
})
