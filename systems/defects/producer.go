package defects

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// sender is a producer with another Send.
type sender struct {
	systems.Producer
	send func(ctx context.Context, m systems.Message) (systems.Pending, error)
}

func (s sender) Send(ctx context.Context, m systems.Message) (systems.Pending, error) {
	return s.send(ctx, m)
}

// pending is a publish with another Receipt.
type pending func(ctx context.Context) systems.Receipt

func (p pending) Receipt(ctx context.Context) systems.Receipt { return p(ctx) }

// receipts transforms every receipt.
func receipts(read func(systems.Receipt) systems.Receipt) func(systems.Producer) systems.Producer {
	return func(honest systems.Producer) systems.Producer {
		return sender{honest, func(ctx context.Context, m systems.Message) (systems.Pending, error) {
			sent, err := honest.Send(ctx, m)
			if err != nil {
				return nil, err
			}
			return pending(func(ctx context.Context) systems.Receipt { return read(sent.Receipt(ctx)) }), nil
		}}
	}
}

func declinedAsSent(r systems.Receipt) systems.Receipt {
	if r.Acceptance == evidence.Declined {
		return accepted(r)
	}
	return r
}

func unknownAsAccepted(r systems.Receipt) systems.Receipt {
	if r.Acceptance == evidence.Unknown {
		return accepted(r)
	}
	return r
}

func accepted(r systems.Receipt) systems.Receipt {
	r.Acceptance, r.HeldBy, r.ClientResult, r.Reason = evidence.Accepted, evidence.HeldByStore, "ok", ""
	return r
}

func unknownAsRejected(r systems.Receipt) systems.Receipt {
	if r.Acceptance == evidence.Unknown {
		r.Acceptance, r.Reason = evidence.Rejected, "no answer, so it is not there"
	}
	return r
}

// swallowAnswers loses one answer in five: the caller waits until its deadline.
func swallowAnswers(honest systems.Producer) systems.Producer {
	var publishes atomic.Int64
	return sender{honest, func(ctx context.Context, m systems.Message) (systems.Pending, error) {
		sent, err := honest.Send(ctx, m)
		if err != nil || publishes.Add(1)%5 != 1 {
			return sent, err
		}
		return pending(func(ctx context.Context) systems.Receipt {
			sent.Receipt(ctx)
			<-ctx.Done()
			return systems.Receipt{Acceptance: evidence.Unknown, ClientResult: "no answer in time"}
		}), nil
	}}
}

func forgetID(honest systems.Producer) systems.Producer {
	return sender{honest, func(ctx context.Context, m systems.Message) (systems.Pending, error) {
		m.MessageID = ""
		return honest.Send(ctx, m)
	}}
}

// retryInside waits for an answer for half of the caller's deadline, then sends
// the message again.
func retryInside(honest systems.Producer) systems.Producer {
	return sender{honest, func(ctx context.Context, m systems.Message) (systems.Pending, error) {
		first, err := honest.Send(ctx, m)
		if err != nil {
			return nil, err
		}
		return pending(func(ctx context.Context) systems.Receipt {
			half := ctx
			if deadline, ok := ctx.Deadline(); ok {
				var cancel context.CancelFunc
				half, cancel = context.WithDeadline(ctx, time.Now().Add(time.Until(deadline)/2))
				defer cancel()
			}
			r := first.Receipt(half)
			if r.Acceptance != evidence.Unknown || ctx.Err() != nil {
				return r
			}
			m.MessageID = ""
			second, err := honest.Send(ctx, m)
			if err != nil {
				return r
			}
			return second.Receipt(ctx)
		}), nil
	}}
}
