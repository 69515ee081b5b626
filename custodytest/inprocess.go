package custodytest

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// InProcess is a System in the test's own process, built from the minimum of
// methods: a library, or a queue in a database. What more its Broker implements
// of package systems (Inspector to show rows, Administrator for dead letters,
// Process to be killed and started again, StoreFaulter, Clocked …) makes more
// scenarios apply. It has no links; implement package systems for a system that
// is reached over a network.
type InProcess struct {
	Description systems.Description
	HeldBy      evidence.HeldBy // who holds an accepted message; zero: the broker's memory
	// Open starts an instance. It may use env.Dir, which is removed after the run.
	Open func(ctx context.Context, env systems.Env) (Broker, error)
}

// Broker is one instance. Its methods are called from several goroutines.
type Broker interface {
	// Publish returns once the broker has answered, with its message ID if
	// there is one. Nil means accepted. An error that wraps ErrDeclined means
	// that a healthy broker refused the message and stored nothing, one that
	// wraps systems.ErrUnavailable that it never left; after any other it may be
	// stored. Calls of one producer are sequential.
	Publish(ctx context.Context, m systems.Message) (messageID string, err error)
	// Subscribe opens a session. An error wraps systems.ErrUnavailable if it makes
	// sense to try again.
	Subscribe(ctx context.Context, o systems.ConsumerOptions) (Subscription, error)
	Close() error
}

// ErrDeclined marks the error of a Publish refused by policy.
var ErrDeclined = errors.New("custodytest: declined")

// Subscription is one consumer, used by one goroutine.
type Subscription interface {
	// Receive waits for the next delivery until ctx ends. An error wraps
	// systems.ErrDisconnected if the session is over and another can be opened.
	Receive(ctx context.Context) (Received, error)
	Close() error
}

// Received is one delivery.
type Received struct {
	Message systems.Message
	Attempt int // counted from 1; 0: the system does not count
	// Ack settles the message: nil confirms, an error refuses.
	Ack func(context.Context) error
	// Nack requests another delivery; nil: not supported.
	Nack func(context.Context) error
}

// Describe returns the description, with the system as the default owner of
// claims.
func (p InProcess) Describe() systems.Description {
	d := p.Description
	d.Claims = slices.Clone(d.Claims)
	for i := range d.Claims {
		d.Claims[i].Owner = cmp.Or(d.Claims[i].Owner, evidence.OwnerSystem)
	}
	return d
}

func (p InProcess) Start(ctx context.Context, env systems.Env) (systems.Instance, error) {
	if err := env.NoDefects(p.Description.System); err != nil {
		return nil, err
	}
	b, err := p.Open(ctx, env)
	if err != nil {
		return nil, err
	}
	return instance{b, cmp.Or(p.HeldBy, evidence.HeldByBrokerMemory)}, nil
}

type instance struct {
	broker Broker
	heldBy evidence.HeldBy
}

// Parts says that what the broker implements, the instance has.
func (i instance) Parts() []any { return []any{i.broker} }

func (i instance) Stop(context.Context) error { return i.broker.Close() }

func (i instance) Producer(context.Context, systems.ProducerOptions) (systems.Producer, error) {
	return producer{i}, nil
}

func (i instance) Consumer(ctx context.Context, o systems.ConsumerOptions) (systems.Consumer, error) {
	s, err := i.broker.Subscribe(ctx, o)
	if err != nil {
		return nil, err
	}
	return consumer{s}, nil
}

type producer struct{ instance }

func (producer) Close(context.Context) error { return nil }

func (p producer) Send(ctx context.Context, m systems.Message) (systems.Pending, error) {
	id, err := p.broker.Publish(ctx, m)
	switch {
	case err == nil:
		return answer{Acceptance: evidence.Accepted, HeldBy: p.heldBy, MessageID: id, ClientResult: "ok"}, nil
	case errors.Is(err, ErrDeclined):
		return answer{Acceptance: evidence.Declined, Cause: evidence.CauseStated, ClientResult: err.Error(), Reason: err.Error()}, nil
	case errors.Is(err, systems.ErrUnavailable):
		return answer{Acceptance: evidence.Rejected, ClientResult: err.Error(), Reason: err.Error()}, nil
	}
	return answer{Acceptance: evidence.Unknown, ClientResult: err.Error(), Reason: err.Error()}, nil
}

// answer is known as soon as Send returns.
type answer systems.Receipt

func (a answer) Receipt(context.Context) systems.Receipt { return systems.Receipt(a) }

type consumer struct{ subscription Subscription }

func (c consumer) Close(context.Context) error { return c.subscription.Close() }

func (c consumer) Receive(ctx context.Context) (systems.Delivery, error) {
	r, err := c.subscription.Receive(ctx)
	switch {
	case err != nil:
		return nil, err
	case r.Nack != nil:
		return rejectable{delivery{r}}, nil
	}
	return delivery{r}, nil
}

type delivery struct{ r Received }

func (d delivery) Message() systems.Message { return d.r.Message }

func (d delivery) Attempt() (int, bool) { return d.r.Attempt, d.r.Attempt > 0 }

func (d delivery) Mark() evidence.Mark {
	switch d.r.Attempt {
	case 0:
		return evidence.MarkNone
	case 1:
		return evidence.MarkFirst
	}
	return evidence.MarkRedelivered
}

func (d delivery) Ack(ctx context.Context) (evidence.AckOutcome, error) {
	return outcome(ctx, d.r.Ack(ctx))
}

type rejectable struct{ delivery }

func (d rejectable) Nack(ctx context.Context, _ string) (evidence.AckOutcome, error) {
	return outcome(ctx, d.r.Nack(ctx))
}

func outcome(ctx context.Context, err error) (evidence.AckOutcome, error) {
	switch {
	case err == nil:
		return evidence.AckConfirmed, nil
	case ctx.Err() != nil: // given up, not refused
		return evidence.AckUnknown, err
	}
	return evidence.AckRefused, err
}
