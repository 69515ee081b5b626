package redis

import (
	"context"
	"fmt"

	client "github.com/redis/go-redis/v9"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// remote is one run's share of an external server. Safe for concurrent use.
type remote struct {
	clients
	found release // as the server reports itself
}

var (
	_ systems.Networked = (*remote)(nil)
	_ systems.Inspector = (*remote)(nil)
	_ systems.Reporter  = (*remote)(nil)
)

// At returns the profile on an external server.
func (p Profile) At(e systems.Endpoint) systems.System {
	p.at = e
	return p
}

// reach connects to the external server and records its version.
func (p Profile) reach(ctx context.Context, env systems.Env) (systems.Instance, error) {
	found := release{program: program}
	err := p.administer(ctx, p.at.Address, func(ctx context.Context, c *client.Client) error {
		info, err := c.InfoMap(ctx, "server").Result()
		if err == nil {
			found.version = info["Server"]["redis_version"]
			env.Sink.Record(evidence.Event{Kind: evidence.Noted, Actor: serverName, Reason: "the server reports redis_version " + found.version})
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("redis: the server at %s must run and take its user (address, user-from, password-from, tls): %w", p.at.Address, err)
	}
	if err := found.drives(); err != nil {
		return nil, err
	}
	return &remote{clients{profile: p, address: p.at.Address, prefix: systems.RunName() + ":"}, found}, nil
}

// Report adds what was learned from the running server.
func (r *remote) Report(d *systems.Description) { d.Versions[r.found.program] = r.found.version }

// Stop deletes the run's keys.
func (r *remote) Stop(ctx context.Context) error { return r.forget(ctx) }
