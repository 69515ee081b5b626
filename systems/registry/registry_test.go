package registry_test

import (
	"strings"
	"testing"

	"github.com/custodymq/custody/guarantees"
	"github.com/custodymq/custody/systems/registry"
)

func TestNamed(t *testing.T) {
	for _, c := range []struct{ spec, first, err string }{
		{spec: "redis", first: "redis:aof-always-claim"},
		{spec: "redis:pubsub", first: "redis:pubsub"},
		{spec: "rabbitmq:classic@custody/rabbitmq:trixie", first: "rabbitmq:classic@custody/rabbitmq:trixie"},
		{spec: "mqtt-mosquitto@a/b:c@sha256:d", first: "mqtt-mosquitto:qos1@a/b:c@sha256:d"},
		{spec: "nats:core@a", first: "nats:core@a"},
		{spec: "rediss", err: `no system "rediss"`},
		{spec: "redis:pubsubs", err: `system redis has no profile "pubsubs"`},
		{spec: "redis@", err: "has no image"},
		{spec: "zeromq@a", err: "system zeromq cannot run from an image"},
		{spec: "mqtt-mochi@a", err: "mochi-mqtt is built into this binary"},
	} {
		s, err := registry.Find(c.spec, 1)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: error %v, want %q", c.spec, err, c.err)
			}
			continue
		}
		if err != nil {
			t.Error(err)
			continue
		}
		if d := s.Describe(); d.System+":"+d.Profile.Name != c.first {
			t.Errorf("%s is %s:%s, want %s", c.spec, d.System, d.Profile.Name, c.first)
		}
	}
	one, err := registry.Named("redis@a", 1)
	every, err2 := registry.Named("redis", 1)
	if err != nil || err2 != nil || len(one) != len(every) || len(one) < 2 {
		t.Errorf("%d profiles in an image (%v), %d installed (%v)", len(one), err, len(every), err2)
	}
}

func TestNobodyClaimsWhatNoSystemCanKeep(t *testing.T) {
	for _, s := range registry.Systems(1) {
		d := s.Describe()
		if err := guarantees.CheckClaims(d.Claims...); err != nil {
			t.Errorf("%s:%s: %v", d.System, d.Profile.Name, err)
		}
	}
}
