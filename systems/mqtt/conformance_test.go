package mqtt

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/custodymq/custody/containers"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/systemtest"
)

func TestMain(m *testing.M) {
	containers.RunRole(map[string]func() containers.Role{RoleName: Role})
	goleak.VerifyTestMain(m)
}

// profile of a server, by its name.
func profile(t *testing.T, system, name string) systems.System {
	t.Helper()
	for _, s := range Profiles(1) {
		if d := s.Describe(); d.System == system && d.Profile.Name == name {
			return s
		}
	}
	t.Fatalf("no profile %s:%s", system, name)
	return nil
}

// mochi-mqtt has no part in it: where two consumers have competed and one is
// back, the suite expects the next message there. mochi-mqtt draws the member
// that gets a message, and may draw the one that is away.
func TestConformance(t *testing.T) {
	for _, name := range []string{"qos1", "qos1-v311", "clean-session"} {
		t.Run(name, func(t *testing.T) { systemtest.Exercise(t, profile(t, "mqtt-mosquitto", name)) })
	}
}

// TestConformanceFromAnImage: another release, from a container image.
func TestConformanceFromAnImage(t *testing.T) {
	s, err := profile(t, "mqtt-mosquitto", "qos1").(systems.Contained).In("custody/mosquitto:trixie")
	if err != nil {
		t.Fatal(err)
	}
	systemtest.Exercise(t, s)
}
