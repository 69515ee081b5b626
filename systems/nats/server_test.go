package nats

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/systemtest"
)

// Effects of the first profile's settings, beyond conformance.

// startServer returns a running instance of the first profile and the test's
// context.
func startServer(t *testing.T) (context.Context, *instance) {
	t.Helper()
	return startProfile(t, named(t, "file-explicit-ack"))
}

func startProfile(t *testing.T, p Profile) (context.Context, *instance) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	in, err := p.Start(ctx, systemtest.Env(t, systemtest.Discard{}, nil))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := in.Stop(context.WithoutCancel(ctx)); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return ctx, in.(*instance)
}

func open(t *testing.T, ctx context.Context, in *instance) systems.Producer {
	t.Helper()
	p, err := in.Producer(ctx, systems.ProducerOptions{Name: "p1", Session: "p1#1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close(context.WithoutCancel(ctx)) })
	return p
}

func subscribe(t *testing.T, ctx context.Context, in *instance, window int) systems.Consumer {
	t.Helper()
	c, err := in.Consumer(ctx, systems.ConsumerOptions{
		Name: "c1", Session: "c1#1", Destination: "orders", Subscription: "billing", Window: window,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.WithoutCancel(ctx)) })
	return c
}

func publish(t *testing.T, ctx context.Context, p systems.Producer, m systems.Message) systems.Receipt {
	t.Helper()
	m.Destination = "orders"
	if m.Payload == nil {
		m.Payload = evidence.Envelope{PublishID: "p1-1-1", BusinessID: "order-1"}.Encode()
	}
	pending, err := p.Send(ctx, m)
	if err != nil {
		t.Fatal(err)
	}
	return pending.Receipt(ctx)
}

func TestPublishAgainUnderTheSameMessageIDIsAnAlias(t *testing.T) {
	ctx, in := startServer(t)
	p := open(t, ctx, in)
	first := publish(t, ctx, p, systems.Message{MessageID: "m-1"})
	again := publish(t, ctx, p, systems.Message{MessageID: "m-1"})
	if again.Acceptance != evidence.Accepted || again.MessageID != first.MessageID || !again.Duplicate {
		t.Errorf("first %+v, again %+v", first, again)
	}
	if s, err := in.Rows(ctx); err != nil || s.Count != 1 {
		t.Errorf("%d rows, %v; want 1", s.Count, err)
	}
}

func TestTimeToLive(t *testing.T) {
	ctx, in := startServer(t)
	p := open(t, ctx, in)
	if r := publish(t, ctx, p, systems.Message{TTL: 300 * time.Millisecond}); r.Acceptance != evidence.Declined {
		t.Errorf("a time to live below the server's least of a second: %+v, want declined", r)
	}
	if r := publish(t, ctx, p, systems.Message{TTL: time.Second}); r.Acceptance != evidence.Accepted {
		t.Fatalf("a second to live: %+v", r)
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		s, err := in.Rows(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if s.Count == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("still stored: %+v", s.Rows)
		}
	}
}

func TestOversizedPublishIsDeclined(t *testing.T) {
	ctx, in := startServer(t)
	p := open(t, ctx, in)
	if r := publish(t, ctx, p, systems.Message{Payload: make([]byte, 5<<20)}); r.Acceptance != evidence.Declined {
		t.Errorf("got %+v, want declined", r)
	}
	if r := publish(t, ctx, p, systems.Message{}); r.Acceptance != evidence.Accepted {
		t.Errorf("the session ended with it: %+v", r)
	}
}

func TestPublishWithoutAStreamIsRejected(t *testing.T) {
	ctx, in := startServer(t)
	p := open(t, ctx, in)
	err := in.administer(ctx, func(js jetstream.JetStream) error { return js.DeleteStream(ctx, streamName) })
	if err != nil {
		t.Fatal(err)
	}
	if r := publish(t, ctx, p, systems.Message{}); r.Acceptance != evidence.Rejected {
		t.Errorf("got %+v, want rejected", r)
	}
}

func TestAWorkQueueHasOneLogicalSubscriber(t *testing.T) {
	ctx, in := startServer(t)
	subscribe(t, ctx, in, 1)
	_, err := in.Consumer(ctx, systems.ConsumerOptions{Name: "c2", Session: "c2#1", Destination: "orders", Subscription: "shipping", Window: 1})
	if err == nil || errors.Is(err, systems.ErrUnavailable) {
		t.Errorf("a second logical subscriber: %v, want a refusal that trying again does not mend", err)
	}
}

// TestConfirmedAcknowledgementsSurviveAKill is the basis of the claim
// ack-is-final under a crash: the deletion is synced before the acknowledgement
// is confirmed.
func TestConfirmedAcknowledgementsSurviveAKill(t *testing.T) {
	ctx, in := startServer(t)
	const messages = 40
	p, c := open(t, ctx, in), subscribe(t, ctx, in, messages)
	for i := range messages {
		e := evidence.Envelope{PublishID: evidence.PublishID("p1", i+1, 1), BusinessID: fmt.Sprintf("order-%d", i+1)}
		if r := publish(t, ctx, p, systems.Message{Payload: e.Encode()}); r.Acceptance != evidence.Accepted {
			t.Fatalf("message %d: %+v", i+1, r)
		}
	}
	pending := make(map[string]bool)
	for i := range messages {
		d, err := c.Receive(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if i%4 == 1 {
			pending[d.Message().MessageID] = true
			continue
		}
		if outcome, err := d.Ack(ctx); outcome != evidence.AckConfirmed {
			t.Fatalf("acknowledge: %v, %v", outcome, err)
		}
	}
	if err := errors.Join(in.Kill(ctx), in.Restart(ctx)); err != nil {
		t.Fatal(err)
	}
	s, err := in.Rows(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range s.Rows {
		if !pending[row.MessageID] {
			t.Errorf("%s was acknowledged, and is stored after the crash", row.MessageID)
		}
		delete(pending, row.MessageID)
	}
	if len(pending) > 0 {
		t.Errorf("never acknowledged, and gone: %v", pending)
	}
}

func TestAcknowledgementOfADeletedConsumerIsRefused(t *testing.T) {
	ctx, in := startServer(t)
	p, c := open(t, ctx, in), subscribe(t, ctx, in, 1)
	publish(t, ctx, p, systems.Message{})
	d, err := c.Receive(ctx)
	if err != nil {
		t.Fatal(err)
	}
	err = in.administer(ctx, func(js jetstream.JetStream) error {
		return js.DeleteConsumer(ctx, streamName, systems.SubscriberName("billing", "orders"))
	})
	if err != nil {
		t.Fatal(err)
	}
	if outcome, err := d.Ack(ctx); outcome != evidence.AckRefused || err == nil {
		t.Errorf("got %v, %v; want refused, with why", outcome, err)
	}
}

func TestTheWindowHoldsBackFurtherPulls(t *testing.T) {
	ctx, in := startServer(t)
	p, c := open(t, ctx, in), subscribe(t, ctx, in, 1).(*consumer)
	publish(t, ctx, p, systems.Message{})
	publish(t, ctx, p, systems.Message{})
	d, err := c.Receive(ctx)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	if full, until := c.window.Full(now); !full || until.After(now.Add(ackWait)) {
		t.Errorf("one delivery is out: full is %v until %v", full, until)
	}
	if _, err := d.Ack(ctx); err != nil {
		t.Fatal(err)
	}
	if full, _ := c.window.Full(now); full {
		t.Error("still full after the acknowledgement")
	}
	next, err := c.Receive(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if full, _ := c.window.Full(time.Now().Add(2 * ackWait)); full || next == nil {
		t.Error("still full though AckWait is over: the message is the server's again")
	}
}

func TestStartRefusesADefect(t *testing.T) {
	env := systemtest.Env(t, systemtest.Discard{}, nil)
	env.Defect = "forget-everything"
	if _, err := Profiles(1)[0].Start(context.Background(), env); err == nil {
		t.Error("started with a defect that it does not have")
	}
}

func TestRestartWhileItRunsIsRefused(t *testing.T) {
	ctx, in := startServer(t)
	if err := in.Restart(ctx); err == nil {
		t.Error("restarted while it runs")
	}
}
