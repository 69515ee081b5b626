package registry_test

import (
	"context"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/nats"
	"github.com/custodymq/custody/systems/registry"
	"github.com/custodymq/custody/systems/systemtest"
	"github.com/custodymq/custody/systems/zeromq"
)

func TestMain(m *testing.M) {
	process.RunRole(map[string]func() process.Role{zeromq.RoleName: zeromq.Role, nats.RoleName: nats.Role})
	m.Run()
}

// BenchmarkAccepts publishes 256 bytes at a time, a window of them unanswered, to
// each system that has a message on disk before it answers: the profiles as
// Custody tests them, in a process of their own on this machine, through their
// usual clients. One consumer is online and takes nothing.
func BenchmarkAccepts(b *testing.B) {
	for _, spec := range []string{"zeromq:at-least-once", "rabbitmq:quorum", "kafka:acks-all", "nats:file-explicit-ack", "redis:aof-always-claim"} {
		s, err := registry.Find(spec, 1)
		if err != nil {
			b.Fatal(err)
		}
		for _, window := range []int{1, 64, 256} {
			b.Run(fmt.Sprintf("%s/window=%d", spec, window), func(b *testing.B) { accepts(b, s, window) })
		}
	}
}

func accepts(b *testing.B, s systems.System, window int) {
	if need, ok := s.(systems.Installed); ok {
		if err := need.Installed(); err != nil {
			b.Skip(err)
		}
	}
	ctx := context.Background()
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	env := systemtest.Env(b, systemtest.Discard{}, nil)
	var pipes sync.WaitGroup
	defer pipes.Wait()
	env.Adopt = func(events io.Reader, _ string) { pipes.Go(func() { _, _ = io.Copy(io.Discard, events) }) }
	in, err := s.Start(ctx, env)
	must(err)
	defer func() { must(in.Stop(ctx)) }()
	address := ""
	if n, ok := systems.As[systems.Networked](in); ok {
		address = n.Address()
	}
	c, err := in.Consumer(ctx, systems.ConsumerOptions{Name: "c1", Session: "c1#1", Address: address, Destination: "orders", Subscription: "orders", Window: 1})
	must(err)
	defer func() { must(c.Close(ctx)) }()
	p, err := in.Producer(ctx, systems.ProducerOptions{Name: "p1", Session: "p1#1", Address: address})
	must(err)
	defer func() { must(p.Close(ctx)) }()

	unanswered := make(chan systems.Pending, window)
	answered := make(chan error, 1)
	go func() {
		defer close(answered)
		for pending := range unanswered {
			if r := pending.Receipt(ctx); r.Acceptance != evidence.Accepted {
				answered <- fmt.Errorf("%+v", r)
				return
			}
		}
	}()
	body := make([]byte, 256)
	n := 0
	began := time.Now()
	for b.Loop() {
		n++
		e := evidence.Envelope{PublishID: evidence.PublishID("p1", n, 1), BusinessID: fmt.Sprint("order-", n), Body: body}
		pending, err := p.Send(ctx, systems.Message{Destination: "orders", Payload: e.Encode()})
		must(err)
		select {
		case unanswered <- pending:
		case err := <-answered:
			must(err)
		}
	}
	close(unanswered)
	must(<-answered)
	b.ReportMetric(float64(n)/time.Since(began).Seconds(), "messages/s")
	b.ReportMetric(0, "ns/op")
}
