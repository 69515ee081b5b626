// Package child holds the roles of a re-executed binary.
package child

import (
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/runner"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/mqtt"
	"github.com/custodymq/custody/systems/nats"
	"github.com/custodymq/custody/systems/zeromq"
)

// Run turns this process into a child if a run started it as one, and then
// never returns. Call it first in main, and in the TestMain of a suite that
// makes runs. find looks up a system by name, for consumers and relays.
func Run(find func(spec string, scale float64) (systems.System, error)) {
	process.RunRole(map[string]func() process.Role{
		zeromq.RoleName:  zeromq.Role,
		nats.RoleName:    nats.Role,
		mqtt.RoleName:    mqtt.Role,
		runner.ActorRole: func() process.Role { return runner.NewActorRole(find) },
	})
}
