package mqtt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// remote is one run's topics and sessions on an external server. Safe for
// concurrent use.
type remote struct {
	clients
	version string // as the server reports it; may be empty
}

var (
	_ systems.Networked = (*remote)(nil)
	_ systems.Reporter  = (*remote)(nil)
)

// At returns the profile on an external server.
func (p Profile) At(e systems.Endpoint) systems.System {
	p.at = e
	return p
}

// reach connects to the external server and records its version.
func (p Profile) reach(ctx context.Context, env systems.Env) (systems.Instance, error) {
	dir, err := filepath.Abs(filepath.Join(env.Dir, "seats"))
	if err == nil {
		err = os.Mkdir(dir, 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("mqtt: folder of the run: %w", err)
	}
	r := &remote{clients: clients{profile: p, address: p.at.Address, seats: seats{dir: dir, run: systems.RunName()}}}
	if err := p.clear(ctx, p.at.Address, r.seats.run); err != nil {
		return nil, fmt.Errorf("mqtt: the server at %s must run, speak MQTT %s and take its user (address, user-from, password-from, tls): %w", p.at.Address, p.version(), err)
	}
	said := "the server says nothing in " + versionTopic
	if r.version = r.says(ctx); r.version != "" {
		said = fmt.Sprintf("the server says %q in %s", r.version, versionTopic)
	}
	env.Sink.Record(evidence.Event{Kind: evidence.Noted, Actor: serverName, Reason: said})
	if err := drives(p.server, r.version); err != nil {
		return nil, err
	}
	return r, nil
}

// Report adds what was learned from the running server.
func (r *remote) Report(d *systems.Description) {
	if r.version != "" {
		d.Versions["server"] = r.version
	}
}

// versionTopic is where Mosquitto and compatible servers publish their version.
const versionTopic = "$SYS/broker/version"

// versionTimeout bounds the wait for it.
const versionTimeout = time.Second

// says returns the version that the server publishes, because MQTT has no field
// for it; it may be empty. It is read with MQTT 5, where nothing precedes the
// payload.
func (r *remote) says(ctx context.Context) string {
	p := r.profile
	p.v311 = false
	s, err := p.open(ctx, r.address, &packets.Connect{ClientID: r.seats.run, CleanStart: true, Properties: &packets.Properties{}}, func() {})
	if err != nil {
		return ""
	}
	said := make(chan string, 1)
	s.serve(p.scaled(heartbeat), func(packet *packets.ControlPacket) error {
		if m, ok := packet.Content.(*packets.Publish); ok {
			select {
			case said <- string(m.Payload):
			default:
			}
		}
		return nil
	})
	defer s.loops.Wait()
	defer s.over(errClosed)
	ctx, cancel := context.WithTimeout(ctx, p.scaled(versionTimeout))
	defer cancel()
	if _, err := s.write(&packets.Subscribe{PacketID: subscribeID, Properties: &packets.Properties{}, Subscriptions: []packets.SubOptions{{Topic: versionTopic}}}); err != nil {
		return ""
	}
	select {
	case version := <-said:
		return fmt.Sprintf("%.80s", version)
	case <-s.gone:
	case <-ctx.Done():
	}
	return ""
}

// Stop removes the run's sessions. No message of the run is retained.
func (r *remote) Stop(ctx context.Context) error {
	taken, err := r.seats.taken()
	for clientID := range taken {
		err = errors.Join(err, r.profile.clear(ctx, r.address, clientID))
	}
	return err
}
