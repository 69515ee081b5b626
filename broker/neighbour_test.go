package broker_test

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/custodymq/custody/broker"
	"github.com/custodymq/custody/broker/attack"
	"github.com/custodymq/custody/broker/client"
	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/sqlite"
	"github.com/custodymq/custody/broker/wire"
)

// BenchmarkNeighbour shows what an attack by others costs a healthy client: its
// p50 and p99 from publish over delivery to the answered ACK, one at a time,
// before the attack and during it, and the ratio of the two. Beside them it shows
// what the attackers achieve. The broker, the attackers and the client are
// processes of their own, on the same machine.
//
// Two of the rows show what sharing the cores costs without an attack: a process
// that only computes, and an attack on another broker.
//
// Use -benchtime 1s: each attack is prepared once, and stops when the time is over.
// A cycle that is not answered within cycleLimit is the last: its time is what p99
// shows, and unanswered is 1.
func BenchmarkNeighbour(b *testing.B) {
	const elsewhere = "-elsewhere"
	beside := []string{"quiet", "busy-cores", "4-MiB-before-Hello" + elsewhere}
	for _, a := range attack.All() {
		beside = append(beside, a.Name)
	}
	for _, name := range beside {
		b.Run(name, func(b *testing.B) {
			addr, stop := startRole(b, "broker", b.TempDir())
			defer stop()
			h := &healthy{b: b, producer: dialAddr(b, addr, "p"), sub: subscribe(b, dialAddr(b, addr, "c"), "healthy", wire.AtLeastOnce, 8)}
			h.measure(func() bool { return len(h.took) < 100 }) // warm
			quiet := h.measure(func() bool { return len(h.took) < 1000 })
			end := func() string { return "" }
			switch name, away := strings.CutSuffix(name, elsewhere); {
			case away:
				addr, stop := startRole(b, "broker", b.TempDir())
				defer stop()
				_, end = startRole(b, "attack", name, addr)
			case name == "busy-cores":
				_, end = startRole(b, "compute")
			case name != "quiet":
				_, end = startRole(b, "attack", name, addr)
			}
			during := h.measure(b.Loop)
			var requests, bytes float64
			if achieved := end(); achieved != "" {
				if _, err := fmt.Sscan(achieved, &requests, &bytes); err != nil {
					b.Error(err)
				}
			}
			for name, q := range map[string]int{"p50": 50, "p99": 99} {
				was, is := percentile(quiet, q), percentile(during, q)
				b.ReportMetric(float64(was.Microseconds())/1000, "quiet-"+name+"-ms")
				b.ReportMetric(float64(is.Microseconds())/1000, name+"-ms")
				b.ReportMetric(float64(is)/float64(was), name+"-ratio")
			}
			b.ReportMetric(requests, "requests/s")
			b.ReportMetric(bytes/(1<<20), "MiB/s")
			b.ReportMetric(float64(h.unanswered), "unanswered")
			b.ReportMetric(0, "ns/op")
		})
	}
}

var attackersNice = flag.Int("attackers-nice", 0, "of BenchmarkNeighbour: the niceness of its attackers, who would have a machine of their own")

const roleEnv, readyMark, doneMark = "CUSTODY_NEIGHBOUR_ROLE", "ready: ", "done: "

// startRole runs a role in another process and returns what it says once it is
// ready. stop ends it and returns its last word.
func startRole(b *testing.B, role ...string) (ready string, stop func() (last string)) {
	b.Helper()
	args := []string{os.Args[0], "-test.run=^$", "-test.bench=^BenchmarkNeighbourRole$", "-test.benchtime=1x"}
	if *attackersNice != 0 && role[0] != "broker" {
		args = append([]string{"nice", "-n", strconv.Itoa(*attackersNice)}, args...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), roleEnv+"="+strings.Join(role, " "))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		b.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	said := func(mark string) (what string) {
		for lines.Scan() {
			if _, what, ok := strings.Cut(lines.Text(), mark); ok {
				return what
			}
		}
		return ""
	}
	ready = said(readyMark)
	return ready, func() string {
		stdin.Close()
		last := said(doneMark)
		io.Copy(io.Discard, stdout)
		if err := cmd.Wait(); err != nil {
			b.Errorf("%s: %v", role, err)
		}
		return last
	}
}

