package broker_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/custodymq/custody/broker"
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
	for _, attack := range attacks {
		b.Run(attack.name, func(b *testing.B) {
			s := start(b, broker.Config{Store: openSQLite(b)})
			h := &healthy{b: b, producer: dial(b, s, "p"), sub: subscribe(b, dial(b, s, "c"), "healthy", wire.AtLeastOnce, 8)}
			h.measure(func() bool { return len(h.took) < 100 }) // warm
			quiet := h.measure(func() bool { return len(h.took) < 1000 })
			end := startAttack(b, attack.name, s.Addr())
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

var attacks = []struct {
	name  string
	begin func(*attackers)
}{
	{"quiet", func(*attackers) {}},
	{"10000-groups", groupBurst},
	{"topics-at-the-limit", topicsAtTheLimit},
	{"60000-topics-and-a-wildcard", wildcardOverTopics},
	{"one-business-ID", oneBusinessID},
	{"pipelined-rows", pipelinedRows},
	{"peers-that-do-not-read", peersThatDoNotRead},
	{"flood-unread", flood},
}

const attackEnv, underWay = "CUSTODY_BROKER_ATTACK", "the attack is under way"

// startAttack runs BenchmarkAttacker in another process, and returns when it is
// prepared.
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
	for _, attack := range attacks {
		if attack.name == name {
			a := &attackers{b: b, addr: addr, stop: make(chan struct{})}
			attack.begin(a)
			fmt.Println(underWay)
			io.Copy(io.Discard, os.Stdin)
			a.end()
		}
	}
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

// attackers run beside the healthy client until it is done.
type attackers struct {
	b    *testing.B
	addr string
	stop chan struct{}
	all  sync.WaitGroup
	mu   sync.Mutex
	open []io.Closer
}

func (a *attackers) end() {
	close(a.stop)
	a.mu.Lock()
	for _, c := range a.open {
		c.Close()
	}
	a.mu.Unlock()
	a.all.Wait()
}

// forever repeats f until the end or its first error.
func (a *attackers) forever(f func() error) {
	a.all.Go(func() {
		for f() == nil {
			select {
			case <-a.stop:
				return
			default:
			}
		}
	})
}

func (a *attackers) keep(c io.Closer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open = append(a.open, c)
}

func (a *attackers) dial(name string) *client.Conn {
	c, err := client.Dial(within(a.b), a.addr, client.Options{Name: name})
	if err != nil {
		a.b.Fatal(err)
	}
	a.keep(c)
	return c
}

// enter is a connection on which anything may be said.
func (a *attackers) enter(reads bool) net.Conn {
	nc, err := net.Dial("tcp", a.addr)
	if err != nil {
		a.b.Fatal(err)
	}
	a.keep(nc)
	if _, err := nc.Write(join(greeting(), ready(dealer), hello(a.b))); err != nil {
		a.b.Fatal(err)
	}
	if reads {
		a.all.Go(func() { io.Copy(io.Discard, nc) })
	}
	return nc
}

func (a *attackers) say(nc net.Conn, n int, m wire.Message) func() error {
	said := bytes.Repeat(frames(a.b, m), n)
	return func() error {
		_, err := nc.Write(said)
		return err
	}
}

// publishAll publishes as fast as the window allows, until m says nothing more.
func (a *attackers) publishAll(c *client.Conn, n int, m func(i int) wire.Message) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var last *client.Call
	for i := range n {
		var err error
		if last, err = c.Publish(ctx, m(i)); err != nil {
			return err
		}
	}
	_, err := last.Wait(ctx)
	return err
}

func groupBurst(a *attackers) {
	for i := range 40 {
		c := a.dial("groups")
		for g := range 250 {
			_, err := c.Subscribe(within(a.b), client.Filter{Topic: "many", Mode: wire.AtMostOnce, Group: fmt.Sprintf("g%d-%d", i, g)})
			if err != nil && !errors.Is(err, client.ErrRefused) {
				a.b.Fatal(err)
			}
		}
	}
	a.forever(a.say(a.enter(true), 1000, wire.Message{Kind: wire.Publish, Request: 5, Topic: "many", Mode: wire.AtMostOnce}))
}

func topicsAtTheLimit(a *attackers) {
	c := a.dial("topics")
	subscribe(a.b, c, "tt/#", wire.AtLeastOnce, 0)
	err := a.publishAll(c, 64<<10, func(i int) wire.Message {
		return wire.Message{Topic: fmt.Sprint("tt/", i), Mode: wire.AtLeastOnce, Payload: []byte("x")}
	})
	if err != nil {
		a.b.Fatal(err)
	}
	nc, n := a.enter(true), 0
	a.forever(func() error {
		n++
		_, err := nc.Write(frames(a.b, wire.Message{Kind: wire.Publish, Request: 5, Topic: fmt.Sprint("new/", n), Mode: wire.AtMostOnce}))
		return err
	})
}

func wildcardOverTopics(a *attackers) {
	c := a.dial("topics")
	subscribe(a.b, c, "tt/#", wire.AtLeastOnce, 0)
	err := a.publishAll(c, 60_000, func(i int) wire.Message {
		return wire.Message{Topic: fmt.Sprint("tt/", i), Mode: wire.AtLeastOnce, Payload: []byte("x")}
	})
	if err != nil {
		a.b.Fatal(err)
	}
	sub := subscribe(a.b, a.dial("one"), "tt/#", wire.AtLeastOnce, 64)
	a.forever(func() error {
		d, err := sub.Receive(context.Background())
		if err == nil {
			_, err = d.AckStart()
		}
		return err
	})
	others := a.dial("others")
	a.forever(func() error { // a filter that is new each time
		sub, err := others.Subscribe(context.Background(), client.Filter{Topic: "+/#", Mode: wire.AtLeastOnce})
		if err != nil {
			return err
		}
		return sub.Unsubscribe(context.Background())
	})
}

func oneBusinessID(a *attackers) {
	sub := subscribe(a.b, a.dial("c"), "chain", wire.AtLeastOnce, 4096)
	a.forever(func() error {
		d, err := sub.Receive(context.Background())
		if err == nil {
			_, err = d.AckStart()
		}
		return err
	})
	p := a.dial("p")
	publish := func() error {
		return a.publishAll(p, 50_000, func(int) wire.Message {
			return wire.Message{Topic: "chain", Mode: wire.AtLeastOnce, BusinessID: "same", Payload: []byte("x")}
		})
	}
	for range 3 {
		if err := publish(); err != nil {
			a.b.Fatal(err)
		}
	}
	a.forever(publish)
	a.forever(a.say(a.enter(true), 100, wire.Message{Kind: wire.Lookup, Request: 5, BusinessID: "same"}))
}

func pipelinedRows(a *attackers) {
	c := a.dial("p")
	subscribe(a.b, c, "adm", wire.AtLeastOnce, 0)
	err := a.publishAll(c, 5000, func(int) wire.Message {
		return wire.Message{Topic: "adm", Mode: wire.AtLeastOnce, BusinessID: "b", Payload: []byte("x")}
	})
	if err != nil {
		a.b.Fatal(err)
	}
	a.forever(a.say(a.enter(true), 300, wire.Message{Kind: wire.Admin, Request: 5, Topic: "rows"}))
}

func peersThatDoNotRead(a *attackers) {
	for range 50 {
		nc := a.enter(false)
		if err := a.say(nc, 1, wire.Message{Kind: wire.Subscribe, Request: 2, Topic: "deaf", Mode: wire.AtMostOnce, Credit: 1 << 16})(); err != nil {
			a.b.Fatal(err)
		}
	}
	a.forever(a.say(a.enter(true), 1, wire.Message{Kind: wire.Publish, Request: 5, Topic: "deaf", Mode: wire.AtMostOnce, Payload: make([]byte, 64<<10)}))
}

// flood says as much as it can, and reads no answer. It comes back when it has
// lost its session for that.
func flood(a *attackers) {
	c := a.dial("k")
	subscribe(a.b, c, "flood", wire.AtLeastOnce, 0)
	a.forever(func() error {
		nc, err := net.Dial("tcp", a.addr)
		if err != nil {
			return err
		}
		a.keep(nc)
		if _, err := nc.Write(join(greeting(), ready(dealer), hello(a.b))); err != nil {
			return nil
		}
		for say := a.say(nc, 100, wire.Message{Kind: wire.Publish, Request: 5, Topic: "flood", Mode: wire.AtLeastOnce, Payload: make([]byte, 256)}); say() == nil; {
		}
		return nil
	})
}
