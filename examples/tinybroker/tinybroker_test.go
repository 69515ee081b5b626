package tinybroker_test

import (
	"context"
	"testing"
	"time"

	"github.com/custodymq/custody/custodytest"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/examples/tinybroker"
	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/systems"
)

const visibility, maxAttempts = 300 * time.Millisecond * runner.DefaultScale, 5

var promises = systems.Description{
	System: "tinybroker",
	Profile: evidence.Profile{Name: "memory", Redelivers: evidence.RedeliverTimeout, AckCounting: "per-message", MarksAgain: true, AckConfirms: true, KeepsSubscribers: true,
		Limits: evidence.Limits{MaxAttempts: maxAttempts, RedeliveryPeriod: visibility, RecoveryBound: 10 * visibility,
			InFlightBound: visibility, DrainDeadline: 20 * visibility, OrderScope: "connection"}},
	Claims: []evidence.Claim{ // without faults only: everything is in memory
		{Guarantee: evidence.NoAcceptedLoss}, {Guarantee: evidence.NoPhantom}, {Guarantee: evidence.Order}, {Guarantee: evidence.StableRedeliveryID},
		{Guarantee: evidence.AckIsFinal}, {Guarantee: evidence.RecoveryBounded}, {Guarantee: evidence.Survives}},
	Lacks: map[systems.Need]string{systems.NeedTTL: "nothing expires", systems.NeedModes: "one mode", systems.NeedDecline: "takes everything",
		systems.NeedMessageID: "chooses the message ID itself", systems.NeedLookup: "has no look-up", systems.NeedHeaders: "a message is its body and nothing else", systems.NeedFanOut: "all subscribers of a topic compete", systems.NeedWildcards: "topics are compared as they are"},
}

func TestTinyBroker(t *testing.T) {
	custodytest.Accept(t, custodytest.InProcess{Description: promises, Open: open})
}

func open(context.Context, systems.Env) (custodytest.Broker, error) {
	return adapter{tinybroker.New(visibility, maxAttempts)}, nil
}

type adapter struct{ *tinybroker.Broker }

var ( // what makes more scenarios apply
	_ systems.Inspector     = adapter{}
	_ systems.Administrator = adapter{}
)

func (a adapter) Close() error { return nil }
func (a adapter) Publish(_ context.Context, m systems.Message) (string, error) {
	return a.Broker.Publish(m.Destination, m.Payload), nil
}
func (a adapter) Subscribe(_ context.Context, o systems.ConsumerOptions) (custodytest.Subscription, error) {
	return subscription{a.Broker.Subscribe(o.Destination, o.Window)}, nil
}

func (a adapter) Rows(context.Context) (evidence.Snapshot, error) {
	pending, dead := a.All()
	s := evidence.Snapshot{Source: evidence.SourceBroker, Trust: evidence.Exact, Rows: append(rows(pending, evidence.RowPending), rows(dead, evidence.RowDead)...)}
	s.Count = len(s.Rows)
	return s, nil
}

func (a adapter) DeadLetters(context.Context) ([]evidence.StoredRow, error) {
	_, dead := a.All()
	return rows(dead, evidence.RowDead), nil
}

func (a adapter) Redrive(_ context.Context, messageID string) error {
	return a.Broker.Redrive(messageID)
}
func (a adapter) Discard(_ context.Context, messageID string) error {
	return a.Broker.Discard(messageID)
}

func rows(messages []tinybroker.Delivery, state evidence.RowState) []evidence.StoredRow {
	var all []evidence.StoredRow
	for _, d := range messages {
		row := systems.RowOf(message(d), state)
		row.Attempts = d.Attempt
		all = append(all, row)
	}
	return all
}

func message(d tinybroker.Delivery) systems.Message {
	return systems.Message{Destination: d.Topic, MessageID: d.ID, Payload: d.Body}
}

type subscription struct{ *tinybroker.Subscription }

func (s subscription) Close() error { return nil }
func (s subscription) Receive(ctx context.Context) (custodytest.Received, error) {
	d, err := s.Subscription.Receive(ctx)
	return custodytest.Received{Message: message(d), Attempt: d.Attempt,
		Ack:  func(context.Context) error { return s.Ack(d) },
		Nack: func(context.Context) error { return s.Nack(d) }}, err
}
