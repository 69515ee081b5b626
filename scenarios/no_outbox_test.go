package scenarios_test

import (
	"context"
	"errors"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/scenarios"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/registry"
)

var _ = Describe("Without an outbox", func() {
	BeforeEach(noLeaks)

	It("a row is without its message, and a message without its row, whatever the store", SpecTimeout(scaledLimit()), func(ctx SpecContext) {
		for _, spec := range []string{"zeromq", "zeromq:memory"} {
			system, err := registry.Find(spec, runner.DefaultScale)
			Expect(err).NotTo(HaveOccurred())
			s, err := scenarios.Find("no-outbox")
			Expect(err).NotTo(HaveOccurred())
			j, err := scenarios.Run(ctx, runner.Options{System: system, Spec: spec, Scenario: s, Seed: 1, Dir: filepath.Join(evidenceDir("no-outbox"), system.Describe().Profile.Name)})
			Expect(err).NotTo(HaveOccurred())
			Expect(j.Outcome).To(Equal(guarantees.Held), j.Why) // of what is claimed
			var seen []string
			for _, f := range j.Anomalies {
				if f.Guarantee == evidence.OutboxAtomicity {
					seen = append(seen, f.Kind+" "+f.BusinessID)
				}
			}
			Expect(seen).To(ConsistOf("row-without-message order-3", "row-without-message order-4", "message-without-row order-5"))
		}
	})

	It("a system that claims to be one is refused", func(ctx SpecContext) {
		system, err := registry.Find("zeromq", runner.DefaultScale)
		Expect(err).NotTo(HaveOccurred())
		s, err := scenarios.Find("no-outbox")
		Expect(err).NotTo(HaveOccurred())
		_, err = scenarios.Run(ctx, runner.Options{System: boastful{system}, Scenario: s, Dir: evidenceDir("boastful")})
		Expect(err).To(MatchError(runner.ErrNoEvidence))
		Expect(err).To(MatchError(ContainSubstring("no system's to claim")))
	})
})

// boastful is a system that claims what only an application can keep.
type boastful struct{ systems.System }

func (b boastful) Describe() systems.Description {
	d := b.System.Describe()
	d.Claims = append(d.Claims, evidence.Claim{Guarantee: evidence.OutboxAtomicity, Owner: evidence.OwnerSystem})
	return d
}

func (b boastful) Start(ctx context.Context, env systems.Env) (systems.Instance, error) {
	return nil, errors.New("started")
}
