package mqtt

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
	for _, s := range Profiles(1) {
		d := s.Describe()
		t.Run(d.System+"/"+d.Profile.Name, func(t *testing.T) { systemtest.Exercise(t, s) })
	}
}
