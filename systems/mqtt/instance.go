package mqtt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/eclipse/paho.golang/packets"

	"github.com/custodymq/custody/containers"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
	mqttlink "github.com/custodymq/custody/links/mqtt"
	"github.com/custodymq/custody/systems"
)

// instance is one server in a process of its own. Safe for concurrent use.
type instance struct {
	clients
	*containers.Server
}

var (
	_ systems.System    = Profile{}
	_ systems.Installed = Profile{}
	_ systems.Contained = Profile{}
	_ systems.Connector = Profile{}
	_ systems.Networked = (*instance)(nil)
	_ systems.Process   = (*instance)(nil)
)

// serverName is the actor of the server's events and the name of its log.
const serverName = "broker"

// Start runs a server on a free port of 127.0.0.1 with its store in env.Dir.
func (p Profile) Start(ctx context.Context, env systems.Env) (systems.Instance, error) {
	if env.Defect != "" {
		return nil, fmt.Errorf("mqtt: no seeded defect %q: this adapter has none", env.Defect)
	}
	port, err := containers.FreePort()
	if err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(env.Dir)
	if err != nil {
		return nil, fmt.Errorf("mqtt: folder of the server: %w", err)
	}
	seats := seats{filepath.Join(dir, "seats")}
	store := filepath.Join(dir, "store")
	if err := errors.Join(os.Mkdir(seats.dir, 0o700), os.Mkdir(store, 0o700)); err != nil {
		return nil, fmt.Errorf("mqtt: folder of the server: %w", err)
	}
	start, err := p.server.prepare(p, port.Address, store)
	if err != nil {
		return nil, err
	}
	log, err := env.Log(serverName)
	if err != nil {
		return nil, fmt.Errorf("mqtt: log of the server: %w", err)
	}
	in := &instance{
		clients: clients{profile: p, address: port.Address, seats: seats},
		Server:  containers.NewServer(serverName, env.Sink, log, start, port),
	}
	if err := in.Restart(ctx); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	return in, nil
}

// Stop ends the server, whatever state it is in.
func (in *instance) Stop(ctx context.Context) error { return in.Close(ctx) }

func (in *instance) Address() string          { return in.address }
func (in *instance) Protocol() links.Protocol { return mqttlink.Protocol{} }

// server is one implementation of MQTT with its settings.
type server interface {
	system() string
	installed() error
	in(image string) (server, error)
	shown() []evidence.Setting
	versions() map[string]string
	// prepare writes what the server at this address needs into its folder, and
	// gives what starts it.
	prepare(p Profile, address, dir string) (containers.StartFunc, error)
}

// ready says whether a server answers.
func (p Profile) ready(ctx context.Context, address string) error {
	s, err := p.open(ctx, address, &packets.Connect{ClientID: "harness", CleanStart: true, Properties: &packets.Properties{}}, func() {})
	if err != nil {
		return err
	}
	s.over(errClosed)
	return nil
}
