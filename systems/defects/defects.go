// Package defects lists seeded defects of clients and applications: small
// wrappers around correct clients, or a step of the application in the wrong
// place, modelled on defects seen in practice. Each violates one guarantee
// first, on any system. The broker's own are in broker/defects.
package defects

import (
	"context"
	"fmt"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// Defect is a seeded defect.
type Defect struct {
	Name    string
	Text    string   // what the defective client does
	Breaks  string   // the guarantee that must be violated first
	Follows []string // guarantees that may be violated with it
	SeenIn  string   // the kind of scenario that shows it
	// Shown names the scenario to run first, which decides whether the defect
	// applies. For some it is the only one that shows it, because a correct
	// client exercises nothing in the others.
	Shown string

	// AcksEarly is a defect of the application: it acknowledges before its
	// transaction commits.
	AcksEarly bool
	producer  func(systems.Producer) systems.Producer
	consumer  func(systems.Consumer) systems.Consumer
}

// All returns the defects, in the order of a message's life.
func All() []Defect { return append([]Defect(nil), all...) }

var all = []Defect{
	{
		Name: "client-reads-declined-as-sent", Text: "a publish that was declined is reported as accepted",
		Breaks: evidence.NoAcceptedLoss, Follows: []string{evidence.RowsMatchClients, evidence.RecoveryBounded, evidence.AnswerDelivered},
		SeenIn: "no online consumer", Shown: "no-online-consumer", producer: receipts(declinedAsSent),
	},
	{
		Name: "client-reports-unknown-as-accepted", Text: "a publish without an answer is reported as accepted",
		Breaks: evidence.NoAcceptedLoss, Follows: []string{evidence.RowsMatchClients, evidence.RecoveryBounded, evidence.PersistedBeforeAccepted},
		SeenIn: "the producer's link is cut, or the store refuses, before the answer", producer: receipts(unknownAsAccepted),
	},
	{
		Name: "client-takes-unknown-for-rejected", Text: "a publish without an answer is reported as not stored, so that the caller may send it anew",
		Breaks: evidence.DeclinedMeansAbsent, Follows: []string{evidence.SingleEffect, evidence.RowsMatchClients, evidence.NoPhantom, evidence.LookupsTrue},
		SeenIn: "the answer to a publish is lost", Shown: "accept-reply-lost", producer: receipts(unknownAsRejected),
	},
	{
		Name: "client-retries-with-new-id", Text: "each try of a publish gets a message ID of its own, whatever the publisher chose",
		Breaks: evidence.SingleEffect, Follows: []string{evidence.NoDuplicateDelivery, evidence.RowsMatchClients, evidence.DeclinedMeansAbsent},
		SeenIn: "the publisher retries", Shown: "publisher-retries", producer: forgetID,
	},
	{
		Name: "client-hides-a-retry", Text: "a publish whose answer does not come is sent a second time, as another message, within the one call",
		Breaks: evidence.SingleEffect, Follows: []string{evidence.NoDuplicateDelivery, evidence.DeclinedMeansAbsent, evidence.AckIsFinal, evidence.RowsMatchClients, evidence.StableRedeliveryID, evidence.LookupsTrue, evidence.MessageIdentity},
		// Without message IDs of the publisher's, the consumption log is keyed
		// by business ID and absorbs the second message.
		SeenIn: "the answer to a publish is lost", Shown: "publisher-retries", producer: retryInside,
	},
	{
		Name: "client-swallows-answers", Text: "the answer to one publish in five reaches the client, and its caller waits for it in vain",
		Breaks: evidence.AnswerDelivered, Follows: []string{evidence.Answered},
		SeenIn: "any with several messages", Shown: "steady-load", producer: swallowAnswers,
	},
	{
		Name: "client-acknowledges-on-receipt", Text: "a delivery is acknowledged before the application has it",
		Breaks: evidence.NoAcceptedLoss, Follows: []string{evidence.RecoveryBounded, evidence.AckIsFinal, evidence.RowsMatchClients},
		SeenIn: "processing failure", consumer: deliveries(ackOnReceipt),
	},
	{
		Name: "client-acknowledges-before-commit", Text: "the application acknowledges a delivery, and commits its transaction only then",
		Breaks: evidence.NoAcceptedLoss, Follows: []string{evidence.RecoveryBounded, evidence.RowsMatchClients},
		SeenIn: "the consumer dies right after its acknowledgement", Shown: "ack-window-consumer-exits", AcksEarly: true,
	},
	{
		Name: "client-acknowledges-after-a-failure", Text: "a delivery that the handler gives back is acknowledged all the same",
		Breaks: evidence.NoAcceptedLoss, Follows: []string{evidence.RecoveryBounded, evidence.BoundedRetry, evidence.RowsMatchClients},
		SeenIn: "processing failure", consumer: deliveries(nackAsAck),
	},
	{
		Name: "client-acknowledges-another-delivery", Text: "an acknowledgement goes to the delivery before, and is reported as this one's",
		Breaks: evidence.AckIsFinal, Follows: []string{evidence.RecoveryBounded, evidence.RowsMatchClients, evidence.NoAcceptedLoss, evidence.NoDuplicateDelivery},
		SeenIn: "any with several messages", consumer: ackTheOneBefore,
	},
	{
		Name: "client-loses-acknowledgements", Text: "acknowledgements are gathered and reported as confirmed; those not sent when the session ends are lost",
		Breaks: evidence.AckIsFinal, Follows: []string{evidence.RecoveryBounded, evidence.RowsMatchClients, evidence.NoDuplicateDelivery},
		SeenIn: "any", consumer: gatherAcks,
	},
	{
		Name: "client-hides-the-redelivery-mark", Text: "a redelivery is handed to the application as a first delivery",
		Breaks: evidence.StableRedeliveryID,
		SeenIn: "any redelivery", consumer: deliveries(unmark),
	},
}

// Find returns the defect of that name.
func Find(name string) (Defect, bool) {
	for _, d := range all {
		if d.Name == name {
			return d, true
		}
	}
	return Defect{}, false
}

// Clients wraps clients with the defect; sessions it does not concern are
// unchanged.
func (d Defect) Clients(honest systems.Clients) systems.Clients { return clients{honest, d} }

type clients struct {
	honest systems.Clients
	defect Defect
}

func (c clients) Producer(ctx context.Context, o systems.ProducerOptions) (systems.Producer, error) {
	p, err := c.honest.Producer(ctx, o)
	if err != nil || c.defect.producer == nil {
		return p, err
	}
	broken := c.defect.producer(p)
	if r, ok := p.(systems.Resolver); ok {
		return struct {
			systems.Producer
			systems.Resolver
		}{broken, r}, nil
	}
	return broken, nil
}

func (c clients) Consumer(ctx context.Context, o systems.ConsumerOptions) (systems.Consumer, error) {
	s, err := c.honest.Consumer(ctx, o)
	if err != nil || c.defect.consumer == nil {
		return s, err
	}
	return c.defect.consumer(s), nil
}

// nack rejects a delivery, if the system supports it.
func nack(ctx context.Context, d systems.Delivery, reason string) (evidence.AckOutcome, error) {
	if r, ok := d.(systems.Rejecter); ok {
		return r.Nack(ctx, reason)
	}
	return evidence.AckUnknown, fmt.Errorf("defects: a %T cannot be given back", d)
}
