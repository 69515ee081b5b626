package scenarios_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/scenarios"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/defects"
	"github.com/custodymq/custody/systems/registry"
	"github.com/custodymq/custody/systems/systemtest"
)

var update = flag.Bool("update", false, "write the measured part of docs/track-record.md anew")

// recorded is a public bug report: a run that shows it and a control that does
// not.
type recorded struct {
	report  string
	shown   making
	by      string // the guarantee…
	kind    string // …and the kind of its finding; empty if the run must be inconclusive
	control making
}

// making says how to make a run.
type making struct{ script, system, defect string }

var record = []recorded{
	{
		"rabbitmq-server pull request 2178, CAP issue 1508",
		making{"unroutable", "rabbitmq:unroutable", ""}, evidence.NoAcceptedLoss, "lost-prefix",
		making{"unroutable", "rabbitmq:mandatory", ""},
	},
	{
		"rabbitmq-server pull request 1889",
		making{"dropped-after-its-deliveries", "rabbitmq:delivery-limit", ""}, evidence.NoAcceptedLoss, "dropped-by-design",
		making{"dropped-after-its-deliveries", "rabbitmq:delivery-limit-dlx", ""},
	},
	{
		"eventing-rabbitmq issue 546",
		making{"killed-after-the-answer", "rabbitmq:classic-transient", ""}, evidence.NoAcceptedLoss, "lost-prefix",
		making{"killed-after-the-answer", "rabbitmq:classic", ""},
	},
	{
		"amqp091-go issue 46",
		making{"cut-before-the-confirm", "rabbitmq:quorum", "client-takes-unknown-for-rejected"}, evidence.SingleEffect, "effect-of-refused",
		making{"cut-before-the-confirm", "rabbitmq:quorum", ""},
	},
	{
		"confluent-kafka-go issue 1179",
		making{"finished-out-of-order", "kafka:commit-skips-failed", ""}, evidence.NoAcceptedLoss, "lost-prefix",
		making{"finished-out-of-order", "kafka:acks-all", ""},
	},
	{
		"kafka-go issue 1427",
		making{"given-up", "kafka:acks-all", "client-takes-unknown-for-rejected"}, evidence.SingleEffect, "effect-of-refused",
		making{"given-up", "kafka:acks-all", ""},
	},
	{
		"aiokafka issue 197",
		making{"client-tries-again", "kafka:retries", ""}, evidence.NoDuplicateDelivery, "handed-twice",
		making{"client-tries-again", "kafka:idempotent-retries", ""},
	},
	{
		"mosquitto issue 3687",
		making{"queue-limit", "mqtt-mosquitto:queue-limit", ""}, evidence.NoAcceptedLoss, "lost-suffix",
		making{"queue-limit", "mqtt-mosquitto:qos1", ""},
	},
	{
		"mosquitto issue 769",
		making{"killed-after-the-answer", "mqtt-mosquitto:qos1-default-autosave", ""}, evidence.NoAcceptedLoss, "lost-prefix",
		making{"shut-down-after-the-answer", "mqtt-mosquitto:qos1-default-autosave", ""},
	},
	{
		"mochi-mqtt server issue 369",
		making{"shut-down-after-the-answer", "mqtt-mochi:qos1-memory", ""}, evidence.NoAcceptedLoss, "lost-prefix",
		making{"shut-down-after-the-answer", "mqtt-mochi:qos1", ""},
	},
	{
		"nats-server issue 5564",
		making{"stuck-after-its-deliveries", "nats:max-deliver", ""}, evidence.BoundedRetry, "not-dead-lettered",
		making{"stuck-after-its-deliveries", "zeromq:at-least-once", ""},
	},
	{
		"nats.go issue 484, nats.rs issue 1177",
		making{"told-ok", "nats:core", ""}, evidence.NoAcceptedLoss, "unconfirmed-loss",
		making{"told-ok", "nats:file-explicit-ack", ""},
	},
	{
		"nats.node issue 628",
		making{"retry-as-another-message", "nats:file-explicit-ack", ""}, evidence.SingleEffect, "second-effect",
		making{"retry-as-the-same-message", "nats:dedup-window", ""},
	},
	{
		"OpenLinker issue 2164",
		making{"read-and-died", "redis:new-only", ""}, evidence.RecoveryBounded, "never-settled",
		making{"read-and-died", "redis:aof-always-claim", ""},
	},
	{
		"redis issue 1267",
		making{"killed-after-the-answer", "redis:no-aof", ""}, evidence.NoAcceptedLoss, "lost-prefix",
		making{"killed-after-the-answer", "redis:aof-always-claim", ""},
	},
	{
		"redis-py issue 261",
		making{"hidden-retry", "redis:aof-always-claim", "client-hides-a-retry"}, evidence.NoDuplicateDelivery, "handed-twice",
		making{"hidden-retry", "redis:aof-always-claim", ""},
	},
	{
		"paho.mqtt.golang issue 459",
		making{"acknowledged-after-a-failure", "nats:file-explicit-ack", "client-acknowledges-after-a-failure"}, evidence.NoAcceptedLoss, "lost-prefix",
		making{"acknowledged-after-a-failure", "nats:file-explicit-ack", ""},
	},
	{
		"toxiproxy issues 148 and 603",
		making{"fault-that-missed", "zeromq:at-least-once", ""}, evidence.SingleEffect, "",
		making{"fault-of-nothing", "zeromq:at-least-once", ""},
	},
}

