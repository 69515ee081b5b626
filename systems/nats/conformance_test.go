package nats

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/custodymq/custody/containers"
	"github.com/custodymq/custody/systems/systemtest"
)

func TestMain(m *testing.M) {
	containers.RunRole(map[string]func() containers.Role{RoleName: Role})
	goleak.VerifyTestMain(m)
}

func TestConformance(t *testing.T) {
	for _, name := range []string{"file-explicit-ack", "ack-none"} {
		t.Run(name, func(t *testing.T) { systemtest.Exercise(t, named(t, name)) })
	}
}

// TestConformanceFromAnImage: another release, from a container image.
func TestConformanceFromAnImage(t *testing.T) {
	s, err := named(t, "file-explicit-ack").In("custody/nats:trixie")
	if err != nil {
		t.Fatal(err)
	}
	systemtest.Exercise(t, s)
}
