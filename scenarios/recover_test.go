package scenarios_test

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/scenarios"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/registry"
)

// unmoved claims to have rewound a subscriber, but has not.
type unmoved struct {
	systems.Instance
	systems.Networked
	systems.Inspector
	systems.Rewinder
}

func (unmoved) Rewind(context.Context, string, string, systems.Point) error { return nil }

var _ = Describe("Recovery from a point in the log", func() {
	BeforeEach(noLeaks)

	judged := func(system systems.System, name, dir string) guarantees.Judgement {
		GinkgoHelper()
		s, err := scenarios.Find(name)
		Expect(err).NotTo(HaveOccurred())
		j, err := scenarios.Run(GinkgoT().Context(), runner.Options{System: system, Spec: "nats:replay", Scenario: s, Dir: evidenceDir(dir), Seed: 1})
		Expect(err).NotTo(HaveOccurred())
		return j
	}
	It("is open to a consumer that is declared behind it", func() {
		system, err := registry.Find("nats:replay", runner.DefaultScale)
		Expect(err).NotTo(HaveOccurred())
		later, err := script.Parse("later", `scenario declared-later
producer p1 to orders
publish order-1 by p1
snapshot a
consumer c1 on orders, idempotent
publish order-2 by p1
await acked order-2
stop c1
rewind c1 to a by position
start c1
await absorbed order-2
reached absorbed order-2
expect no-accepted-loss, single-effect`)
		Expect(err).NotTo(HaveOccurred())
		j, err := scenarios.Run(GinkgoT().Context(), runner.Options{System: system, Spec: "nats:replay", Scenario: later, Dir: evidenceDir("declared-later"), Seed: 1})
		Expect(err).NotTo(HaveOccurred())
		Expect(j.Outcome).To(Equal(guarantees.Held), j.Why)
	})

	for _, name := range []string{"recover-from-timestamp", "recover-from-sequence"} {
		It(name+" is a loss where nothing comes again", func() {
			honest, err := registry.Find("nats:replay", runner.DefaultScale)
			Expect(err).NotTo(HaveOccurred())
			Expect(judged(honest, name, name).Outcome).To(Equal(guarantees.Held))

			still := troubled{honest, func(ctx context.Context, env systems.Env) (systems.Instance, error) {
				in, err := honest.Start(ctx, env)
				if err != nil {
					return nil, err
				}
				return unmoved{in, in.(systems.Networked), in.(systems.Inspector), in.(systems.Rewinder)}, nil
			}}
			j := judged(still, name, name+"-unmoved")
			Expect(j.Outcome).To(Equal(guarantees.Violated))
			var lost []string
			for _, f := range j.Broken {
				if f.Guarantee == evidence.NoAcceptedLoss {
					lost = append(lost, f.BusinessID)
				}
			}
			Expect(lost).To(ConsistOf("order-3", "order-4", "order-5"))
		})
	}
})
