package rabbitmq

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	client "github.com/rabbitmq/amqp091-go"

	"github.com/custodymq/custody/systems"
)

// clients opens sessions with a server, whichever process runs it. Safe for
// concurrent use.
type clients struct {
	profile Profile
	address string
	prefix  string                      // of all names of this run
	settle  func(context.Context) error // runs after a queue was declared; may be nil

	mu          sync.Mutex
	named       map[string]bool // destinations in use
	made        map[string]bool // destinations with a queue; true: since the server's start
	lastMade    time.Time
	subscribers map[string]string // the logical subscriber of each destination
}

func newClients(p Profile, address, prefix string) *clients {
	return &clients{
		profile: p, address: address, prefix: prefix,
		named: make(map[string]bool), made: make(map[string]bool), subscribers: make(map[string]string),
	}
}

// Credentials are the address of the server and the prefix of the run's names.
// User and password are not among them: the profile holds those.
func (p Profile) Credentials(in systems.Instance) string {
	if c, ok := in.(interface{ part() *clients }); ok {
		return c.part().address + " " + c.part().prefix
	}
	return ""
}

// part is common to all kinds of instances.
func (c *clients) part() *clients { return c }

// Connect returns clients of a server that another process started.
func (p Profile) Connect(credentials string) (systems.Clients, error) {
	address, prefix, ok := strings.Cut(credentials, " ")
	if _, _, err := net.SplitHostPort(address); err != nil || !ok || prefix == "" {
		return nil, fmt.Errorf("rabbitmq: malformed credentials %q: want address and prefix, as returned by Credentials", credentials)
	}
	return newClients(p, address, prefix), nil
}

func (c *clients) Producer(ctx context.Context, o systems.ProducerOptions) (systems.Producer, error) {
	if err := systems.OnlyDefaultMode("rabbitmq", o.Mode); err != nil {
		return nil, err
	}
	return systems.ProducerOf(c.producer(ctx, o))
}

func (c *clients) Consumer(ctx context.Context, o systems.ConsumerOptions) (systems.Consumer, error) {
	if err := systems.OnlyDefaultMode("rabbitmq", o.Mode); err != nil {
		return nil, err
	}
	if err := c.subscribes(o.Destination, o.Subscription); err != nil {
		return nil, err
	}
	return systems.ConsumerOf(c.consumer(ctx, o))
}

// subscribes refuses a second logical subscriber: all consumers of a queue
// compete.
func (c *clients) subscribes(destination, subscription string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if other, taken := c.subscribers[destination]; taken && other != subscription {
		return fmt.Errorf("rabbitmq: subscribe %s to %s: a queue has one logical subscriber, which is %s", subscription, destination, other)
	}
	c.subscribers[destination] = subscription
	return nil
}

// endpoint is the server as an actor reaches it: by its link, if it has one.
func (c *clients) endpoint(link string) systems.Endpoint {
	at := c.profile.at
	at.Address = cmp.Or(link, c.address)
	return at
}

// queueOf returns and records the queue of a destination, on the default
// exchange.
func (c *clients) queueOf(destination string) (string, error) {
	name := c.prefix + destination
	if destination == "" || len(name)+len(deadSuffix) > maxShortString {
		return "", fmt.Errorf("rabbitmq: destination %q: it must have 1 to %d bytes", destination, maxShortString-len(c.prefix)-len(deadSuffix))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.named[destination] = true
	return name, nil
}

// queues returns the queues of a set of destinations.
func (c *clients) queues(destinations map[string]bool) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []string
	for destination := range destinations {
		names = append(names, c.prefix+destination)
	}
	return names
}

// administer runs do on a connection of its own, bypassing all links.
func (c *clients) administer(ctx context.Context, do func(*client.Channel) error) error {
	s, err := dial(ctx, c.endpoint(""), "administrator", c.profile.scaled(openTimeout), do)
	if err != nil {
		return err
	}
	return s.Close(ctx)
}

// makeQueue declares the queues of a destination and of its dead letters, once.
func (c *clients) makeQueue(ctx context.Context, destination string) error {
	name, err := c.queueOf(destination)
	if err != nil {
		return err
	}
	c.mu.Lock()
	made := c.made[destination]
	c.mu.Unlock()
	if made {
		return nil
	}
	err = c.administer(ctx, func(ch *client.Channel) error { return c.profile.declare(ch, name) })
	if err == nil && c.settle != nil {
		err = c.settle(ctx)
	}
	if err != nil {
		return fmt.Errorf("rabbitmq: declare queue %s: %w", name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.made[destination], c.lastMade = true, time.Now()
	return nil
}

// forgetQueues makes makeQueue declare again: transient queues end with the
// server.
func (c *clients) forgetQueues() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for destination := range c.made {
		c.made[destination] = false
	}
}

// deadSuffix marks the queue of a destination's dead letters.
const deadSuffix = "!dead"

// declare declares a queue as the profile defines it.
func (p Profile) declare(ch *client.Channel, name string) error {
	arguments := client.Table{"x-queue-type": p.queueType}
	for argument, value := range p.arguments {
		arguments[argument] = value
	}
	if p.deadLetters {
		arguments["x-dead-letter-exchange"] = "" // the default exchange
		arguments["x-dead-letter-routing-key"] = name + deadSuffix
		dead := client.Table{"x-queue-type": "classic"}
		if expires, ok := p.arguments["x-expires"]; ok {
			dead["x-expires"] = expires
		}
		if _, err := ch.QueueDeclare(name+deadSuffix, true, false, false, false, dead); err != nil {
			return err
		}
	}
	_, err := ch.QueueDeclare(name, !p.transientQueue, false, false, false, arguments)
	return err
}