var _ = Describe("The track record", Ordered, ContinueOnFailure, Label("record"), func() {
	type pair struct{ shown, control scenarios.Outcome }
	outcomes := make([]chan pair, len(record))
	sections := make([]string, len(record))
	label := func(r recorded) Labels { return Label("record", r.shown.script, r.shown.system) }

	BeforeAll(func() {
		noLeaks()
		ctx, cancel := context.WithCancel(context.Background())
		servers, dir := process.NewPool(), evidenceDir("record")
		// The cases of one system run in sequence, to share its server.
		chains := map[string][]int{}
		for i, r := range record {
			outcomes[i] = make(chan pair, 1)
			if r.shown.installed() && r.control.installed() && label(r).MatchesLabelFilter(GinkgoLabelFilter()) {
				system := r.shown.find().Describe().System
				chains[system] = append(chains[system], i)
			}
		}
		var group sync.WaitGroup
		slots := make(chan struct{}, 2*runtime.NumCPU())
		for _, chain := range chains {
			group.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				for _, i := range chain {
					shown := record[i].shown.make(ctx, servers, filepath.Join(dir, fmt.Sprintf("%02d-shown", i+1)))
					control := record[i].control.make(ctx, servers, filepath.Join(dir, fmt.Sprintf("%02d-control", i+1)))
					outcomes[i] <- pair{shown, control}
				}
			})
		}
		DeferCleanup(func(ctx SpecContext) {
			cancel()
			group.Wait()
			Expect(servers.Close(ctx)).To(Succeed())
		}, NodeTimeout(scaledLimit()))
	})

	for i, r := range record {
		It(r.report+": "+r.shown.script+" on "+r.shown.system, label(r), SpecTimeout(scaledLimit()), func(ctx SpecContext) {
			for _, m := range []making{r.shown, r.control} {
				systemtest.Require(GinkgoTB(), m.find())
				Expect(m.text()).To(ContainSubstring(r.report), "%s does not name the report", m.file())
			}
			var made pair
			select {
			case made = <-outcomes[i]:
			case <-ctx.Done():
				Fail("no outcome in time")
			}
			AddReportEntry("evidence", []string{made.shown.Dir, made.control.Dir})
			sections[i] = r.section(r.seen(made.shown))
			r.clean(made.control)
			if !*update {
				Expect(unmeasured(trackRecord())).To(ContainSubstring(unmeasured(sections[i])), "docs/track-record.md is behind: run make record")
			}
		})
	}

	It("uses every script that is kept for it", func() {
		files, err := filepath.Glob("record/*.scenario")
		Expect(err).NotTo(HaveOccurred())
		used := map[string]bool{}
		for _, r := range record {
			used[r.shown.file()], used[r.control.file()] = true, true
		}
		Expect(files).To(ConsistOf(slices.Collect(maps.Keys(used))))
	})

	AfterAll(func() {
		if !*update {
			return
		}
		Expect(sections).NotTo(ContainElement(""), "the page is written when every case was shown")
		page := measured.ReplaceAllLiteralString(trackRecord(), opens+"\n\n"+strings.Join(sections, "\n")+"\n"+closes)
		Expect(os.WriteFile(trackRecordFile, []byte(page), 0o644)).To(Succeed())
	})
})

