package nats

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems/systemtest"
)

func TestMain(m *testing.M) {
	process.RunRole(map[string]func() process.Role{RoleName: Role})
	goleak.VerifyTestMain(m)
}

func TestConformance(t *testing.T) {
	for _, name := range []string{"file-explicit-ack", "ack-none"} {
		t.Run(name, func(t *testing.T) { systemtest.Exercise(t, named(t, name)) })
	}
}

// TestConformanceFromAnImage tests another release, from a container image.
func TestConformanceFromAnImage(t *testing.T) {
	s, err := named(t, "file-explicit-ack").In("custody/nats:trixie")
	if err != nil {
		t.Fatal(err)
	}
	systemtest.Exercise(t, s)
}
