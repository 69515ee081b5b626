package broker_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/custodymq/custody/broker"
	"github.com/custodymq/custody/broker/attack"
	"github.com/custodymq/custody/broker/client"
	"github.com/custodymq/custody/broker/wire"
)

// BenchmarkNeighbour shows what an attack by others costs a healthy client: its
// p50 and p99 from publish over delivery to the answered ACK, one at a time,
// before the attack and during it, and the ratio of the two. Attackers run in a
// process of their own, on the same machine.
//
// Use -benchtime 500x: each attack is prepared once, and stops when the healthy
// client has made its cycles. One that is not answered within cycleLimit is the
// last: its time is what p99 shows, and unanswered is 1.
func BenchmarkNeighbour(b *testing.B) {
	broker.TuneCollector(broker.DefaultMemory()) // as custody broker does
	for _, a := range append([]attack.Attack{{Name: "quiet"}}, attack.All()...) {
		b.Run(a.Name, func(b *testing.B) {
			s := start(b, broker.Config{Store: openSQLite(b)})
			h := &healthy{b: b, producer: dial(b, s, "p"), sub: subscribe(b, dial(b, s, "c"), "healthy", wire.AtLeastOnce, 8)}
			h.measure(func() bool { return len(h.took) < 100 }) // warm
			quiet := h.measure(func() bool { return len(h.took) < 1000 })
			end := func() {}
			if a.Name != "quiet" {
				end = startAttack(b, a.Name, s.Addr())
			}
			during := h.measure(b.Loop)
			end()
			for name, q := range map[string]int{"p50": 50, "p99": 99} {
				was, is := percentile(quiet, q), percentile(during, q)
				b.ReportMetric(float64(was.Microseconds())/1000, "quiet-"+name+"-ms")
				b.ReportMetric(float64(is.Microseconds())/1000, name+"-ms")
				b.ReportMetric(float64(is)/float64(was), name+"-ratio")
			}
			b.ReportMetric(float64(h.unanswered), "unanswered")
			b.ReportMetric(0, "ns/op")
		})
	}
}

const attackEnv, underWay = "CUSTODY_BROKER_ATTACK", "the attack is under way"

// startAttack runs BenchmarkAttacker in another process and returns once the
// attack is prepared.
func startAttack(b *testing.B, name, addr string) (end func()) {
	b.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$", "-test.bench=^BenchmarkAttacker$", "-test.benchtime=1x")
	cmd.Env = append(os.Environ(), attackEnv+"="+name+" "+addr)
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
	for lines.Scan() && !strings.Contains(lines.Text(), underWay) {
	}
	return func() {
		stdin.Close()
		io.Copy(io.Discard, stdout)
		if err := cmd.Wait(); err != nil {
			b.Errorf("the attacker: %v", err)
		}
	}
}

// BenchmarkAttacker is the attackers' side of BenchmarkNeighbour.
func BenchmarkAttacker(b *testing.B) {
	name, addr, ok := strings.Cut(os.Getenv(attackEnv), " ")
	if !ok {
		b.Skip("BenchmarkNeighbour starts it")
	}
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
	fmt.Println(underWay)
	_, _ = io.Copy(io.Discard, os.Stdin)
	select {
	case <-party.Gone():
		b.Error("the attack ended early: ", party.Err())
	default:
	}
	party.End()
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