func (m making) file() string { return filepath.Join("record", m.script+".scenario") }

func (m making) text() string {
	GinkgoHelper()
	text, err := os.ReadFile(m.file())
	Expect(err).NotTo(HaveOccurred())
	return string(text)
}

func (m making) find() systems.System {
	GinkgoHelper()
	s, err := registry.Find(m.system, runner.DefaultScale)
	Expect(err).NotTo(HaveOccurred())
	return s
}

func (m making) installed() bool {
	need, ok := m.find().(systems.Installed)
	return !ok || need.Installed() == nil
}

func (m making) make(ctx context.Context, servers *process.Pool, dir string) scenarios.Outcome {
	defer GinkgoRecover()
	s, err := script.Parse(m.file(), m.text())
	Expect(err).NotTo(HaveOccurred())
	o := scenarios.Outcome{Name: s.Name, Dir: dir}
	o.Judgement, o.Err = scenarios.Run(ctx, runner.Options{
		System: m.find(), Spec: m.system, Scenario: s, Dir: dir, Seed: 1, Defect: m.defect, Servers: servers,
	})
	return o
}

// command returns the command line of the run, in a checkout.
func (m making) command() string {
	command := "custody run scenarios/record/" + m.script + ".scenario --system " + m.system
	if m.defect != "" {
		command += " --defect " + m.defect
	}
	return "`" + command + "`"
}

// seen returns the finding that demonstrates the report in the run.
func (r recorded) seen(o scenarios.Outcome) string {
	GinkgoHelper()
	Expect(o.Err).NotTo(HaveOccurred())
	v := r.verdict(o)
	if r.kind == "" {
		Expect(o.Judgement.Outcome).To(Equal(guarantees.Inconclusive), "%s\n%s", o.Judgement.Why, o.Dir)
		return "a run that is inconclusive: " + o.Judgement.Why
	}
	at := slices.IndexFunc(v.Findings, func(f guarantees.Finding) bool { return f.Kind == r.kind })
	Expect(at).To(BeNumerically(">=", 0), "%s shows no %s: %s\n%s", r.by, r.kind, v.Why, o.Dir)
	seen := fmt.Sprintf("`%s` (%s", r.by, r.kind)
	if where := v.Findings[at].HandOver; where != "" {
		seen += fmt.Sprintf(", at %s", where)
	}
	switch {
	case v.Findings[at].Unconfirmed:
		return seen + "), which its profile states"
	case !v.Claimed:
		return seen + "), which is not claimed"
	case !v.Covered:
		return seen + "), which is claimed, but not for this fault"
	}
	Expect(o.Judgement.Outcome).To(Equal(guarantees.Violated), "%s\n%s", o.Judgement.Why, o.Dir)
	return seen + "), which is claimed, and violated"
}

