package nats

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
}

// Credentials are the address of the server and the name of the stream. User
// and password are not among them: the profile holds those.
func (p Profile) Credentials(in systems.Instance) string {
	switch in := in.(type) {
	case *instance:
		return in.address + " " + in.profile.stream
	case *remote:
		return in.address + " " + in.profile.stream
	}
	return ""
}

// Connect returns clients of a server that another process started.
func (p Profile) Connect(credentials string) (systems.Clients, error) {
	address, stream, ok := strings.Cut(credentials, " ")
	if _, _, err := net.SplitHostPort(address); err != nil || !ok {
		return nil, fmt.Errorf("nats: malformed credentials %q: want address and stream, as returned by Credentials", credentials)
	}
	p.stream = stream
	return clients{profile: p, address: address}, nil
}

func (c clients) Producer(ctx context.Context, o systems.ProducerOptions) (systems.Producer, error) {
	if err := systems.OnlyDefaultMode("nats", o.Mode); err != nil {
		return nil, err
	}
	o.Address = cmp.Or(o.Address, c.address)
	return systems.ProducerOf(c.profile.producer(ctx, o.Address, o.Session))
}

func (c clients) Consumer(ctx context.Context, o systems.ConsumerOptions) (systems.Consumer, error) {
	if err := systems.OnlyDefaultMode("nats", o.Mode); err != nil {
		return nil, err
	}
	o.Address = cmp.Or(o.Address, c.address)
	return c.profile.consumer(ctx, o)
}
