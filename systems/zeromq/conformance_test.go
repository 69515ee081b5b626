package zeromq_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems/systemtest"
	"github.com/custodymq/custody/systems/zeromq"
)

func TestMain(m *testing.M) {
	process.RunRole(map[string]func() process.Role{zeromq.RoleName: zeromq.Role})
	goleak.VerifyTestMain(m)
}

func TestConformance(t *testing.T) {
	for _, s := range zeromq.Profiles(1) {
		t.Run(s.Describe().Profile.Name, func(t *testing.T) { systemtest.Exercise(t, s) })
	}
}
