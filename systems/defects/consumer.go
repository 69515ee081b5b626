package defects

import (
	"context"
	"sync"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// receiver is a consumer that transforms each delivery.
type receiver struct {
	systems.Consumer
	change func(ctx context.Context, d systems.Delivery) systems.Delivery
}

func (r receiver) Receive(ctx context.Context) (systems.Delivery, error) {
	d, err := r.Consumer.Receive(ctx)
	if err != nil {
		return nil, err
	}
	return r.change(ctx, d), nil
}

func deliveries(change func(context.Context, systems.Delivery) systems.Delivery) func(systems.Consumer) systems.Consumer {
	return func(honest systems.Consumer) systems.Consumer { return receiver{honest, change} }
}

// delivery is a delivery with another Ack.
type delivery struct {
	systems.Delivery
	ack func(ctx context.Context) (evidence.AckOutcome, error)
}

func (d delivery) Ack(ctx context.Context) (evidence.AckOutcome, error) { return d.ack(ctx) }

func (d delivery) Nack(ctx context.Context, reason string) (evidence.AckOutcome, error) {
	return nack(ctx, d.Delivery, reason)
}

func ackOnReceipt(ctx context.Context, d systems.Delivery) systems.Delivery {
	outcome, err := d.Ack(ctx)
	return delivery{d, func(context.Context) (evidence.AckOutcome, error) { return outcome, err }}
}

// acknowledgedAnyway is a delivery without a Nack.
type acknowledgedAnyway struct{ systems.Delivery }

func nackAsAck(_ context.Context, d systems.Delivery) systems.Delivery { return acknowledgedAnyway{d} }

func (d acknowledgedAnyway) Nack(ctx context.Context, _ string) (evidence.AckOutcome, error) {
	return d.Ack(ctx)
}

// ackTheOneBefore shifts every acknowledgement by one delivery.
func ackTheOneBefore(honest systems.Consumer) systems.Consumer {
	var (
		mu     sync.Mutex
		before systems.Delivery
	)
	return receiver{honest, func(_ context.Context, d systems.Delivery) systems.Delivery {
		mu.Lock()
		defer mu.Unlock()
		meant := before
		before = d
		return delivery{d, func(ctx context.Context) (evidence.AckOutcome, error) {
			if meant == nil {
				return evidence.AckConfirmed, nil
			}
			if _, err := meant.Ack(ctx); err != nil {
				return evidence.AckUnknown, err
			}
			return evidence.AckConfirmed, nil
		}}
	}}
}

// gathered is the batch size of gatherAcks: more than a short run has, so that
// acknowledgements are lost with the session.
const gathered = 100

func gatherAcks(honest systems.Consumer) systems.Consumer {
	var (
		mu   sync.Mutex
		kept []systems.Delivery
	)
	return receiver{honest, func(_ context.Context, d systems.Delivery) systems.Delivery {
		return delivery{d, func(ctx context.Context) (evidence.AckOutcome, error) {
			mu.Lock()
			defer mu.Unlock()
			if kept = append(kept, d); len(kept) < gathered {
				return evidence.AckConfirmed, nil
			}
			for _, k := range kept {
				if _, err := k.Ack(ctx); err != nil {
					return evidence.AckUnknown, err
				}
			}
			kept = nil
			return evidence.AckConfirmed, nil
		}}
	}}
}

// unmarked is a redelivery marked as a first delivery.
type unmarked struct{ systems.Delivery }

func unmark(_ context.Context, d systems.Delivery) systems.Delivery { return unmarked{d} }

func (d unmarked) Mark() evidence.Mark  { return evidence.MarkFirst }
func (d unmarked) Attempt() (int, bool) { return 1, true }

func (d unmarked) Nack(ctx context.Context, reason string) (evidence.AckOutcome, error) {
	return nack(ctx, d.Delivery, reason)
}
