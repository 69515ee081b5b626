package scenarios_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"go.uber.org/goleak"

	"github.com/custodymq/custody/bench"
	"github.com/custodymq/custody/bench/child"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/scenarios"
	"github.com/custodymq/custody/systems/all"
)

func TestMain(m *testing.M) {
	child.Run(all.Find)
	os.Exit(m.Run())
}

func TestScenarios(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "The checklist")
}

// limit of one spec, before scaling.
const limit = 60 * time.Second

// evidenceDir is where the suite leaves its evidence: CUSTODY_OUT, or a
// temporary folder.
func evidenceDir(parts ...string) string {
	dir := os.Getenv("CUSTODY_OUT")
	if dir == "" {
		dir = GinkgoT().TempDir()
	}
	return filepath.Join(append([]string{dir}, parts...)...)
}

var _ = Describe("The checklist", func() {
	BeforeEach(func() {
		before := goleak.IgnoreCurrent()
		DeferCleanup(func() {
			Eventually(func() error { return goleak.Find(before) }).WithTimeout(10 * time.Second).Should(Succeed())
		})
	})
	for _, spec := range []string{"zeromq:at-least-once", "zeromq:at-least-once-history", "zeromq:at-most-once", "nats"} {
		for _, s := range scenarios.All() {
			It(spec+" "+s.Name, Label(spec, s.Name), SpecTimeout(time.Duration(float64(limit)*bench.DefaultScale)), func(ctx SpecContext) {
				system, err := all.Find(spec, bench.DefaultScale)
				Expect(err).NotTo(HaveOccurred())
				dir := evidenceDir(spec, s.Name)
				j, err := scenarios.Run(ctx, bench.Options{System: system, Spec: spec, Scenario: s, Dir: dir, Seed: 1})
				AddReportEntry("evidence", dir)
				Expect(err).NotTo(HaveOccurred())
				if j.Outcome == guarantees.NotApplicable {
					Skip("not applicable: " + j.Why)
				}
				Expect(j.Outcome).To(Or(Equal(guarantees.Held), Equal(guarantees.NotClaimed)), "%s\n%s", j.Why, dir)
			})
		}
	}
})
