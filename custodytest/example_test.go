package custodytest_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/custodymq/custody/custodytest"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/scenarios"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
)

// channel is a broker with one topic and one subscriber: a Go channel. A lossy
// one drops every fourth message.
type channel struct {
	messages chan systems.Message
	lossy    bool
	count    *atomic.Int64
}

func (c channel) Publish(_ context.Context, m systems.Message) (string, error) {
	n := c.count.Add(1)
	if c.lossy && n%4 == 0 {
		return "", nil // accepted and dropped
	}
	select {
	case c.messages <- m:
		return "", nil
	default:
		return "", fmt.Errorf("full: %w", custodytest.ErrDeclined)
	}
}

func (c channel) Subscribe(context.Context, systems.ConsumerOptions) (custodytest.Subscription, error) {
	return c, nil
}

func (c channel) Receive(ctx context.Context) (custodytest.Received, error) {
	select {
	case m := <-c.messages:
		return custodytest.Received{Message: m, Ack: func(context.Context) error { return nil }}, nil
	case <-ctx.Done():
		return custodytest.Received{}, ctx.Err()
	}
}

func (channel) Close() error { return nil }

func channels(lossy bool) custodytest.InProcess {
	return custodytest.InProcess{
		Description: systems.Description{
			System: "channel",
			Profile: evidence.Profile{
				Name: "memory", Redelivers: evidence.RedeliverNever, AckCounting: "per-message", AckConfirms: true, KeepsSubscribers: true,
				Limits: evidence.Limits{RedeliveryPeriod: 50 * time.Millisecond, RecoveryBound: 2 * time.Second, InFlightBound: time.Second,
					DrainDeadline: time.Second, OrderScope: "connection"},
			},
			// Without fault classes, a claim covers runs without faults only.
			Claims: []evidence.Claim{{Guarantee: evidence.NoAcceptedLoss}, {Guarantee: evidence.Order}},
			Lacks:  map[systems.Need]string{systems.NeedRedelivery: "what was received is gone"},
		},
		Open: func(context.Context, systems.Env) (custodytest.Broker, error) {
			return channel{make(chan systems.Message, 1<<10), lossy, new(atomic.Int64)}, nil
		},
	}
}

// In a test, each scenario becomes a subtest.
func ExampleAccept() {
	var _ = func(t *testing.T) {
		custodytest.Accept(t, channels(false), custodytest.Scenarios("baseline"), custodytest.Out("evidence"))
	}
}

// The same claims are held by a sound broker and violated by one that loses
// accepted messages.
func ExampleInProcess() {
	dir, err := os.MkdirTemp("", "custodytest-example-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	simple, err := script.Parse("simple.scenario", `scenario simple
producer p1 to orders
consumer c1 on orders
publish order-1..order-10 by p1
await effect of order-10
expect no-accepted-loss, order
`)
	if err != nil {
		fmt.Println(err)
		return
	}
	for name, lossy := range map[string]bool{"sound": false, "lossy": true} {
		j, err := scenarios.Run(context.Background(), runner.Options{
			System: channels(lossy), Scenario: simple, Dir: filepath.Join(dir, name), Seed: 1, Scale: runner.DefaultScale,
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		for _, v := range j.Verdicts {
			if v.Claimed && v.Outcome != guarantees.NotApplicable {
				fmt.Printf("%s: %s %v\n", name, v.Guarantee, v.Outcome)
			}
		}
	}
	// Unordered output:
	// sound: no-accepted-loss held
	// sound: order held
	// lossy: no-accepted-loss violated
	// lossy: order held
}
