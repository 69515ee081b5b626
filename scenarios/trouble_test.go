package scenarios_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/scenarios"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/registry"
)

// troubled is a system with a problem that no scenario causes.
type troubled struct {
	systems.System
	start func(ctx context.Context, env systems.Env) (systems.Instance, error)
}

func (s troubled) Start(ctx context.Context, env systems.Env) (systems.Instance, error) {
	return s.start(ctx, env)
}

func (s troubled) Credentials(i systems.Instance) string {
	return s.System.(systems.Connector).Credentials(i)
}

func (s troubled) Connect(credentials string) (systems.Clients, error) {
	return s.System.(systems.Connector).Connect(credentials)
}

// stalling is an instance whose links delay frames.
type stalling struct {
	systems.Instance
	systems.Networked
	systems.Inspector
	frame string
	stall time.Duration
}

func (s stalling) Protocol() links.Protocol { return stallingProtocol{s.Networked.Protocol(), s} }

type stallingProtocol struct {
	links.Protocol
	of stalling
}

func (p stallingProtocol) NewConn(x *links.Index) (toBroker, toClient links.Framer) {
	b, c := p.Protocol.NewConn(x)
	return b, &stallingFramer{Framer: c, of: p.of}
}

type stallingFramer struct {
	links.Framer
	of   stalling
	done bool
}

func (f *stallingFramer) Next(b []byte) (links.Frame, int, error) {
	frame, n, err := f.Framer.Next(b)
	if frame.Kind == f.of.frame && !f.done {
		f.done = true
		<-time.After(f.of.stall)
	}
	return frame, n, err
}

