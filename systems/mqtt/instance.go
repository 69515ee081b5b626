package mqtt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/eclipse/paho.golang/packets"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems"
)

// instance is a server in a process of its own. Safe for concurrent use.
type instance struct {
	clients
	*process.Server
}

var (
	_ systems.System    = Profile{}
	_ systems.Installed = Profile{}
	_ systems.Contained = Profile{}
	_ systems.Connector = Profile{}
	_ systems.Remote    = Profile{}
	_ systems.Networked = (*instance)(nil)
	_ systems.Process   = (*instance)(nil)
)

// serverName is the actor of the server's events and the name of its log.
const serverName = "broker"

// Start runs a server on a free port of 127.0.0.1 with its store in env.Dir.
func (p Profile) Start(ctx context.Context, env systems.Env) (systems.Instance, error) {
	if err := env.NoDefects("mqtt"); err != nil {
		return nil, err
	}
	if p.at.Address != "" {
		return p.reach(ctx, env)
	}
	port, err := process.FreePort()
	if err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(env.Dir)
	if err != nil {
		return nil, fmt.Errorf("mqtt: folder of the server: %w", err)
	}
	seats := seats{dir: filepath.Join(dir, "seats"), run: systems.RunName()}
	store := filepath.Join(dir, "store")
	if err := errors.Join(os.Mkdir(seats.dir, 0o700), os.Mkdir(store, 0o700)); err != nil {
		return nil, fmt.Errorf("mqtt: folder of the server: %w", err)
	}
	start, shows, err := p.server.prepare(p, port.Address, store)
	if err != nil {
		return nil, err
	}
	log, err := env.ServerLog("mqtt", serverName)
	if err != nil {
		return nil, err
	}
	in := &instance{
		clients: clients{profile: p, address: port.Address, seats: seats},
		Server:  process.NewServer(serverName, env.Sink, log, start, port),
	}
	if err := in.Restart(ctx); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	if shows != nil {
		return &inspected{in, shows}, nil
	}
	return in, nil
}

// Stop ends the server in any state.
func (in *instance) Stop(ctx context.Context) error { return in.Close(ctx) }

// server is an MQTT server with its settings.
type server interface {
	system() string
	installed() error
	in(image string) (server, error)
	shown() []evidence.Setting
	versions() map[string]string
	oldest() map[string]string // oldest supported versions
	// hides says why the server's stored messages cannot be listed; empty if
	// prepare returns a listing.
	hides() string
	// prepare writes the server's configuration into dir and returns what
	// starts it and what lists its stored messages.
	prepare(p Profile, address, dir string) (process.StartFunc, func(context.Context) ([]kept, error), error)
}

// drives returns an error if this version is not supported.
func drives(s server, version string) error {
	for name, oldest := range s.oldest() {
		if err := systems.TooOld(name, version, oldest); err != nil {
			return fmt.Errorf("mqtt: %w", err)
		}
	}
	return nil
}

// clear opens and ends a clean session of a client, which discards its earlier
// session. An error means that the server does not respond.
func (p Profile) clear(ctx context.Context, address, clientID string) error {
	s, err := p.open(ctx, address, &packets.Connect{ClientID: clientID, CleanStart: true, Properties: &packets.Properties{}}, func() {})
	if err != nil {
		return err
	}
	s.over(errClosed)
	return nil
}
