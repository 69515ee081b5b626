package runner

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/custodymq/custody/business"
	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/tasks"
)

func TestBusinessFaultsStrikeWhatTheyName(t *testing.T) {
	type call struct {
		op    business.Op
		id    string
		actor string
		after bool
	}
	logs := []call{{business.Log, "order-1", "c1", false}, {business.Log, "order-1", "c1", true}, {business.Effect, "order-1", "c1", false},
		{business.Log, "order-2", "c2", false}, {business.Log, "order-1", "c2", false}}
	for _, c := range []struct {
		name   string
		fault  systems.StoreFault
		struck []int
	}{
		{"the first", systems.StoreFault{Verb: "unreachable", Operation: "log"}, []int{0}},
		{"the second", systems.StoreFault{Verb: "unreachable", Operation: "log", N: 2}, []int{3}},
		{"every one", systems.StoreFault{Verb: "unreachable", Operation: "log", Every: true}, []int{0, 3, 4}},
		{"from the second on", systems.StoreFault{Verb: "unreachable", Operation: "log", N: 2, Every: true}, []int{3, 4}},
		{"of a business ID", systems.StoreFault{Verb: "unreachable", Operation: "log", Of: "order-2"}, []int{3}},
		{"of an actor", systems.StoreFault{Verb: "unreachable", Operation: "log", By: "c2", Of: "order-1"}, []int{4}},
		{"after", systems.StoreFault{Verb: "unreachable", Operation: "log", After: true}, []int{1}},
		{"a reply", systems.StoreFault{Verb: "lose-reply", Operation: "log"}, []int{1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := &businessFaults{rt: tasks.NewReal(func() time.Duration { return 0 })}
			fired := 0
			heal, err := b.ArmStore(t.Context(), c.fault, func(systems.StoreFired) { fired++ })
			if err != nil {
				t.Fatal(err)
			}
			strike := func() (struck []int) {
				for i, k := range logs {
					if err := b.pass(by(t.Context(), k.actor), k.op, k.id, k.after); err != nil {
						if !errors.Is(err, business.ErrUnavailable) {
							t.Error(err)
						}
						struck = append(struck, i)
					}
				}
				return struck
			}
			if struck := strike(); !slices.Equal(struck, c.struck) || fired != len(struck) {
				t.Errorf("struck %v, fired %d times; want %v", struck, fired, c.struck)
			}
			if err := heal(t.Context()); err != nil {
				t.Error(err)
			}
			if struck := strike(); struck != nil {
				t.Errorf("healed, and it strikes %v", struck)
			}
		})
	}
	if _, err := (&businessFaults{}).ArmStore(t.Context(), systems.StoreFault{Verb: "full", Operation: "log"}, nil); err == nil {
		t.Error("a fault was armed that the business database does not have")
	}
}

// An operation that is held goes on when the fault is healed, or ends with its
// actor.
func TestHeldOperation(t *testing.T) {
	world := tasks.NewSimulated(1)
	err := world.Run(func() {
		b := &businessFaults{rt: world}
		heal, err := b.ArmStore(t.Context(), systems.StoreFault{Verb: "hold", Operation: "mark"}, func(systems.StoreFired) {})
		if err != nil {
			t.Fatal(err)
		}
		world.After(time.Second, func() { _ = heal(t.Context()) })
		if err := b.pass(t.Context(), business.Mark, "order-1", false); err != nil || world.Now() < time.Second {
			t.Errorf("it went on at %v: %v", world.Now(), err)
		}
		if _, err := b.ArmStore(t.Context(), systems.StoreFault{Verb: "hold", Operation: "mark"}, func(systems.StoreFired) {}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		world.After(time.Second, cancel)
		if err := b.pass(ctx, business.Mark, "order-1", false); !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
	})
	if err != nil {
		t.Error(err)
	}
}

// The complete application makes its claims; without a mechanism it makes none of
// that mechanism's.
func TestApplicationClaims(t *testing.T) {
	for _, c := range []struct {
		steps string
		want  []string
	}{
		{"producer p1 to orders\nconsumer c1 on orders, idempotent", []string{"single-effect"}},
		{"producer p1 to orders\nconsumer c1 on orders, handler lock", []string{"single-effect"}},
		{"producer p1 to orders\nconsumer c1 on orders, handler lock\nconsumer c2 on orders, handler lock-after-check", nil},
		{"producer p1 to orders\nconsumer c1 on orders", nil},
		{"producer p1 to orders, outbox\nrelay r1 from orders\nconsumer c1 on orders", []string{"outbox-atomicity"}},
		{"producer p1 to orders, outbox\nproducer p2 to orders\nrelay r1 from orders", nil},
		{"producer p1 to orders, outbox\nrelay r1 from orders, policy marks-first", nil},
		{"producer p1 to orders, outbox", nil},
		{"producer p1 to orders, outbox\nrelay r1 from orders\nconsumer c1 on orders, handler log", []string{"single-effect", "outbox-atomicity"}},
	} {
		s, err := script.Parse("", "scenario x\n"+c.steps)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, claim := range applicationClaims(systems.Description{}, s) {
			got = append(got, claim.Guarantee)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s claims %q, want %q", c.steps, got, c.want)
		}
	}
}
