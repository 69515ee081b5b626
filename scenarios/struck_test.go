package scenarios_test

import (
	"context"
	"path/filepath"
	"syscall"

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

// A fault without a target does not fire, and says so; an actor that exits or
// pauses affects no other.
var _ = Describe("A fault", func() {
	BeforeEach(noLeaks)

	var dir string // of the run
	BeforeEach(func() { dir = filepath.Join(evidenceDir("struck"), CurrentSpecReport().LeafNodeText) })

	run := func(ctx context.Context, change func(systems.System) systems.System, text string) guarantees.Judgement {
		GinkgoHelper()
		s, err := registry.Find("zeromq", runner.DefaultScale)
		Expect(err).NotTo(HaveOccurred())
		if change != nil {
			s = change(s)
		}
		parsed, err := script.Parse("struck.custody", text)
		Expect(err).NotTo(HaveOccurred())
		j, err := scenarios.Run(ctx, runner.Options{System: s, Spec: "zeromq", Scenario: parsed, Seed: 1, Dir: dir})
		Expect(err).NotTo(HaveOccurred())
		return j
	}

	const few = `
producer p1 to orders
consumer c1 on orders, idempotent, child
consumer c2 on orders, idempotent, child, offline
`
	DescribeTable("that finds nothing to strike has not fired",
		func(ctx context.Context, name, steps, why string) {
			j := run(ctx, nil, "scenario "+name+few+steps+"\nexpect no-accepted-loss, single-effect\n")
			Expect(j.Outcome).To(Equal(guarantees.Inconclusive), j.Why)
			Expect(j.Exit).To(Equal(guarantees.ExitInconclusive))
			Expect(j.Why).To(ContainSubstring(why))
		},
		Entry("a kill of a consumer that never ran", SpecTimeout(scaledLimit()), "kill-offline", `
fault f: kill c2
publish order-1..order-3 by p1
await effect of order-3
reached fired f`, "c2 was not running"),
		Entry("a pause of a consumer that never ran, at a frame", SpecTimeout(scaledLimit()), "pause-offline", `
fault f: pause c2 before frame ack of order-1 on c1
publish order-1..order-3 by p1
await effect of order-3
await acked order-1`, "fault f struck nothing: c2 was not running"),
		Entry("a second kill of the broker", SpecTimeout(scaledLimit()), "kill-twice", `
publish order-1 by p1
await effect of order-1
fault first: kill broker
fault f: kill broker
heal first`, "fault f struck nothing: broker was not running"),
		Entry("a pause of what was killed", SpecTimeout(scaledLimit()), "pause-killed", `
publish order-1 by p1
await effect of order-1
fault first: kill c1
fault f: pause c1`, "fault f struck nothing: c1 was not running"),
		Entry("a store whose broker is dead", SpecTimeout(scaledLimit()), "store-killed", `
publish order-1 by p1
await effect of order-1
fault first: shutdown broker
fault f: full store every before operation insert`, "fault f struck nothing: broker was not running"),
		Entry("a clock whose broker is dead", SpecTimeout(scaledLimit()), "clock-killed", `
publish order-1 by p1
await effect of order-1
fault first: kill broker
fault f: clock broker by 1h`, "fault f struck nothing: broker was not running"),
		Entry("a reset without a connection", SpecTimeout(scaledLimit()), "reset-offline", `
fault f: reset on c2
publish order-1 by p1
await effect of order-1`, "fault f struck nothing: no connection of c2 was open"),
	)

	It("that is healed after its process has ended heals nothing, and the run goes on", SpecTimeout(scaledLimit()), func(ctx SpecContext) {
		j := run(ctx, nil, `scenario pause-then-kill
producer p1 to orders
consumer c1 on orders, idempotent
publish order-1 by p1
await effect of order-1
fault still: pause broker
fault dead: kill broker
heal dead
heal still
publish order-2 by p1, until accepted
await effect of order-2
expect no-accepted-loss, single-effect, survives
`)
		Expect(j.Outcome).To(Equal(guarantees.Held), j.Why)
	})

	It("that pauses a consumer in the middle of its work keeps no other from its own", SpecTimeout(scaledLimit()), func(ctx SpecContext) {
		j := run(ctx, nil, `scenario frozen
producer p1 to orders
consumer c1 on orders, idempotent, child
consumer c2 on orders, idempotent, offline
fault stall: pause c1 after frame deliver of order-1 on c1
publish order-1 by p1
await fired stall
start c2
publish order-2..order-5 by p1
await effect of order-5
reached fired stall
reached effect of order-5
expect no-accepted-loss, recovery-bounded, single-effect
`)
		Expect(j.Outcome).To(Equal(guarantees.Held), j.Why)
	})

	It("is not needed for a broker to end by itself: it is started again, and only survives is broken", SpecTimeout(scaledLimit()), func(ctx SpecContext) {
		var others []int
		dirs := make(chan string, 1)
		dirs <- dir
		aborted := make(chan error, 1)
		go func() {
			defer GinkgoRecover()
			aborted <- signalWhen(ctx, syscall.SIGABRT, dirs, `"reason":"connected c1`, func() []int { return without(children(), others) })
		}()
		j := run(ctx, func(s systems.System) systems.System {
			return troubled{s, func(ctx context.Context, env systems.Env) (systems.Instance, error) {
				others = children()
				return s.Start(ctx, env)
			}}
		}, `scenario ended
producer p1 to orders
consumer c1 on orders, idempotent
publish order-1 by p1
await effect of order-1
wait quiet 100ms
await connected c1 at least 2 times
publish order-2 by p1, until accepted
await effect of order-2
reached effect of order-2
expect no-accepted-loss, single-effect, survives
`)
		Expect(<-aborted).To(Succeed())
		Expect(j.Outcome).To(Equal(guarantees.Violated), j.Why)
		Expect(j.Reached).To(BeTrue(), j.Why)
		for _, v := range j.Verdicts {
			want := guarantees.Held
			if v.Guarantee == evidence.Survives {
				want = guarantees.Violated
			}
			Expect(v.Outcome).To(Equal(want), "%s: %s", v.Guarantee, v.Why)
		}
	})
})
