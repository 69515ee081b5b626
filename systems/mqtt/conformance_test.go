package mqtt

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/systemtest"
)

func TestMain(m *testing.M) {
	process.RunRole(map[string]func() process.Role{RoleName: Role})
	goleak.VerifyTestMain(m)
}

// profile finds a server's profile by name.
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

func TestConformance(t *testing.T) {
	for _, p := range [][2]string{
		{"mqtt-mosquitto", "qos1"}, {"mqtt-mosquitto", "qos1-v311"}, {"mqtt-mosquitto", "clean-session"},
		{"mqtt-mochi", "qos1"}, {"mqtt-mochi", "qos1-v311"}, {"mqtt-mochi", "qos0"},
	} {
		t.Run(p[0]+":"+p[1], func(t *testing.T) { systemtest.Exercise(t, profile(t, p[0], p[1])) })
	}
}

// TestConformanceFromAnImage tests another release, from a container image.
func TestConformanceFromAnImage(t *testing.T) {
	s, err := profile(t, "mqtt-mosquitto", "qos1").(systems.Contained).In("custody/mosquitto:trixie")
	if err != nil {
		t.Fatal(err)
	}
	systemtest.Exercise(t, s)
}
