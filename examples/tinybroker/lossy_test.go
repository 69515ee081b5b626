package tinybroker_test

import (
	"context"
	"path/filepath"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/custodymq/custody/bench"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/scenarios"
	"github.com/custodymq/custody/systems"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lossy acknowledges on receipt, as many a client library does by default:
// what its application does not finish is gone. It claims what system claims.
type lossy struct{ system }

func (s lossy) Start(ctx context.Context, env systems.Env) (systems.Instance, error) {
	in, err := s.system.Start(ctx, env)
	return lossyInstance{in}, err
}

type lossyInstance struct{ systems.Instance }

func (in lossyInstance) Consumer(ctx context.Context, o systems.ConsumerOptions) (systems.Consumer, error) {
	c, err := in.Instance.Consumer(ctx, o)
	return lossyConsumer{c}, err
}

type lossyConsumer struct{ systems.Consumer }

func (c lossyConsumer) Receive(ctx context.Context) (systems.Delivery, error) {
	d, err := c.Consumer.Receive(ctx)
	if err == nil {
		_, err = d.Ack(ctx)
	}
	return d, err
}

// A test that cannot fail proves nothing: the same claims, made by a broker
// that does not keep them, are refuted.
func TestLossyIsCaught(t *testing.T) {
	late, err := scenarios.Find("late-consumer")
	if err != nil {
		t.Fatal(err)
	}
	const fast = bench.DefaultScale / 5 // what it waits for in vain need not take long
	j, err := scenarios.Run(t.Context(), bench.Options{System: lossy{}, Scenario: late, Seed: 1, Scale: fast,
		Dir: filepath.Join(t.ArtifactDir(), late.Name)})
	if err != nil {
		t.Fatal(err)
	}
	lost := func(f guarantees.Finding) bool { return f.Guarantee == evidence.NoAcceptedLoss }
	if j.Outcome != guarantees.Violated || !slices.ContainsFunc(j.Broken, lost) {
		t.Errorf("%v: %s; want %s violated", j.Outcome, j.Why, evidence.NoAcceptedLoss)
	}
}
