package redis

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"strings"

	"github.com/custodymq/custody/systems"
)

// clients opens sessions with a server, whichever process runs it.
type clients struct {
	profile Profile
	address string
	prefix  string // of all names of this run, on a server that may be shared
}

// Credentials are the address of the server and the prefix of the run's names.
// User and password are not among them: the profile holds those.
func (p Profile) Credentials(in systems.Instance) string {
	switch in := in.(type) {
	case *instance:
		return in.address + " " + in.prefix
	case *remote:
		return in.address + " " + in.prefix
	}
	return ""
}

// Connect returns clients of a server that another process started.
func (p Profile) Connect(credentials string) (systems.Clients, error) {
	address, prefix, ok := strings.Cut(credentials, " ")
	if _, _, err := net.SplitHostPort(address); err != nil || !ok {
		return nil, fmt.Errorf("redis: malformed credentials %q: want address and prefix, as returned by Credentials", credentials)
	}
	return clients{profile: p, address: address, prefix: prefix}, nil
}

func (c clients) Producer(ctx context.Context, o systems.ProducerOptions) (systems.Producer, error) {
	if err := systems.OnlyDefaultMode("redis", o.Mode); err != nil {
		return nil, err
	}
	s, err := c.profile.open(ctx, cmp.Or(o.Address, c.address), func(ctx context.Context, s *session) error { return s.client.Ping(ctx).Err() })
	if err != nil {
		return nil, err
	}
	return newProducer(c, s), nil
}

func (c clients) Consumer(ctx context.Context, o systems.ConsumerOptions) (systems.Consumer, error) {
	if err := systems.OnlyDefaultMode("redis", o.Mode); err != nil {
		return nil, err
	}
	if c.profile.reads == channel {
		return c.listen(ctx, o)
	}
	return c.join(ctx, o)
}
