package mqtt

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/systemtest"
)

// Effects of the profiles' settings, beyond conformance.

// started is the common type of instances.
type started interface {
	systems.Instance
	systems.Process
}

// rig is a running server with its profile's clients.
type rig struct {
	t   *testing.T
	ctx context.Context
	in  started
}

func start(t *testing.T, system, name string) *rig {
	t.Helper()
	s := profile(t, system, name)
	systemtest.Require(t, s)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	in, err := s.Start(ctx, systemtest.Env(t, systemtest.Discard{}, nil))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := in.Stop(context.WithoutCancel(ctx)); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return &rig{t, ctx, in.(started)}
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) producer() systems.Producer {
	r.t.Helper()
	p, err := r.in.Producer(r.ctx, systems.ProducerOptions{Name: "p1", Session: "p1#1"})
	r.must(err)
	r.t.Cleanup(func() { _ = p.Close(context.WithoutCancel(r.ctx)) })
	return p
}

func (r *rig) consumer(window int) systems.Consumer {
	r.t.Helper()
	c, err := r.in.Consumer(r.ctx, systems.ConsumerOptions{Name: "c1", Session: "c1#1", Destination: "orders", Subscription: "billing", Window: window})
	r.must(err)
	r.t.Cleanup(func() { _ = c.Close(context.WithoutCancel(r.ctx)) })
	return c
}

// subscribed leaves an offline session with a subscription.
func (r *rig) subscribed() {
	r.t.Helper()
	r.must(r.consumer(1).Close(r.ctx))
}

func (r *rig) publish(p systems.Producer, n int) systems.Receipt {
	r.t.Helper()
	e := evidence.Envelope{PublishID: evidence.PublishID("p1", n, 1), BusinessID: fmt.Sprintf("order-%d", n)}
	pending, err := p.Send(r.ctx, systems.Message{Destination: "orders", Payload: e.Encode()})
	r.must(err)
	return pending.Receipt(r.ctx)
}

func (r *rig) accepted(p systems.Producer, n int) {
	r.t.Helper()
	if got := r.publish(p, n); got.Acceptance != evidence.Accepted {
		r.t.Fatalf("message %d: %+v", n, got)
	}
}

// receive returns the next delivery of message n.
func (r *rig) receive(c systems.Consumer, n int) systems.Delivery {
	r.t.Helper()
	d, err := c.Receive(r.ctx)
	r.must(err)
	e, err := evidence.ParseEnvelope(d.Message().Payload)
	r.must(err)
	if want := fmt.Sprintf("order-%d", n); e.BusinessID != want {
		r.t.Fatalf("received %s, want %s", e.BusinessID, want)
	}
	return d
}

func (r *rig) settle(d systems.Delivery, want evidence.AckOutcome) {
	r.t.Helper()
	if got, err := d.Ack(r.ctx); got != want {
		r.t.Fatalf("acknowledge: %v (%v), want %v", got, err, want)
	}
}

func TestQueueLimitAnswersWithSuccessAndDrops(t *testing.T) {
	r := start(t, "mqtt-mosquitto", "queue-limit")
	r.subscribed()
	p := r.producer()
	for n := range 8 {
		r.accepted(p, n+1)
	}
	c := r.consumer(8)
	for n := range 3 {
		r.settle(r.receive(c, n+1), evidence.AckSent)
	}
	// The next delivery is the message published after the others.
	r.accepted(p, 9)
	r.receive(c, 9)
}

func TestDefaultAutosaveLosesTheSessionInACrash(t *testing.T) {
	r := start(t, "mqtt-mosquitto", "qos1-default-autosave")
	r.subscribed()
	r.accepted(r.producer(), 1)
	r.must(errors.Join(r.in.Kill(r.ctx), r.in.Restart(r.ctx)))
	if got := r.publish(r.producer(), 2); got.Acceptance != evidence.Declined {
		t.Errorf("after a crash: %+v, want declined: the subscription is lost", got)
	}
}

// TestWhatGoesStraightToAConsumerIsNotSaved shows that Mosquitto counts queued
// messages as changes, but not messages sent to a consumer directly, which are
// saved only with the next change.
func TestWhatGoesStraightToAConsumerIsNotSaved(t *testing.T) {
	r := start(t, "mqtt-mosquitto", "qos1")
	c := r.consumer(2)
	r.accepted(r.producer(), 1)
	r.receive(c, 1)
	r.must(errors.Join(r.in.Kill(r.ctx), r.in.Restart(r.ctx)))
	c = r.consumer(2)
	r.accepted(r.producer(), 2)
	r.receive(c, 2)
}