// A problem of the harness is never a verdict, and is reported clearly.
var _ = Describe("A run in trouble", func() {
	BeforeEach(noLeaks)

	honest := func() systems.System {
		GinkgoHelper()
		s, err := registry.Find("zeromq", runner.DefaultScale)
		Expect(err).NotTo(HaveOccurred())
		return s
	}
	const plain = `scenario trouble
producer p1 to orders
consumer c1 on orders, idempotent
publish order-1..order-3 by p1
await effect of order-3
expect no-accepted-loss, single-effect, survives`
	run := func(ctx context.Context, s systems.System, text string, scale float64) (guarantees.Judgement, string, error) {
		GinkgoHelper()
		parsed, err := script.Parse("trouble.custody", text)
		Expect(err).NotTo(HaveOccurred())
		dir := filepath.Join(evidenceDir("trouble"), strconv.FormatInt(time.Now().UnixNano(), 36))
		j, err := scenarios.Run(ctx, runner.Options{System: s, Spec: "zeromq", Scenario: parsed, Dir: dir, Seed: 1, Scale: scale})
		return j, dir, err
	}

	It("with a system that does not start could not be measured", SpecTimeout(scaledLimit()), func(ctx SpecContext) {
		s := troubled{honest(), func(context.Context, systems.Env) (systems.Instance, error) {
			return nil, errors.New("no licence")
		}}
		j, _, err := run(ctx, s, plain, runner.DefaultScale)
		Expect(err).To(MatchError(ContainSubstring("no licence")))
		Expect(j.Exit).To(Equal(guarantees.ExitUnmeasured))
		Expect(j.Error).To(ContainSubstring("no licence"))
	})

	It("with a system that never becomes ready could not be measured", SpecTimeout(scaledLimit()), func(ctx SpecContext) {
		s := troubled{honest(), func(ctx context.Context, _ systems.Env) (systems.Instance, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}}
		j, _, err := run(ctx, s, plain, 0.02)
		Expect(err).To(MatchError(context.DeadlineExceeded))
		Expect(j.Exit).To(Equal(guarantees.ExitUnmeasured))
		Expect(j.Error).To(ContainSubstring("start zeromq"))
	})

	It("whose system is killed from outside could not be measured", SpecTimeout(scaledLimit()), func(ctx SpecContext) {
		var others []int // children of this test binary that are not ours
		s := troubled{honest(), nil}
		s.start = func(ctx context.Context, env systems.Env) (systems.Instance, error) {
			others = children()
			return s.System.Start(ctx, env)
		}
		dir := make(chan string, 1)
		killed := make(chan error, 1)
		go func() {
			defer GinkgoRecover()
			killed <- signalWhen(ctx, syscall.SIGKILL, dir, `"reason":"effect of order-2`, func() []int { return without(children(), others) })
		}()
		parsed, err := script.Parse("trouble.custody", `scenario killed
producer p1 to orders
consumer c1 on orders, idempotent
publish order-1 by p1
await effect of order-1
await effect of order-2 within 2s
expect no-accepted-loss, single-effect, survives`)
		Expect(err).NotTo(HaveOccurred())
		at := filepath.Join(evidenceDir("trouble"), "killed")
		dir <- at
		j, _ := scenarios.Run(ctx, runner.Options{System: s, Spec: "zeromq", Scenario: parsed, Dir: at, Seed: 1})
		Expect(<-killed).To(Succeed())
		Expect(j.Exit).To(Equal(guarantees.ExitUnmeasured), "%s: %s", j.Outcome, j.Why)
		Expect(j.Error).To(ContainSubstring("killed"))
	})

	It("whose system floods its log goes on, with a log of bounded size", SpecTimeout(scaledLimit()), func(ctx SpecContext) {
		s := troubled{honest(), nil}
		s.start = func(ctx context.Context, env systems.Env) (systems.Instance, error) {
			log, err := env.Log("flood")
			if err != nil {
				return nil, err
			}
			line := bytes.Repeat([]byte("all work and no play "), 50<<10)
			for range 20 {
				if _, err := log.Write(line); err != nil {
					return nil, err
				}
			}
			return s.System.Start(ctx, env)
		}
		j, dir, err := run(ctx, s, plain, runner.DefaultScale)
		Expect(err).NotTo(HaveOccurred())
		Expect(j.Outcome).To(Equal(guarantees.Held))
		info, err := os.Stat(filepath.Join(dir, "logs", "flood.log"))
		Expect(err).NotTo(HaveOccurred())
		Expect(info.Size()).To(BeNumerically("<", 9<<20))
	})

	It("whose proxy stalls could not be measured", SpecTimeout(scaledLimit()), func(ctx SpecContext) {
		s := troubled{honest(), nil}
		for _, frame := range []string{links.FrameDeliver, links.FrameAccept} {
			s.start = func(ctx context.Context, env systems.Env) (systems.Instance, error) {
				in, err := s.System.Start(ctx, env)
				if err != nil {
					return nil, err
				}
				stall := s.System.Describe().Profile.Limits.InFlightBound * 3 / 2
				return stalling{in, in.(systems.Networked), in.(systems.Inspector), frame, stall}, nil
			}
			j, dir, err := run(ctx, s, plain, runner.DefaultScale)
			Expect(err).To(MatchError(ContainSubstring("kept a frame for")))
			Expect(j.Exit).To(Equal(guarantees.ExitUnmeasured), "%s: %s (%s)", j.Outcome, j.Why, dir)
		}
	})

	It("whose system answers too late is never held", SpecTimeout(scaledLimit()), func(ctx SpecContext) {
		j, _, err := run(ctx, honest(), `scenario late
producer p1 to orders
consumer c1 on orders, idempotent
fault late: latency on p1 by 5s
publish order-1 by p1
await acceptance accepted of order-1 within 2s
reached acceptance accepted of order-1
expect no-accepted-loss, single-effect`, runner.DefaultScale)
		Expect(err).NotTo(HaveOccurred())
		Expect(j.Outcome).NotTo(Equal(guarantees.Held), j.Why)
		Expect(j.Outcome).NotTo(Equal(guarantees.Violated), j.Why)
	})
})

// signalWhen signals the processes returned by find once a run's events contain
// text.
func signalWhen(ctx context.Context, sig syscall.Signal, dirs <-chan string, text string, find func() []int) error {
	events := filepath.Join(<-dirs, "events.jsonl")
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		b, err := os.ReadFile(events)
		if err == nil && bytes.Contains(b, []byte(text)) {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.New("the text never came")
		}
	}
	for _, pid := range find() {
		if err := syscall.Kill(pid, sig); err != nil {
			return err
		}
	}
	return nil
}

// children returns the child processes of this one.
func children() []int {
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	var pids []int
	for _, list := range lists {
		b, _ := os.ReadFile(list) // fails for a thread that has ended
		for _, word := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(word); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func without(pids, others []int) []int {
	var left []int
	for _, pid := range pids {
		found := false
		for _, o := range others {
			found = found || o == pid
		}
		if !found {
			left = append(left, pid)
		}
	}
	return left
}
