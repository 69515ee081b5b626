package custodytest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// fixed is a broker with fixed answers.
type fixed struct {
	published error
	received  Received
}

func (f fixed) Publish(context.Context, systems.Message) (string, error) { return "m-1", f.published }
func (f fixed) Subscribe(context.Context, systems.ConsumerOptions) (Subscription, error) {
	return f, nil
}
func (f fixed) Receive(context.Context) (Received, error) { return f.received, nil }
func (f fixed) Close() error                              { return nil }

func opened(t *testing.T, f fixed, by evidence.HeldBy) systems.Instance {
	t.Helper()
	in, err := InProcess{Open: func(context.Context, systems.Env) (Broker, error) { return f, nil }, HeldBy: by}.Start(t.Context(), systems.Env{})
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func TestInProcessReceipt(t *testing.T) {
	down := errors.New("down")
	for _, c := range []struct {
		name      string
		published error
		by        evidence.HeldBy
		want      systems.Receipt
	}{
		{"accepted", nil, 0, systems.Receipt{Acceptance: evidence.Accepted, HeldBy: evidence.HeldByBrokerMemory, MessageID: "m-1", ClientResult: "ok"}},
		{"accepted by a store", nil, evidence.HeldByStore, systems.Receipt{Acceptance: evidence.Accepted, HeldBy: evidence.HeldByStore, MessageID: "m-1", ClientResult: "ok"}},
		{"declined", fmt.Errorf("full: %w", ErrDeclined), 0, systems.Receipt{Acceptance: evidence.Declined, Cause: evidence.CauseStated, ClientResult: "full: custodytest: declined", Reason: "full: custodytest: declined"}},
		{"never left", fmt.Errorf("down: %w", systems.ErrUnavailable), 0, systems.Receipt{Acceptance: evidence.Rejected, ClientResult: "down: systems: unavailable", Reason: "down: systems: unavailable"}},
		{"in doubt", down, 0, systems.Receipt{Acceptance: evidence.Unknown, ClientResult: "down", Reason: "down"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := opened(t, fixed{published: c.published}, c.by).Producer(t.Context(), systems.ProducerOptions{})
			if err != nil {
				t.Fatal(err)
			}
			pending, err := p.Send(t.Context(), systems.Message{})
			if err != nil {
				t.Fatal(err)
			}
			if got := pending.Receipt(t.Context()); got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestInProcessDelivery(t *testing.T) {
	yes := func(context.Context) error { return nil }
	no := func(context.Context) error { return errors.New("late") }
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		name     string
		received Received
		ctx      context.Context
		ack      evidence.AckOutcome
		mark     evidence.Mark
		nacks    bool
	}{
		{"first", Received{Attempt: 1, Ack: yes, Nack: yes}, t.Context(), evidence.AckConfirmed, evidence.MarkFirst, true},
		{"again, refused", Received{Attempt: 2, Ack: no}, t.Context(), evidence.AckRefused, evidence.MarkRedelivered, false},
		{"uncounted, given up", Received{Ack: no}, over, evidence.AckUnknown, evidence.MarkNone, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := opened(t, fixed{received: c.received}, 0).Consumer(t.Context(), systems.ConsumerOptions{})
			if err != nil {
				t.Fatal(err)
			}
			d, err := s.Receive(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			ack, _ := d.Ack(c.ctx)
			_, known := d.Attempt()
			_, nacks := d.(systems.Rejecter)
			if ack != c.ack || d.Mark() != c.mark || known != (c.received.Attempt > 0) || nacks != c.nacks {
				t.Errorf("ack %v, mark %v, counted %v, rejecter %v", ack, d.Mark(), known, nacks)
			}
		})
	}
}
