package kafka_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/kafka"
	"github.com/custodymq/custody/systems/systemtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	for _, name := range []string{"acks-all", "share-group", "transactions"} {
		t.Run(name, func(t *testing.T) { systemtest.Exercise(t, profile(t, name)) })
	}
}

// TestConformanceFromAnImage tests another release, from a container image.
func TestConformanceFromAnImage(t *testing.T) {
	s, err := profile(t, "acks-all").(systems.Contained).In("custody/kafka:4.1.2")
	if err != nil {
		t.Fatal(err)
	}
	systemtest.Exercise(t, s)
}

func profile(t *testing.T, name string) systems.System {
	t.Helper()
	for _, p := range kafka.Profiles(1) {
		if p.Describe().Profile.Name == name {
			return p
		}
	}
	t.Fatalf("no profile %s", name)
	return nil
}
