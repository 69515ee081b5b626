package tinybroker_test

import (
	"context"
	"path/filepath"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/custodymq/custody/custodytest"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/scenarios"
	"github.com/custodymq/custody/systems"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lossy acknowledges on receipt, the default of many client libraries:
// unfinished messages are lost.
type lossy struct{ custodytest.Broker }

func (l lossy) Subscribe(ctx context.Context, o systems.ConsumerOptions) (custodytest.Subscription, error) {
	s, err := l.Broker.Subscribe(ctx, o)
	return lossySubscription{s}, err
}

type lossySubscription struct{ custodytest.Subscription }

func (s lossySubscription) Receive(ctx context.Context) (custodytest.Received, error) {
	r, err := s.Subscription.Receive(ctx)
	if err == nil {
		err = r.Ack(ctx)
	}
	r.Ack = func(context.Context) error { return nil }
	return r, err
}

// The same claims are violated by a broker that does not keep them.
func TestLossyIsCaught(t *testing.T) {
	late, err := scenarios.Find("late-consumer")
	if err != nil {
		t.Fatal(err)
	}
	broken := custodytest.InProcess{Description: promises, Open: func(ctx context.Context, env systems.Env) (custodytest.Broker, error) {
		b, err := open(ctx, env)
		return lossy{b}, err
	}}
	const fast = runner.DefaultScale / 5 // its waits end in time-outs
	j, err := scenarios.Run(t.Context(), runner.Options{System: broken, Scenario: late, Seed: 1, Scale: fast,
		Dir: filepath.Join(t.ArtifactDir(), late.Name)})
	if err != nil {
		t.Fatal(err)
	}
	lost := func(f guarantees.Finding) bool { return f.Guarantee == evidence.NoAcceptedLoss }
	if j.Outcome != guarantees.Violated || !slices.ContainsFunc(j.Broken, lost) {
		t.Errorf("%v: %s; want %s violated", j.Outcome, j.Why, evidence.NoAcceptedLoss)
	}
}
