// Package registry is the list of adapters.
package registry

import (
	"fmt"
	"slices"
	"strings"

	"github.com/custodymq/custody/script"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/adapter"
	"github.com/custodymq/custody/systems/external"
	"github.com/custodymq/custody/systems/kafka"
	"github.com/custodymq/custody/systems/mqtt"
	"github.com/custodymq/custody/systems/nats"
	"github.com/custodymq/custody/systems/rabbitmq"
	"github.com/custodymq/custody/systems/redis"
	"github.com/custodymq/custody/systems/zeromq"
)

// Systems returns all profiles of all systems; the first of a system is its
// default.
func Systems(scale float64) []systems.System {
	return slices.Concat(zeromq.Profiles(scale), nats.Profiles(scale), redis.Profiles(scale), mqtt.Profiles(scale), rabbitmq.Profiles(scale), kafka.Profiles(scale))
}

// Find returns the system of a spec: "SYSTEM" for its first profile, or
// "SYSTEM:PROFILE", optionally with "@IMAGE" to run the server from a container
// image. A spec ending in .yaml or .yml is a file that describes a server of
// the user's own: see package external. "adapter:COMMAND" and
// "adapter/PROFILE:COMMAND" are an adapter of the user's own: see package adapter.
func Find(spec string, scale float64) (systems.System, error) {
	found, err := Named(spec, scale)
	if err != nil {
		return nil, err
	}
	return found[0], nil
}

// Named returns all systems of a spec: without a profile, all profiles.
func Named(spec string, scale float64) ([]systems.System, error) {
	if external.IsFile(spec) {
		s, err := external.Open(spec, scale, Find)
		if err != nil {
			return nil, err
		}
		return []systems.System{s}, nil
	}
	if adapter.IsSpec(spec) {
		return adapter.Named(spec, scale)
	}
	named, image, contained := strings.Cut(spec, "@")
	found, err := profiles(named, scale)
	if err != nil || !contained {
		return found, err
	}
	if image == "" {
		return nil, fmt.Errorf("%q has no image after the @; write SYSTEM:PROFILE@IMAGE", spec)
	}
	for i, s := range found {
		c, ok := s.(systems.Contained)
		if !ok {
			return nil, fmt.Errorf("system %s cannot run from an image: leave out @%s", s.Describe().System, image)
		}
		if found[i], err = c.In(image); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// profiles returns those of "SYSTEM" or "SYSTEM:PROFILE".
func profiles(spec string, scale float64) ([]systems.System, error) {
	name, profile, _ := strings.Cut(spec, ":")
	var found []systems.System
	var names, known []string
	for _, s := range Systems(scale) {
		d := s.Describe()
		if d.System != name {
			if !slices.Contains(names, d.System) {
				names = append(names, d.System)
			}
			continue
		}
		if profile == "" || profile == d.Profile.Name {
			found = append(found, s)
		}
		known = append(known, d.Profile.Name)
	}
	switch {
	case found != nil:
		return found, nil
	case known != nil:
		return nil, fmt.Errorf("system %s has no profile %q%s", name, profile, script.Suggest(profile, known))
	}
	return nil, fmt.Errorf("no system %q%s", name, script.Suggest(name, names))
}
