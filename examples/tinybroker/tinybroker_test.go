package tinybroker_test

import (
	"context"
	"testing"
	"time"

	"github.com/custodymq/custody/bench"
	"github.com/custodymq/custody/custodytest"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/examples/tinybroker"
	"github.com/custodymq/custody/systems"
)

func TestTinyBroker(t *testing.T) { custodytest.Accept(t, system{}) }

const visibility, maxAttempts = 300 * time.Millisecond * bench.DefaultScale, 5

type system struct{}

func (system) Describe() systems.Description {
	d := systems.Description{System: "tinybroker", Lacks: map[systems.Need]string{}, Profile: evidence.Profile{Name: "memory", Redelivers: evidence.RedeliverTimeout, AckCounting: "per-message", MarksAgain: true, AckConfirms: true,
		Limits: evidence.Limits{MaxAttempts: maxAttempts, RedeliveryPeriod: visibility, RecoveryBound: 10 * visibility, InFlightBound: visibility, DrainDeadline: 20 * visibility, OrderScope: "connection"}}}
	for _, g := range []string{evidence.NoAcceptedLoss, evidence.NoPhantom, evidence.StableRedeliveryID, evidence.Order, evidence.AckIsFinal, evidence.RecoveryBounded, evidence.Survives} {
		d.Claims = append(d.Claims, evidence.Claim{Guarantee: g, Owner: evidence.OwnerSystem, Source: "tinybroker.go"}) // under no fault: it is memory
	}
	for _, n := range []systems.Need{systems.NeedTTL, systems.NeedModes, systems.NeedDecline, systems.NeedMessageID, systems.NeedLookup} {
		d.Lacks[n] = "tinybroker has no " + string(n)
	}
	return d
}
func (system) Start(context.Context, systems.Env) (systems.Instance, error) {
	return client{tinybroker.New(visibility, maxAttempts)}, nil
}

type client struct{ *tinybroker.Broker } // the instance, and each of its producers

func (client) Stop(context.Context) error  { return nil }
func (client) Close(context.Context) error { return nil }
func (c client) Producer(context.Context, systems.ProducerOptions) (systems.Producer, error) {
	return c, nil
}
func (c client) Consumer(_ context.Context, o systems.ConsumerOptions) (systems.Consumer, error) {
	return consumer{c.Subscribe(o.Destination, o.Window)}, nil
}
func (c client) Send(_ context.Context, m systems.Message) (systems.Pending, error) {
	return receipt{Acceptance: evidence.Accepted, HeldBy: evidence.HeldByBrokerMemory, MessageID: c.Publish(m.Destination, m.Payload), Told: "ok"}, nil
}

type receipt systems.Receipt

func (r receipt) Receipt(context.Context) systems.Receipt { return systems.Receipt(r) }

type consumer struct{ *tinybroker.Subscription }

func (consumer) Close(context.Context) error { return nil }
func (c consumer) Receive(ctx context.Context) (systems.Delivery, error) {
	d, err := c.Subscription.Receive(ctx)
	return delivery{d, c}, err
}

type delivery struct {
	tinybroker.Delivery
	from consumer
}

func (d delivery) Message() systems.Message {
	return systems.Message{Destination: d.Topic, MessageID: d.ID, Payload: d.Body}
}
func (d delivery) Attempt() (int, bool) { return d.Delivery.Attempt, true }
func (d delivery) Mark() evidence.Mark {
	return []evidence.Mark{evidence.MarkFirst, evidence.MarkRedelivered}[min(d.Delivery.Attempt-1, 1)]
}
func (d delivery) Ack(context.Context) (evidence.AckOutcome, error) {
	return outcome(d.from.Ack(d.Delivery))
}
func (d delivery) Nack(context.Context, string) (evidence.AckOutcome, error) {
	return outcome(d.from.Nack(d.Delivery))
}
func outcome(err error) (evidence.AckOutcome, error) {
	if err != nil {
		return evidence.AckRefused, err
	}
	return evidence.AckConfirmed, nil
}
