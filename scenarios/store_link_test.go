package scenarios_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/scenarios"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/registry"
	"github.com/custodymq/custody/systems/zeromq"
)

// The link between a broker and its database server can be struck like any
// other.
var _ = Describe("A link to the store", func() {
	BeforeEach(noLeaks)

	runScript := func(ctx context.Context, system, defect string, parsed script.Scenario, dir string) guarantees.Judgement {
		GinkgoHelper()
		s, err := registry.Find(system, runner.DefaultScale)
		Expect(err).NotTo(HaveOccurred())
		if need, ok := s.(systems.Installed); ok && need.Installed() != nil {
			Expect(os.Getenv("CUSTODY_REQUIRE")).To(BeEmpty(), "%v", need.Installed())
			Skip(need.Installed().Error())
		}
		j, err := scenarios.Run(ctx, runner.Options{System: s, Spec: system, Scenario: parsed, Seed: 1, Dir: dir, Defect: defect})
		Expect(err).NotTo(HaveOccurred())
		return j
	}
	run := func(ctx context.Context, system, fault string) (guarantees.Judgement, string) {
		GinkgoHelper()
		parsed, err := script.Parse("store-link.custody", `
scenario store-link
producer p1 to orders
consumer c1 on orders, idempotent
fault f: `+fault+`
publish order-1..order-5 by p1
await fired f
reached fired f
expect no-accepted-loss, single-effect, survives`)
		Expect(err).NotTo(HaveOccurred())
		dir := filepath.Join(evidenceDir("store-link"), strings.NewReplacer(" ", "-", ":", "-").Replace(system+" "+fault))
		return runScript(ctx, system, "", parsed, dir), dir
	}

	for _, system := range []string{"zeromq:postgres", "zeromq:mariadb"} {
		DescribeTable("of "+system, func(ctx context.Context, fault string) {
			j, dir := run(ctx, system, fault)
			Expect(j.Outcome).To(Equal(guarantees.Held), j.Why)
			saved, _, err := script.OpenRun(dir)
			Expect(err).NotTo(HaveOccurred())
			Expect(saved.Manifest().Faults).To(ConsistOf(HaveField("Class", evidence.Store)))
		},
			Entry("loses the reply of a commit", SpecTimeout(scaledLimit()), "cut before frame commit-reply 3 on store"),
			Entry("loses an insert and all behind it", SpecTimeout(scaledLimit()), "drop frame insert of order-3 on store"),
			Entry("delays an insert", SpecTimeout(scaledLimit()), "delay frame insert of order-2 on store by 50ms"),
			Entry("is reset", SpecTimeout(scaledLimit()), "reset on store"),
			Entry("is slow", SpecTimeout(scaledLimit()), "latency on store by 20ms"),
		)
	}

	// What is done may be stored: whoever asked must not be told that it is not.
	DescribeTable("that loses the answer to what stores a message", func(ctx context.Context, system, frame, verb string) {
		j, dir := run(ctx, system, verb+" frame "+frame+" of order-3 on store")
		Expect(j.Outcome).To(Equal(guarantees.Held), j.Why)
		_, h, err := script.OpenRun(dir)
		Expect(err).NotTo(HaveOccurred())
		answers := 0
		for e, err := range h.Events {
			Expect(err).NotTo(HaveOccurred())
			if e.Kind == evidence.PublishReturned && e.BusinessID == "order-3" {
				answers++
				Expect(e.Acceptance).To(BeElementOf(evidence.Unknown, evidence.Accepted))
			}
		}
		Expect(answers).NotTo(BeZero())
	},
		Entry("PostgreSQL withholds it", SpecTimeout(scaledLimit()), "zeromq:postgres", "commit-reply", "drop"),
		Entry("PostgreSQL is cut off", SpecTimeout(scaledLimit()), "zeromq:postgres", "commit-reply", "cut before"),
		Entry("MariaDB withholds it", SpecTimeout(scaledLimit()), "zeromq:mariadb", "commit-reply", "drop"),
		Entry("MariaDB is cut off", SpecTimeout(scaledLimit()), "zeromq:mariadb", "commit-reply", "cut before"),
		Entry("Redis withholds it", SpecTimeout(scaledLimit()), "zeromq:redis", "insert-reply", "drop"),
		Entry("Redis is cut off", SpecTimeout(scaledLimit()), "zeromq:redis", "insert-reply", "cut before"),
	)

	DescribeTable("that is struck by what cannot be", func(ctx context.Context, system, fault, why string) {
		j, _ := run(ctx, system, fault)
		Expect(j.Outcome).To(Equal(guarantees.NotApplicable))
		Expect(j.Why).To(ContainSubstring(why))
	},
		Entry("a store in a file", SpecTimeout(scaledLimit()), "zeromq", "drop frame commit on store", "no store-link"),
		Entry("a frame of another link", SpecTimeout(scaledLimit()), "zeromq:postgres", "drop frame publish on store", `postgres has no "publish" frame`),
		Entry("a frame of this link on another", SpecTimeout(scaledLimit()), "zeromq:postgres", "drop frame insert on p1", `has no "insert" frame`),
		Entry("a COMMIT where a script is one", SpecTimeout(scaledLimit()), "zeromq:redis", "drop frame commit on store", `resp has no "commit" frame`),
		Entry("a second COMMIT", SpecTimeout(scaledLimit()), "zeromq:postgres", "duplicate frame commit on store", "matched by position"),
	)

	It("leads to a server that can be killed once, and is started again", SpecTimeout(scaledLimit()), func(ctx SpecContext) {
		parsed, err := script.Parse("store-link.custody", `
scenario store-killed-twice
producer p1 to orders
consumer c1 on orders, idempotent
publish order-1 by p1
fault first: kill store
fault second: kill store
start store
publish order-2 by p1, until accepted
await effect of order-2
reached fired first
expect no-accepted-loss, single-effect, survives`)
		Expect(err).NotTo(HaveOccurred())
		dir := filepath.Join(evidenceDir("store-link"), "killed-twice")
		Expect(runScript(ctx, "zeromq:redis", "", parsed, dir).Outcome).To(Equal(guarantees.Inconclusive))
		_, h, err := script.OpenRun(dir)
		Expect(err).NotTo(HaveOccurred())
		var struck []string
		for e, err := range h.Events {
			Expect(err).NotTo(HaveOccurred())
			if e.Actor == "store" && (e.Kind == evidence.FaultFired || e.Kind == evidence.FaultMissed) {
				struck = append(struck, fmt.Sprint(e.Fault, " ", e.Incarnation, " ", e.Reason))
			}
		}
		Expect(struck).To(Equal([]string{"first 1 ", "second 1 store was not running"}))
	})

	// What a standby promises is seen by what is lost without it.
	DescribeTable("leads to a server that is lost, with a standby", func(ctx context.Context, system, defect string, loss guarantees.Outcome, claimed bool) {
		lost, err := scenarios.Find("node-lost")
		Expect(err).NotTo(HaveOccurred())
		j := runScript(ctx, system, defect, lost, filepath.Join(evidenceDir("store-link"), strings.ReplaceAll("node-lost "+system+defect, ":", "-")))
		Expect(j.Reached).To(BeTrue(), j.Why)
		for _, v := range j.Verdicts {
			if v.Guarantee == evidence.NoAcceptedLoss {
				Expect(v.Outcome).To(Equal(loss), v.Why)
				Expect(v.Covered).To(Equal(claimed))
			}
		}
		Expect(len(j.Broken) > 0).To(Equal(loss == guarantees.Violated && claimed), j.Why)
	},
		Entry("of PostgreSQL that is waited for", SpecTimeout(scaledLimit()), "zeromq:postgres-sync", "", guarantees.Held, true),
		Entry("of PostgreSQL that follows as it can", SpecTimeout(scaledLimit()), "zeromq:postgres-async", "", guarantees.Violated, false),
		Entry("of PostgreSQL that is said to be waited for", SpecTimeout(scaledLimit()), "zeromq:postgres-sync", zeromq.GapDefect, guarantees.Violated, true),
		Entry("of MariaDB that is waited for", SpecTimeout(scaledLimit()), "zeromq:mariadb-semisync", "", guarantees.Held, true),
		Entry("of MariaDB that follows as it can", SpecTimeout(scaledLimit()), "zeromq:mariadb-async", "", guarantees.Violated, false),
		Entry("of MariaDB that is said to be waited for", SpecTimeout(scaledLimit()), "zeromq:mariadb-semisync", zeromq.GapDefect, guarantees.Violated, true),
		Entry("of Redis that is waited for", SpecTimeout(scaledLimit()), "zeromq:redis-wait", "", guarantees.Held, true),
		Entry("of Redis that follows as it can", SpecTimeout(scaledLimit()), "zeromq:redis-async", "", guarantees.Violated, false),
		Entry("of Redis that is said to be waited for", SpecTimeout(scaledLimit()), "zeromq:redis-wait", zeromq.GapDefect, guarantees.Violated, true),
	)
})
