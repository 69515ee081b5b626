// Package systemtest runs the conformance suite of adapters in a test.
package systemtest

import (
	"context"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/conformance"
)

// within bounds one subtest; only a broken adapter gets near it.
const within = time.Minute

// Exercise runs the suite against one system. Each obligation is a subtest with
// an instance of its own; what the system lacks is skipped with its reason. A
// system that is not Installed is skipped with instructions to get it, or fails
// if the environment variable CUSTODY_REQUIRE is set. Call process.RunRole in
// TestMain first if the system needs it.
func Exercise(t *testing.T, s systems.System) {
	Require(t, s)
	before := goleak.IgnoreCurrent()
	servers := process.NewPool()
	for _, o := range conformance.Obligations() {
		t.Run(o.Name, func(t *testing.T) {
			ignore := goleak.IgnoreCurrent()
			o.Check(t, s, t.TempDir(), within, servers)
			if servers.Idle() > 0 {
				return // its goroutines run on; they are checked at the end
			}
			if err := goleak.Find(ignore); err != nil {
				t.Errorf("stopped, but not everything was released: %v", err)
			}
		})
	}
	if err := servers.Close(t.Context()); err != nil {
		t.Errorf("end the servers that were kept between subtests: %v", err)
	}
	if err := goleak.Find(before); err != nil {
		t.Errorf("all stopped, but not everything was released: %v", err)
	}
}

// Require is Needs for what a system's Installed reports.
func Require(t testing.TB, s systems.System) {
	t.Helper()
	if need, ok := s.(systems.Installed); ok {
		Needs(t, need.Installed())
	}
}

// Needs skips the test if the machine lacks something, or fails it if the
// environment variable CUSTODY_REQUIRE is set.
func Needs(t testing.TB, missing error) {
	t.Helper()
	switch {
	case missing == nil:
	case os.Getenv("CUSTODY_REQUIRE") != "":
		t.Fatalf("required, but: %v", missing)
	default:
		t.Skip(missing)
	}
}

// Serve runs a Networked system until the end of a test that is not about the
// adapter, and returns the server's address.
func Serve(t *testing.T, s systems.System) (address string) {
	t.Helper()
	Require(t, s)
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	instance, err := s.Start(ctx, Env(t, Discard{}, nil))
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		if err := instance.Stop(ctx); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	network, ok := systems.As[systems.Networked](instance)
	if !ok {
		t.Fatalf("%s is not Networked", s.Describe().System)
	}
	return network.Address()
}

// Discard is a sink that ignores all events.
type Discard = conformance.Discard

// Env returns an instance's environment, in a directory of its own. servers may
// be nil, to reuse none.
func Env(t testing.TB, s evidence.Sink, servers *process.Pool) systems.Env {
	t.Helper()
	return conformance.Env(t.TempDir(), s, servers)
}