// TestOrderlyEndsSaveEverything is the basis of the claims under broker-restart.
func TestOrderlyEndsSaveEverything(t *testing.T) {
	for _, p := range [][2]string{{"mqtt-mosquitto", "qos1-default-autosave"}, {"mqtt-mochi", "qos1"}} {
		t.Run(p[0], func(t *testing.T) {
			r := start(t, p[0], p[1])
			r.subscribed()
			r.accepted(r.producer(), 1)
			r.must(errors.Join(r.in.Shutdown(r.ctx), r.in.Restart(r.ctx)))
			r.receive(r.consumer(1), 1)
		})
	}
}

func TestAcknowledgementsAtQoS2AreConfirmed(t *testing.T) {
	r := start(t, "mqtt-mosquitto", "qos2")
	c, p := r.consumer(2), r.producer()
	r.accepted(p, 1)
	r.settle(r.receive(c, 1), evidence.AckConfirmed)
}

func TestAcknowledgementsLeaveInTheOrderOfReceipt(t *testing.T) {
	r := start(t, "mqtt-mosquitto", "qos1")
	c, p := r.consumer(2), r.producer()
	r.accepted(p, 1)
	r.accepted(p, 2)
	first, second := r.receive(c, 1), r.receive(c, 2)
	r.settle(second, evidence.AckUnknown)
	r.settle(first, evidence.AckSent)
	r.settle(second, evidence.AckSent)
	// Both are acknowledged: the window has room for two more.
	r.accepted(p, 3)
	r.accepted(p, 4)
	r.receive(c, 3)
	r.receive(c, 4)
}

func TestTheWindowHoldsBackFurtherDeliveries(t *testing.T) {
	r := start(t, "mqtt-mosquitto", "qos1")
	c, p := r.consumer(1), r.producer()
	r.accepted(p, 1)
	r.accepted(p, 2)
	first := r.receive(c, 1)
	if n := len(c.(*consumer).deliveries); n > 0 {
		t.Errorf("%d deliveries over the window", n)
	}
	r.settle(first, evidence.AckSent)
	r.receive(c, 2)
}

// TestTheNextConsumerTakesTheSeat checks that a consumer of another name takes
// over its predecessor's unacknowledged messages.
func TestTheNextConsumerTakesTheSeat(t *testing.T) {
	for _, p := range [][2]string{{"mqtt-mosquitto", "qos1"}, {"mqtt-mochi", "qos1-memory"}} {
		t.Run(p[0], func(t *testing.T) {
			r := start(t, p[0], p[1])
			c := r.consumer(1)
			r.accepted(r.producer(), 1)
			r.receive(c, 1)
			r.must(c.Close(r.ctx))
			if d := r.receive(r.consumer(1), 1); d.Mark() != evidence.MarkRedelivered {
				t.Errorf("marked %q", d.Mark())
			}
		})
	}
}

// TestTheShareOfAnAbsentMemberWaits shows that Mosquitto assigns messages to
// absent members too.
func TestTheShareOfAnAbsentMemberWaits(t *testing.T) {
	r := start(t, "mqtt-mosquitto", "qos1")
	first, second := r.consumer(1), r.consumer(1)
	r.must(second.Close(r.ctx))
	p := r.producer()
	for n := range 3 {
		r.accepted(p, n+1)
	}
	r.settle(r.receive(first, 1), evidence.AckSent)
	r.receive(first, 3)
	r.receive(r.consumer(1), 2)
}

// TestSendWaitsForTheServersReceiveMaximum checks that publishes above the
// server's Receive Maximum wait for a slot.
func TestSendWaitsForTheServersReceiveMaximum(t *testing.T) {
	r := start(t, "mqtt-mosquitto", "qos1")
	r.subscribed()
	p := r.producer()
	var all []systems.Pending
	for n := range 100 { // Mosquitto allows 20
		e := evidence.Envelope{PublishID: evidence.PublishID("p1", n+1, 1), BusinessID: "order"}
		pending, err := p.Send(r.ctx, systems.Message{Destination: "orders", Payload: e.Encode()})
		r.must(err)
		all = append(all, pending)
	}
	for n, pending := range all {
		if got := pending.Receipt(r.ctx); got.Acceptance != evidence.Accepted {
			t.Fatalf("message %d: %+v", n+1, got)
		}
	}
}

func TestStartRefusesADefect(t *testing.T) {
	if _, err := profile(t, "mqtt-mochi", "qos1").Start(context.Background(), systems.Env{Dir: t.TempDir(), Defect: "forget-everything"}); err == nil {
		t.Error("started with a defect that it does not have")
	}
}

func TestASecondModeIsRefused(t *testing.T) {
	r := start(t, "mqtt-mochi", "qos1-memory")
	if _, err := r.in.Producer(r.ctx, systems.ProducerOptions{Name: "p1", Session: "p1#1", Mode: systems.AtMostOnce}); err == nil {
		t.Error("opened in a mode that the profile has not")
	}
}
