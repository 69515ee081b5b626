package scenarios_test

import (
	"context"
	"fmt"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/scenarios"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems/registry"
)

var _ = Describe("A step of the notation", func() {
	BeforeEach(noLeaks)

	// run returns the events and judgement of a run.
	run := func(ctx context.Context, text string) ([]evidence.Event, guarantees.Judgement) {
		GinkgoHelper()
		s, err := script.Parse("notation.scenario", text)
		Expect(err).NotTo(HaveOccurred())
		Expect(scenarios.Check(s)).To(Succeed())
		system, err := registry.Find("zeromq", runner.DefaultScale)
		Expect(err).NotTo(HaveOccurred())
		dir := evidenceDir("notation-" + s.Name)
		j, err := scenarios.Run(ctx, runner.Options{System: system, Spec: "zeromq", Scenario: s, Dir: dir, Seed: 1})
		Expect(err).NotTo(HaveOccurred())
		files, err := evidence.Open(dir)
		Expect(err).NotTo(HaveOccurred())
		h, err := files.History()
		Expect(err).NotTo(HaveOccurred())
		var events []evidence.Event
		for e, err := range h.Events {
			Expect(err).NotTo(HaveOccurred())
			events = append(events, *e)
		}
		return events, j
	}
	of := func(events []evidence.Event, k evidence.Kind) []evidence.Event {
		return slices.DeleteFunc(slices.Clone(events), func(e evidence.Event) bool { return e.Kind != k })
	}

	It("gives messages keys, headers and sizes that arrive as they were sent", SpecTimeout(scaledLimit()), func(ctx SpecContext) {
		events, j := run(ctx, `scenario carried
producer p1 to orders
consumer c1 on orders, idempotent
publish order-1..order-5 by p1, size 0..4000, headers 3, keys 2
publish order-6..order-7 by p1
await effect of order-7
expect no-accepted-loss, no-phantom`)
		Expect(j.Outcome).To(Equal(guarantees.Held), j.Why)
		sent, served := of(events, evidence.PublishCalled), of(events, evidence.Delivered)
		Expect(sent).To(HaveLen(7))
		Expect(served).To(HaveLen(7))
		for i := range 5 {
			Expect(sent[i].Key).To(Equal(fmt.Sprintf("key-%d", i%2+1)))
			Expect(sent[i].Size - sent[0].Size).To(Equal(i * 1000))
		}
		Expect(sent[5].Key).To(BeEmpty())
		for i := range served {
			Expect(served[i].Digest).To(Equal(sent[i].Digest), "payload, key and headers of %s", served[i].BusinessID)
		}
	})

	It("has a handler work on what it is told to, and no other", SpecTimeout(scaledLimit()), func(ctx SpecContext) {
		events, j := run(ctx, `scenario slow-handler
producer p1 to orders
consumer c1 on orders, idempotent, takes 300ms on order-1, fails order-2, fails order-3..order-4 2 times
publish order-1..order-4 by p1, window 4
await effect of order-4
await failed order-2 at least 3 times
expect no-phantom`)
		Expect(j.CutShort).To(BeEmpty())
		began := map[string]time.Duration{}
		for _, e := range of(events, evidence.Delivered) {
			if _, again := began[e.BusinessID]; !again {
				began[e.BusinessID] = e.At
			}
		}
		for _, e := range of(events, evidence.EffectCalled) {
			if e.BusinessID == "order-1" {
				Expect(e.At - began[e.BusinessID]).To(BeNumerically(">=", 300*time.Millisecond))
			}
		}
		failed := map[string]int{}
		for _, e := range of(events, evidence.HandlerFailed) {
			failed[e.BusinessID]++
		}
		Expect(failed["order-2"]).To(BeNumerically(">=", 3))
		Expect(failed).To(And(HaveKeyWithValue("order-3", 2), HaveKeyWithValue("order-4", 2), Not(HaveKey("order-1"))))
	})

	It("waits until nothing has moved for so long", SpecTimeout(scaledLimit()), func(ctx SpecContext) {
		events, j := run(ctx, `scenario quiet
producer p1 to orders
consumer c1 on orders, idempotent
publish order-1..order-3 by p1
wait quiet 200ms
publish order-4 by p1
await effect of order-4
expect no-accepted-loss`)
		Expect(j.Outcome).To(Equal(guarantees.Held), j.Why)
		var last, called time.Duration
		for _, e := range events {
			switch {
			case e.Kind == evidence.PublishCalled && e.BusinessID == "order-4":
				called = e.At
			case e.Kind == evidence.AckReturned && e.BusinessID == "order-3":
				last = e.At
			}
		}
		Expect(called - last).To(BeNumerically(">=", 200*time.Millisecond))
		Expect(of(events, evidence.AwaitEnded)).To(ContainElement(HaveField("Reason", ContainSubstring("wait quiet"))))
	})

	It("that is never quiet ends the act", SpecTimeout(scaledLimit()), func(ctx SpecContext) {
		events, j := run(ctx, `scenario never-quiet
producer p1 to orders
consumer c1 on orders, idempotent, takes 20ms
publish order-1..order-200 by p1, background
wait quiet 400ms within 500ms
publish order-201 by p1
expect no-accepted-loss`)
		Expect(j.Outcome).To(Equal(guarantees.Inconclusive))
		Expect(j.CutShort).To(And(ContainSubstring("line 5"), ContainSubstring("1 step was not run")))
		Expect(of(events, evidence.PublishCalled)).NotTo(ContainElement(HaveField("BusinessID", "order-201")))
	})

	It("that is cut short leaves nothing held, and says what was left out", SpecTimeout(scaledLimit()), func(ctx SpecContext) {
		_, j := run(ctx, `scenario cut-short
producer p1 to orders
consumer c1 on orders, idempotent
publish order-1 by p1
await effect of order-9 within 1s
publish order-2..order-50 by p1
restart broker
expect no-accepted-loss, single-effect`)
		Expect(j.Outcome).To(Equal(guarantees.Inconclusive))
		Expect(j.Exit).To(Equal(guarantees.ExitInconclusive))
		Expect(j.Reached).To(BeFalse())
		Expect(j.Why).To(Equal(j.CutShort))
		Expect(j.Why).To(And(ContainSubstring("line 5"), ContainSubstring("effect of order-9"), ContainSubstring("2 steps were not run")))
	})
})
