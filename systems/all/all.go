// Package all is the one list of adapters.
package all

import (
	"fmt"
	"slices"
	"strings"

	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/kafka"
	"github.com/custodymq/custody/systems/mqtt"
	"github.com/custodymq/custody/systems/nats"
	"github.com/custodymq/custody/systems/rabbitmq"
	"github.com/custodymq/custody/systems/redis"
	"github.com/custodymq/custody/systems/zeromq"
)

// Systems are all profiles of all systems; the first of a system is its default.
func Systems(scale float64) []systems.System {
	return slices.Concat(zeromq.Profiles(scale), nats.Profiles(scale), redis.Profiles(scale), mqtt.Profiles(scale), rabbitmq.Profiles(scale), kafka.Profiles(scale))
}

// Find gives the system that "SYSTEM" or "SYSTEM:PROFILE" names.
func Find(spec string, scale float64) (systems.System, error) {
	name, profile, _ := strings.Cut(spec, ":")
	var names, profiles []string
	for _, s := range Systems(scale) {
		d := s.Describe()
		if d.System != name {
			if !slices.Contains(names, d.System) {
				names = append(names, d.System)
			}
			continue
		}
		if profile == "" || profile == d.Profile.Name {
			return s, nil
		}
		profiles = append(profiles, d.Profile.Name)
	}
	if profiles != nil {
		return nil, fmt.Errorf("system %s has no profile %q%s", name, profile, script.Suggest(profile, profiles))
	}
	return nil, fmt.Errorf("no system %q%s", name, script.Suggest(name, names))
}
