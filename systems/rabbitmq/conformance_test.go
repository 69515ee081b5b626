package rabbitmq

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/custodymq/custody/systems/systemtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestConformance exercises the first profile and the one with the fewest
// features.
func TestConformance(t *testing.T) {
	for _, s := range Profiles(1) {
		switch name := s.Describe().Profile.Name; name {
		case "quorum", "no-confirms":
			t.Run(name, func(t *testing.T) { systemtest.Exercise(t, s) })
		}
	}
}

// TestConformanceFromAnImage tests another release, from a container image.
func TestConformanceFromAnImage(t *testing.T) {
	s, err := profile(t, "quorum").In("custody/rabbitmq:trixie")
	if err != nil {
		t.Fatal(err)
	}
	systemtest.Exercise(t, s)
}
