package redis

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	client "github.com/redis/go-redis/v9"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/systemtest"
)

// Effects of the profiles' settings, beyond conformance.

// start returns a running instance and the test's context.
func start(t *testing.T, name string, servers *process.Pool) (context.Context, *instance) {
	t.Helper()
	s := profile(t, name)
	systemtest.Require(t, s)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	in, err := s.Start(ctx, systemtest.Env(t, systemtest.Discard{}, servers))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := in.Stop(context.WithoutCancel(ctx)); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return ctx, in.(*instance)
}

func publish(t *testing.T, ctx context.Context, in *instance) systems.Receipt {
	t.Helper()
	p, err := in.Producer(ctx, systems.ProducerOptions{Name: "p1", Session: "p1#1"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(ctx)
	pending, err := p.Send(ctx, systems.Message{Destination: "orders", Payload: evidence.Envelope{PublishID: "p1-1-1", BusinessID: "order-1"}.Encode()})
	if err != nil {
		t.Fatal(err)
	}
	return pending.Receipt(ctx)
}

func subscribe(t *testing.T, ctx context.Context, in *instance, name string) systems.Consumer {
	t.Helper()
	c, err := in.Consumer(ctx, systems.ConsumerOptions{Name: name, Session: name + "#1", Destination: "orders", Subscription: "billing", Window: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.WithoutCancel(ctx)) })
	return c
}

func receive(t *testing.T, ctx context.Context, c systems.Consumer) systems.Delivery {
	t.Helper()
	d, err := c.Receive(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestTheServerHasTheSettingsOfItsProfile(t *testing.T) {
	for _, s := range Profiles(1) {
		description := s.Describe().Profile
		t.Run(description.Name, func(t *testing.T) {
			ctx, in := start(t, description.Name, nil)
			if r := publish(t, ctx, in); r.Acceptance == evidence.Accepted && r.HeldBy != in.profile.heldBy {
				t.Errorf("held by %v", r.HeldBy)
			}
			err := in.profile.administer(ctx, in.address, func(ctx context.Context, c *client.Client) error {
				for _, setting := range description.Settings {
					if !strings.HasPrefix(setting.Name, "append") {
						continue
					}
					if got, err := c.ConfigGet(ctx, setting.Name).Result(); err != nil || got[setting.Name] != setting.Value {
						t.Errorf("%s is %q (%v), want %q", setting.Name, got[setting.Name], err, setting.Value)
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestWhoServesWhatAConsumerLeft distinguishes the profiles of streams.
func TestWhoServesWhatAConsumerLeft(t *testing.T) {
	for name, servedTo := range map[string][]string{
		"aof-always-claim": {"c1", "c2"}, "own-pending": {"c1"}, "new-only": nil,
	} {
		for _, who := range []string{"c1", "c2"} {
			t.Run(name+" "+who, func(t *testing.T) {
				t.Parallel()
				ctx, in := start(t, name, nil)
				left := subscribe(t, ctx, in, "c1")
				id := publish(t, ctx, in).MessageID
				if d := receive(t, ctx, left); d.Mark() != evidence.MarkFirst {
					t.Errorf("first marked %v", d.Mark())
				}
				if err := left.Close(ctx); err != nil {
					t.Fatal(err)
				}
				waiting, cancel := context.WithTimeout(ctx, claimIdle+10*claimEvery)
				defer cancel()
				d, err := subscribe(t, ctx, in, who).Receive(waiting)
				if !slices.Contains(servedTo, who) {
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%v, %v; want nothing", d, err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if n, known := d.Attempt(); n != 2 || !known || d.Mark() != evidence.MarkRedelivered || d.Message().MessageID != id {
					t.Errorf("%s is attempt %d (%v), marked %v; published was %s", d.Message().MessageID, n, known, d.Mark(), id)
				}
				if outcome, err := d.Ack(ctx); outcome != evidence.AckConfirmed {
					t.Errorf("ack: %v, %v", outcome, err)
				}
				if outcome, err := d.Ack(ctx); outcome != evidence.AckRefused || err == nil {
					t.Errorf("second ack: %v, %v", outcome, err)
				}
			})
		}
	}
}

// TestACancelledReadLosesNothing receives an entry that arrived after its read
// was cancelled.
func TestACancelledReadLosesNothing(t *testing.T) {
	ctx, in := start(t, "new-only", nil) // without redelivery
	c := subscribe(t, ctx, in, "c1")
	if err := in.Pause(ctx); err != nil {
		t.Fatal(err)
	}
	waiting, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if d, err := c.Receive(waiting); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%v, %v", d, err)
	}
	if err := in.Continue(ctx); err != nil {
		t.Fatal(err)
	}
	publish(t, ctx, in)
	receive(t, ctx, c)
}

// TestAServerThatStandsStillEndsTheSession expects the end sooner than go-redis
// gives up a blocking read, which is ten seconds after its timeout.
func TestAServerThatStandsStillEndsTheSession(t *testing.T) {
	ctx, in := start(t, "aof-always-claim", nil)
	c := subscribe(t, ctx, in, "c1")
	if err := in.Pause(ctx); err != nil {
		t.Fatal(err)
	}
	waiting, cancel := context.WithTimeout(ctx, 4*replyWithin)
	defer cancel()
	if d, err := c.Receive(waiting); !errors.Is(err, systems.ErrDisconnected) {
		t.Errorf("%v, %v", d, err)
	}
}

func TestAServerServesOneRunAfterAnother(t *testing.T) {
	servers := process.NewPool()
	defer func() {
		if err := servers.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	ctx, first := start(t, "aof-always-claim", servers)
	publish(t, ctx, first)
	subscribe(t, ctx, first, "c1")
	if err := first.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	_, second := start(t, "own-pending", servers) // the same server kind
	if second.address != first.address || second.prefix == first.prefix {
		t.Errorf("the second run has %s at %s, the first had %s at %s", second.prefix, second.address, first.prefix, first.address)
	}
	err := second.profile.administer(ctx, second.address, func(ctx context.Context, c *client.Client) error {
		if left, err := c.DBSize(ctx).Result(); err != nil || left != 0 {
			t.Errorf("the first run left %d streams (%v)", left, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
