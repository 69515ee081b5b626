package zeromq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/faulty"
	"github.com/custodymq/custody/broker/wire"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// This file maps the broker's protocol to evidence, for real and simulated
// sessions.

// Mode of a session; DefaultMode is the profile's.
func (p Profile) Mode(m systems.Mode) wire.Mode {
	if m == systems.DefaultMode {
		m = p.mode
	}
	if m == systems.AtMostOnce {
		return wire.AtMostOnce
	}
	return wire.AtLeastOnce
}

var acceptances = map[wire.Answer]evidence.Acceptance{
	wire.Accepted: evidence.Accepted, wire.Declined: evidence.Declined, wire.Rejected: evidence.Rejected, wire.Unknown: evidence.Unknown,
}

var causes = map[wire.Cause]evidence.Cause{
	wire.NoConsumer: evidence.CauseNoConsumer, wire.WrongMode: evidence.CauseMode, wire.Limit: evidence.CauseLimit,
	wire.BadRequest: evidence.CauseInvalid, wire.Expired: evidence.CauseExpired, wire.Discarded: evidence.CauseDiscarded,
	wire.Forbidden: evidence.CausePermission,
}

// HeldBy says who is responsible for what is accepted in this mode.
func (p Profile) HeldBy(mode wire.Mode) evidence.HeldBy {
	if mode == wire.AtMostOnce || p.FlushPolicy() == store.FlushNever {
		return evidence.HeldByBrokerMemory
	}
	return evidence.HeldByStore
}

// ReceiptOf maps the broker's answer to a publish that is held so when accepted.
func ReceiptOf(held evidence.HeldBy, m wire.Message) systems.Receipt {
	r := systems.Receipt{Acceptance: acceptances[m.Answer], MessageID: m.MessageID, ClientResult: systems.OK, Duplicate: m.Again, Cause: causes[m.Cause], Reason: m.Reason}
	if r.Acceptance != evidence.Accepted {
		r.ClientResult = r.Acceptance.String() + ": " + m.Reason
		return r
	}
	r.HeldBy = held
	return r
}

var resolutions = map[wire.Answer]systems.Resolution{
	wire.Stored:    {Acceptance: evidence.Accepted, Standing: evidence.Stored},
	wire.Settled:   {Acceptance: evidence.Accepted, Standing: evidence.Settled},
	wire.Dead:      {Acceptance: evidence.Accepted, Standing: evidence.Dead},
	wire.NotSeen:   {Acceptance: evidence.Rejected, Standing: evidence.Absent},
	wire.Forgotten: {Acceptance: evidence.Unknown, Standing: evidence.Forgotten},
}

// ResolutionOf maps the broker's answer to a lookup.
func ResolutionOf(m wire.Message) systems.Resolution {
	r := resolutions[m.Answer]
	r.MessageID, r.Cause, r.Reason = m.MessageID, causes[m.Cause], m.Reason
	return r
}

// LookBack is the period that a lookup covers for a session opened this long
// ago.
func LookBack(open time.Duration) time.Duration { return open + settledWindow/2 }

// PublishOf is the request that publishes a message.
func PublishOf(mode wire.Mode, m systems.Message) (wire.Message, error) {
	envelope, err := evidence.ParseEnvelope(m.Payload)
	if err != nil {
		return wire.Message{}, fmt.Errorf("zeromq: publish: %w", err)
	}
	return wire.Message{Kind: wire.Publish, Topic: m.Destination, Mode: mode, BusinessID: envelope.BusinessID, MessageID: m.MessageID,
		Key: m.Key, Headers: m.Headers, TTL: m.TTL, Payload: m.Payload}, nil
}

// Settler acknowledges or rejects one delivery and returns the broker's answer.
type Settler interface {
	Ack(ctx context.Context) (wire.Message, error)
	Nack(ctx context.Context, reason string) (wire.Message, error)
}

// delivery is one message in the hands of the application.
type delivery struct {
	m    wire.Message
	mode wire.Mode
	by   Settler
}

var _ systems.Rejecter = delivery{}

// NewDelivery makes a delivery that settles through by.
func NewDelivery(m wire.Message, mode wire.Mode, by Settler) systems.Delivery {
	return delivery{m, mode, by}
}

func (d delivery) Message() systems.Message {
	return systems.Message{Destination: d.m.Topic, MessageID: d.m.MessageID, Key: d.m.Key, Headers: d.m.Headers, Payload: d.m.Payload}
}

func (d delivery) Attempt() (int, bool) { return d.m.Attempt, d.mode == wire.AtLeastOnce }

func (d delivery) Mark() evidence.Mark {
	switch {
	case d.mode == wire.AtMostOnce:
		return evidence.MarkNone
	case d.m.Again:
		return evidence.MarkRedelivered
	}
	return evidence.MarkFirst
}

// Ack sends nothing in at-most-once mode, where there is nothing to settle.
func (d delivery) Ack(ctx context.Context) (evidence.AckOutcome, error) {
	if d.mode == wire.AtMostOnce {
		return evidence.AckSent, nil
	}
	return outcome(d.by.Ack(ctx))
}

func (d delivery) Nack(ctx context.Context, reason string) (evidence.AckOutcome, error) {
	if d.mode == wire.AtMostOnce {
		return evidence.AckRefused, errors.New("zeromq: at-most-once messages cannot be rejected")
	}
	return outcome(d.by.Nack(ctx, reason))
}

func outcome(m wire.Message, err error) (evidence.AckOutcome, error) {
	switch {
	case err != nil:
		return evidence.AckUnknown, err
	case m.Answer == wire.Accepted:
		return evidence.AckConfirmed, nil
	}
	return evidence.AckRefused, fmt.Errorf("zeromq: refused: %s", m.Reason)
}

// ItemsOf lists the messages that a store operation touches under a name: its
// own or that of one part of a batch.
func ItemsOf(op faulty.Op, name string) []evidence.FrameItem {
	var items []evidence.FrameItem
	for _, it := range op.Items {
		if name == op.Name || it.Name == name {
			items = append(items, evidence.FrameItem{BusinessID: it.BusinessID, MessageID: it.MessageID})
		}
	}
	return items
}

// StoreEvents records a batch as called or returned, one event per operation
// name in it. Reads and file operations are left out: there are too many.
func StoreEvents(kind evidence.Kind, op faulty.Op, err error) []evidence.Event {
	if op.Layer != faulty.Contract || op.Name != "apply" {
		return nil
	}
	var events []evidence.Event
	for _, it := range op.Items {
		if slices.ContainsFunc(events, func(e evidence.Event) bool { return e.Frame == it.Name }) {
			continue
		}
		e := evidence.Event{Kind: kind, Actor: "broker", Frame: it.Name, Items: ItemsOf(op, it.Name), OK: err == nil && kind == evidence.StoreReturned}
		if err != nil {
			e.Reason = err.Error()
		}
		events = append(events, e)
	}
	return events
}
