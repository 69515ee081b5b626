package zeromq_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/custodymq/custody/containers"
	"github.com/custodymq/custody/systems/systemtest"
	"github.com/custodymq/custody/systems/zeromq"
)

func TestMain(m *testing.M) {
	containers.RunRole(map[string]func() containers.Role{zeromq.RoleName: zeromq.Role})
	goleak.VerifyTestMain(m)
}

func TestConformance(t *testing.T) {
	for _, s := range zeromq.Profiles(1) {
		t.Run(s.Describe().Profile.Name, func(t *testing.T) { systemtest.Exercise(t, s) })
	}
}