// clean checks that the control exercises the guarantee, and holds it.
func (r recorded) clean(o scenarios.Outcome) {
	GinkgoHelper()
	Expect(o.Err).NotTo(HaveOccurred())
	Expect(o.Judgement.Outcome).To(Or(Equal(guarantees.Held), Equal(guarantees.NotClaimed)), "the control: %s\n%s", o.Judgement.Why, o.Dir)
	v := r.verdict(o)
	Expect(v.Outcome).To(Equal(guarantees.Held), "the control: %s\n%s", v.Why, o.Dir)
	Expect(v.Findings).To(BeEmpty(), "the control\n%s", o.Dir)
}

func (r recorded) verdict(o scenarios.Outcome) guarantees.Verdict {
	GinkgoHelper()
	at := slices.IndexFunc(o.Judgement.Verdicts, func(v guarantees.Verdict) bool { return v.Guarantee == r.by })
	Expect(at).To(BeNumerically(">=", 0), "no verdict on %s: %s\n%s", r.by, o.Judgement.Why, o.Dir)
	return o.Judgement.Verdicts[at]
}

const (
	trackRecordFile = "../docs/track-record.md"
	opens           = "<!-- measured: record -->"
	closes          = "<!-- end -->"
	measuredOn      = "- Measured on "
)

var (
	measured     = regexp.MustCompile(`(?s)` + opens + `.*?` + closes)
	measuredLine = regexp.MustCompile(`(?m)^` + measuredOn + `.*\n`)
)

func trackRecord() string {
	GinkgoHelper()
	page, err := os.ReadFile(trackRecordFile)
	Expect(err).NotTo(HaveOccurred())
	return string(page)
}

// unmeasured removes the lines that depend on the machine.
func unmeasured(page string) string { return measuredLine.ReplaceAllString(page, "") }

// section returns the case's section of the page.
func (r recorded) section(seen string) string {
	GinkgoHelper()
	s, err := script.Parse(r.shown.file(), r.shown.text())
	Expect(err).NotTo(HaveOccurred())
	why := s.Why
	if d, ok := defects.Find(r.shown.defect); ok {
		why += " The client is broken on purpose: " + d.Text + "."
	}
	versions := r.shown.versions()
	maps.Copy(versions, r.control.versions())
	var with []string
	for _, name := range slices.Sorted(maps.Keys(versions)) {
		with = append(with, name+" "+versions[name])
	}
	return fmt.Sprintf("### %s\n\n%s\n\n- Run: %s. %s\n- Shown by %s.\n- Control: %s. %s\n%s%s with %s.\n",
		r.report, why, r.shown.command(), r.shown.summary(), seen, r.control.command(), r.different(),
		measuredOn, time.Now().UTC().Format("2 January 2006"), strings.Join(with, ", "))
}

// different says how the control differs.
func (r recorded) different() string {
	GinkgoHelper()
	switch {
	case r.control.script != r.shown.script:
		s, err := script.Parse(r.control.file(), r.control.text())
		Expect(err).NotTo(HaveOccurred())
		return s.Why
	case r.control.system != r.shown.system:
		return r.control.summary()
	}
	return "The client is honest."
}

// summary returns the profile's summary as a sentence.
func (m making) summary() string {
	GinkgoHelper()
	text := m.find().Describe().Profile.Summary
	return strings.ToUpper(text[:1]) + text[1:] + "."
}

// versions returns the versions of server and client. A test binary does not
// know those of its modules.
func (m making) versions() map[string]string {
	GinkgoHelper()
	found := m.find().Describe().Versions
	modules, err := os.ReadFile("../go.mod")
	Expect(err).NotTo(HaveOccurred())
	for _, name := range map[string][]string{
		"zeromq": {"zmq4", "go-sqlite3"}, "kafka": {"franz-go"}, "mqtt-mosquitto": {"paho.golang"}, "mqtt-mochi": {"paho.golang"},
	}[m.find().Describe().System] {
		version := regexp.MustCompile(`/` + regexp.QuoteMeta(name) + ` v(\S+)`).FindSubmatch(modules)
		Expect(version).NotTo(BeNil(), "go.mod does not name %s", name)
		found[name] = string(version[1])
	}
	return found
}
