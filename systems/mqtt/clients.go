package mqtt

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"

	"github.com/custodymq/custody/links"
	mqttlink "github.com/custodymq/custody/links/mqtt"
	"github.com/custodymq/custody/systems"
)

// clients opens sessions with a server, whichever process runs it.
type clients struct {
	profile Profile
	address string
	seats   seats
}

// part is common to all kinds of instances.
func (c clients) part() clients { return c }

func (c clients) Address() string        { return c.address }
func (clients) Protocol() links.Protocol { return mqttlink.Protocol{} }

// credentials of a run's share of a server.
type credentials struct {
	Address string `json:"address"`
	Seats   string `json:"seats"` // folder
	Run     string `json:"run"`
}

// Credentials are the address of the server and the directory of the run's
// seats. User and password are not among them: the profile holds those.
func (p Profile) Credentials(i systems.Instance) string {
	in, ok := i.(interface{ part() clients })
	if !ok {
		return ""
	}
	c := in.part()
	text, err := json.Marshal(credentials{Address: c.address, Seats: c.seats.dir, Run: c.seats.run})
	if err != nil {
		return ""
	}
	return string(text)
}

// Connect returns clients of a server that another process started.
func (p Profile) Connect(text string) (systems.Clients, error) {
	var c credentials
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return nil, fmt.Errorf("mqtt: credentials: %w", err)
	}
	if _, _, err := net.SplitHostPort(c.Address); err != nil || c.Seats == "" || c.Run == "" {
		return nil, fmt.Errorf("mqtt: malformed credentials: want address, seats and run, as returned by Credentials: %w", err)
	}
	return clients{profile: p, address: c.Address, seats: seats{dir: c.Seats, run: c.Run}}, nil
}

func (c clients) Producer(ctx context.Context, o systems.ProducerOptions) (systems.Producer, error) {
	if err := systems.OnlyDefaultMode("mqtt", o.Mode); err != nil {
		return nil, err
	}
	return systems.ProducerOf(c.producer(ctx, o))
}

func (c clients) Consumer(ctx context.Context, o systems.ConsumerOptions) (systems.Consumer, error) {
	if err := systems.OnlyDefaultMode("mqtt", o.Mode); err != nil {
		return nil, err
	}
	o.Address = cmp.Or(o.Address, c.address)
	return systems.ConsumerOf(c.consumer(ctx, o))
}

// topic maps a destination below the run's name, since the server may have
// other users.
func (c clients) topic(destination string) string { return c.seats.run + "/" + destination }

// destination is the inverse of topic.
func (c clients) destination(topic string) string { return strings.TrimPrefix(topic, c.seats.run+"/") }
