package mqtt

import (
	"context"
	"encoding/json"
	"fmt"
	"net"

	"github.com/custodymq/custody/systems"
)

// clients opens sessions with a server that may run anywhere: in a child of
// this process, or in a child of its parent.
type clients struct {
	profile Profile
	address string
	seats   seats
}

// credentials of a server, which has no users.
type credentials struct {
	Address string `json:"address"`
	Seats   string `json:"seats"` // folder
}

// Credentials are where the server is, and where its consumers' seats are.
func (p Profile) Credentials(i systems.Instance) string {
	in, ok := i.(*instance)
	if !ok {
		return ""
	}
	text, err := json.Marshal(credentials{Address: in.address, Seats: in.seats.dir})
	if err != nil {
		return ""
	}
	return string(text)
}

// Connect gives clients of a server that another process has started.
func (p Profile) Connect(text string) (systems.Clients, error) {
	var c credentials
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return nil, fmt.Errorf("mqtt: credentials: %w", err)
	}
	if _, _, err := net.SplitHostPort(c.Address); err != nil || c.Seats == "" {
		return nil, fmt.Errorf("mqtt: credentials without an address and a folder of seats: %w", err)
	}
	return clients{profile: p, address: c.Address, seats: seats{c.Seats}}, nil
}

func (c clients) Producer(ctx context.Context, o systems.ProducerOptions) (systems.Producer, error) {
	if err := c.accepts(o.Mode); err != nil {
		return nil, err
	}
	producer, err := c.profile.producer(ctx, c.reached(o.Address), o.Session)
	if err != nil {
		return nil, err // a nil *producer is no nil Producer
	}
	return producer, nil
}

func (c clients) Consumer(ctx context.Context, o systems.ConsumerOptions) (systems.Consumer, error) {
	if err := c.accepts(o.Mode); err != nil {
		return nil, err
	}
	o.Address = c.reached(o.Address)
	consumer, err := c.consumer(ctx, o)
	if err != nil {
		return nil, err
	}
	return consumer, nil
}

// accepts refuses what a profile has one of, rather than ignore it.
func (c clients) accepts(mode systems.Mode) error {
	if mode != systems.DefaultMode {
		return fmt.Errorf("mqtt: no mode %q: a profile has one quality of service", mode)
	}
	return nil
}

// reached is the address of an actor's link, or the server's own without one.
func (c clients) reached(address string) string {
	if address == "" {
		return c.address
	}
	return address
}
