package nats

import (
	"context"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// remote is one run's stream on an external server. Safe for concurrent use.
type remote struct{ clients }

var (
	_ systems.Networked = (*remote)(nil)
	_ systems.Inspector = (*remote)(nil)
	_ systems.Reporter  = (*remote)(nil)
)

// At returns the profile on an external server. Settings of its configuration,
// such as sync_interval, are its owner's.
func (p Profile) At(e systems.Endpoint) systems.System {
	p.at = e
	return p
}

// reach connects to the server, records its version and creates the run's
// stream.
func (p Profile) reach(ctx context.Context, env systems.Env) (systems.Instance, error) {
	p.stream = systems.RunName()
	s, err := p.dial(ctx, p.at.Address, "administrator")
	if err != nil {
		return nil, p.reachError(err)
	}
	p.reported = s.conn.ConnectedServerVersion()
	s.conn.Close()
	env.Sink.Record(evidence.Event{Kind: evidence.Noted, Actor: serverName, Reason: "the server reports nats-server " + p.reported})
	if err := p.drives(p.reported); err != nil {
		return nil, err
	}
	r := &remote{clients{profile: p, address: p.at.Address}}
	if err := r.makeStream(ctx); err != nil {
		return nil, p.reachError(err)
	}
	return r, nil
}

func (p Profile) reachError(err error) error {
	return fmt.Errorf("nats: the server at %s must run with JetStream and take its user (address, user-from, password-from, tls): %w", p.at.Address, err)
}

// Report adds what was learned from the running server.
func (r *remote) Report(d *systems.Description) {
	d.Versions[program] = r.profile.reported
	if !r.profile.core && !r.profile.expires() {
		d.Lacks[systems.NeedTTL] = noTTL
		d.Claims = slices.DeleteFunc(slices.Clone(d.Claims), func(c evidence.Claim) bool { return c.Guarantee == evidence.ExpiryHonoured })
		d.Profile.Settings = slices.DeleteFunc(slices.Clone(d.Profile.Settings), func(s evidence.Setting) bool { return s.Name == "allow_msg_ttl" })
	}
}

// Restarted recreates a stream in memory, which ended with the server.
func (r *remote) Restarted(ctx context.Context) error {
	if r.profile.storage != jetstream.MemoryStorage {
		return nil
	}
	return r.makeStream(ctx)
}

// Stop deletes the run's stream with its consumers.
func (r *remote) Stop(ctx context.Context) error {
	if r.profile.core {
		return nil
	}
	return r.administer(ctx, func(js jetstream.JetStream) error { return js.DeleteStream(ctx, r.profile.stream) })
}
