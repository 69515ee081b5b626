package redis

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/systemtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// profile finds a profile by name.
func profile(t *testing.T, name string) systems.System {
	t.Helper()
	for _, s := range Profiles(1) {
		if s.Describe().Profile.Name == name {
			return s
		}
	}
	t.Fatalf("no profile %s", name)
	return nil
}

// TestConformance exercises the safest profile and the most different one.
func TestConformance(t *testing.T) {
	for _, name := range []string{"aof-always-claim", "pubsub"} {
		t.Run(name, func(t *testing.T) { systemtest.Exercise(t, profile(t, name)) })
	}
}

// TestConformanceFromAnImage tests another release, from a container image.
func TestConformanceFromAnImage(t *testing.T) {
	s, err := profile(t, "aof-always-claim").(systems.Contained).In("custody/redis:trixie")
	if err != nil {
		t.Fatal(err)
	}
	systemtest.Exercise(t, s)
}