// BenchmarkNeighbourRole is the other processes of BenchmarkNeighbour.
func BenchmarkNeighbourRole(b *testing.B) {
	role := strings.Fields(os.Getenv(roleEnv))
	if len(role) == 0 {
		b.Skip("BenchmarkNeighbour starts it")
	}
	switch role[0] {
	case "broker":
		serveNeighbours(b, role[1])
	case "attack":
		attackNeighbours(b, role[1], role[2])
	case "compute":
		compute()
	}
}

// compute keeps every core busy until its input ends.
func compute() {
	var ended atomic.Bool
	var all sync.WaitGroup
	for range runtime.NumCPU() {
		all.Go(func() {
			for !ended.Load() {
			}
		})
	}
	fmt.Println(readyMark)
	_, _ = io.Copy(io.Discard, os.Stdin)
	ended.Store(true)
	all.Wait()
	fmt.Println(doneMark)
}

func serveNeighbours(b *testing.B, dir string) {
	broker.TuneRuntime(broker.DefaultMemory()) // as custody broker does
	held, err := sqlite.Open(within(b), sqlite.Options{Path: filepath.Join(dir, "broker.db"), Partition: partition, Sync: store.FlushEveryCommit})
	if err != nil {
		b.Fatal(err)
	}
	defer held.Close()
	s, err := broker.Open(within(b), broker.Config{Store: held})
	if err != nil {
		b.Fatal(err)
	}
	fmt.Println(readyMark + s.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
	stop(b, s)
	fmt.Println(doneMark)
}

func attackNeighbours(b *testing.B, name, addr string) {
	a, err := attack.Named(name)
	if err != nil {
		b.Fatal(err)
	}
	preparing, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	party, err := a.Start(preparing, addr, "")
	if err != nil {
		b.Fatal(err)
	}
	began := time.Now()
	requestsBefore, bytesBefore := party.Made()
	fmt.Println(readyMark)
	_, _ = io.Copy(io.Discard, os.Stdin)
	requests, bytes := party.Made()
	lasted := time.Since(began).Seconds()
	select {
	case <-party.Gone():
		b.Error("the attack ended early: ", party.Err())
	default:
	}
	party.End()
	fmt.Printf("%s%f %f\n", doneMark, float64(requests-requestsBefore)/lasted, float64(bytes-bytesBefore)/lasted)
}

const cycleLimit = 10 * time.Second

type healthy struct {
	b        *testing.B
	producer *client.Conn
	sub      *client.Subscription
	took     []time.Duration
	n        int

	unanswered int
}

func (h *healthy) measure(more func() bool) []time.Duration {
	for h.took = nil; more(); {
		if h.unanswered > 0 {
			continue // one is enough to know
		}
		begin := time.Now()
		if err := h.cycle(); err != nil {
			h.b.Logf("cycle %d: %v", len(h.took), err)
			h.unanswered++
		}
		h.took = append(h.took, time.Since(begin))
	}
	return h.took
}

func (h *healthy) cycle() error {
	ctx, cancel := context.WithTimeout(context.Background(), cycleLimit)
	defer cancel()
	h.n++
	call, err := h.producer.Publish(ctx, wire.Message{Topic: "healthy", Mode: wire.AtLeastOnce, BusinessID: fmt.Sprint("h-", h.n), Payload: []byte("hello")})
	if err != nil {
		return err
	}
	if reply, err := call.Wait(ctx); err != nil || reply.Answer != wire.Accepted {
		return fmt.Errorf("publish: %d %s %w", reply.Answer, reply.Reason, err)
	}
	d, err := h.sub.Receive(ctx)
	if err != nil {
		return err
	}
	_, err = d.Ack(ctx)
	return err
}

func percentile(took []time.Duration, q int) time.Duration {
	slices.Sort(took)
	return took[(len(took)-1)*q/100]
}
