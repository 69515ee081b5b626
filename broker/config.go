package broker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/custodymq/custody/broker/access"
	"github.com/custodymq/custody/broker/admission"
	"github.com/custodymq/custody/broker/core"
	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/wire"
)

// Config of a Server. Every zero value stands for the default that is named.
type Config struct {
	Name        string      // told to clients and written to the log; "broker"
	Listen      string      // TCP address; "127.0.0.1:0"
	AllowRemote bool        // Listen may be another address than loopback
	TLS         *tls.Config // of the listener, at least TLS 1.3; nil: in the clear

	// Token is what clients must say in their Hello, at least access.MinToken
	// bytes; whoever does may do everything. Users, in its place, are known by
	// tokens or certificates of their own, and each may do what is theirs. With
	// neither everybody may do everything.
	Token string
	Users *access.Users

	// Store keeps at-least-once messages. Without one the broker is
	// at-most-once only, and refuses the other mode at the call. The server
	// does not close it.
	Store store.Store

	// Connect opens the store of another connection of this broker's lists, which
	// the Admin command swap moves the rows to; nil refuses it. The server closes
	// what it has opened, and the Store above once it was swapped.
	Connect    func(ctx context.Context, connection string) (store.Store, error)
	SwapWithin time.Duration // how long writes may wait for a swap; 1 min

	MaxAttempts       int           // deliveries of one message before it is dead-lettered; 5
	VisibilityTimeout time.Duration // a delivery may stay unanswered for so long; 30 s
	Backoff           core.Backoff  // after a NACK that names no delay; 100 ms doubling to 10 s
	DefaultTTL        time.Duration // of a message that names none; 24 h
	ExpiryInterval    time.Duration // between two purges of expired rows; 30 s
	SettledWindow     time.Duration // IDs of finished messages are kept for so long; DefaultSettledWindow
	StoreRetry        time.Duration // before a failed delete, mark or attempt is tried again; 250 ms
	KeepHistory       bool          // mark settled rows processed instead of deleting them
	// ConfirmAfterDelete answers an ACK when the delete is durable, instead of
	// when delivery has stopped.
	ConfirmAfterDelete bool

	Heartbeat    time.Duration // both ways; a peer silent for three of them is gone; 5 s
	Handshake    time.Duration // for a new connection, until its Hello is here; 5 s
	WriteTimeout time.Duration // for one write to a peer; 5 s
	Outgoing     int           // bytes that may wait for a peer that does not read; 16 MiB, at least two payloads
	Connections  int           // at once, of those that have said Hello; 1024
	Strangers    int           // at once, of those that have not; 256, of which a quarter for one address
	Limits       core.Limits   // each field has a default, see limits; InFlightBytes is half of Outgoing

	// Memory is how many bytes the broker may hold: half of it messages, topics
	// and subscriptions, a sixteenth the IDs of finished messages, an eighth what
	// was read from peers and is not handled yet, a quarter what waits to be
	// written to them. The process takes more: Go's collector lets garbage grow
	// to the size of what is in use, unless GOMEMLIMIT says otherwise. 0 is a
	// quarter of the memory of the machine, or of its cgroup.
	Memory int64

	Clock func() time.Time // the wall clock; time.Now
	Log   *slog.Logger     // discarded if nil
	Seams Seams
}

// Seams are where a seeded defect (package defects) takes hold of a server: it
// sees the store or the state machine through what it puts around it.
type Seams struct {
	Store   func(store.Store) store.Store
	Machine func(core.Machine) core.Machine
	// Swap is told of each step of a swap before and after it, and ends it with
	// an error.
	Swap func(step string) error
}

// limits are the defaults.
var limits = core.Limits{
	Sessions:      1024,
	Subscriptions: 256,
	InFlight:      64 << 10,
	PublishWindow: 4096,
	Messages:      4 << 20,
	Topics:        64 << 10,
	SettledIDs:    1 << 20,
	Errors:        16,
	Listeners:     1024,
	FanOut:        8192,
}

// Shares of Config.Memory.
const (
	shareMessages = 2
	shareSettled  = 16
	shareIncoming = 8
	shareOutgoing = 4
	leastMemory   = 64 << 20
)

// maxTTL is where a time to live is taken for a mistake of its unit.
const maxTTL = 10 * 365 * 24 * time.Hour

func or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// DefaultSettledWindow is how long the IDs of finished messages are kept, unless
// Config says otherwise.
const DefaultSettledWindow = time.Hour

// withDefaults fills in what was left out, and refuses what cannot work.
func (c Config) withDefaults() (Config, error) {
	c.Name = or(c.Name, "broker")
	c.Listen = or(c.Listen, "127.0.0.1:0")
	c.MaxAttempts = or(c.MaxAttempts, 5)
	c.VisibilityTimeout = or(c.VisibilityTimeout, 30*time.Second)
	c.Backoff.Base = or(c.Backoff.Base, 100*time.Millisecond)
	c.Backoff.Max = max(or(c.Backoff.Max, 10*time.Second), c.Backoff.Base)
	c.DefaultTTL = or(c.DefaultTTL, 24*time.Hour)
	c.ExpiryInterval = or(c.ExpiryInterval, 30*time.Second)
	c.SettledWindow = or(c.SettledWindow, DefaultSettledWindow)
	c.StoreRetry = or(c.StoreRetry, 250*time.Millisecond)
	c.SwapWithin = or(c.SwapWithin, time.Minute)
	if c.Seams.Swap == nil {
		c.Seams.Swap = func(string) error { return nil }
	}
	c.Heartbeat = or(c.Heartbeat, 5*time.Second)
	c.Handshake = or(c.Handshake, 5*time.Second)
	c.WriteTimeout = or(c.WriteTimeout, 5*time.Second)
	c.Outgoing = or(c.Outgoing, 16<<20)
	c.Connections = or(c.Connections, 1024)
	c.Strangers = or(c.Strangers, 256)
	l := &c.Limits
	for _, f := range []struct {
		v        *int
		standard int
	}{
		{&l.Sessions, limits.Sessions}, {&l.Subscriptions, limits.Subscriptions}, {&l.InFlight, limits.InFlight},
		{&l.InFlightBytes, c.Outgoing / 2},
		{&l.PublishWindow, limits.PublishWindow}, {&l.Messages, limits.Messages}, {&l.Topics, limits.Topics},
		{&l.SettledIDs, limits.SettledIDs}, {&l.Errors, limits.Errors}, {&l.Listeners, limits.Listeners}, {&l.FanOut, limits.FanOut},
	} {
		*f.v = or(*f.v, f.standard)
		if *f.v < 0 {
			return c, errors.New("broker: config: a limit must not be negative")
		}
	}
	c.Memory = or(c.Memory, DefaultMemory())
	l.Memory = or(l.Memory, c.Memory/shareMessages)
	l.SettledBytes = or(l.SettledBytes, c.Memory/shareSettled)
	if c.Clock == nil {
		c.Clock = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c, c.validate()
}

func (c *Config) validate() error {
	for _, d := range []struct {
		name string
		v    time.Duration
	}{
		{"VisibilityTimeout", c.VisibilityTimeout}, {"Backoff.Base", c.Backoff.Base}, {"DefaultTTL", c.DefaultTTL},
		{"ExpiryInterval", c.ExpiryInterval}, {"SettledWindow", c.SettledWindow}, {"StoreRetry", c.StoreRetry},
		{"SwapWithin", c.SwapWithin}, {"Heartbeat", c.Heartbeat}, {"Handshake", c.Handshake}, {"WriteTimeout", c.WriteTimeout},
	} {
		if d.v < 0 {
			return fmt.Errorf("broker: config: %s is %v, must be positive", d.name, d.v)
		}
	}
	switch {
	case c.MaxAttempts < 0:
		return fmt.Errorf("broker: config: MaxAttempts is %d, must be at least 1", c.MaxAttempts)
	case c.DefaultTTL > maxTTL:
		return fmt.Errorf("broker: config: DefaultTTL is %v, over the limit of %v", c.DefaultTTL, maxTTL)
	case c.Memory < leastMemory:
		return fmt.Errorf("broker: config: Memory is %d bytes, must be at least %d MiB", c.Memory, leastMemory>>20)
	case c.Outgoing < 2*wire.MaxPayload:
		return fmt.Errorf("broker: config: Outgoing is %d bytes, must be at least two payloads (%d)", c.Outgoing, 2*wire.MaxPayload)
	case c.Connections < 0 || c.Strangers < 0:
		return errors.New("broker: config: Connections and Strangers must be positive")
	case c.Token != "" && c.Users != nil:
		return errors.New("broker: config: Token and Users exclude each other: give the holder of the token an entry among the users")
	case c.Limits.PublishWindow > wire.MaxCredit || c.Limits.InFlight > wire.MaxCredit:
		return fmt.Errorf("broker: config: PublishWindow and InFlight are at most %d", wire.MaxCredit)
	case len(c.Name) > wire.MaxID || len(c.Token) > wire.MaxToken:
		return fmt.Errorf("broker: config: Name has at most %d bytes, Token %d", wire.MaxID, wire.MaxToken)
	}
	if c.Token != "" {
		if err := access.CheckToken(c.Token); err != nil {
			return fmt.Errorf("broker: config: %w", err)
		}
	}
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return fmt.Errorf("broker: config: Listen: %w", err)
	}
	if ip := net.ParseIP(host); !c.AllowRemote && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("broker: config: Listen %q is not a loopback address; set AllowRemote if it is meant to be reached from elsewhere", c.Listen)
	}
	return nil
}

// gate bounds strangers. The worst penalty ends before the deadline of the
// handshake, so that it is answered.
func (c *Config) gate() admission.Limits {
	return admission.Limits{
		Places: c.Strangers, PerHost: max(1, c.Strangers/4), Offenders: 4096,
		Penalty: min(10*time.Millisecond, c.Handshake/2), Worst: c.Handshake * 4 / 5, Forgive: time.Minute,
	}
}

func (c *Config) core(prefix string) core.Config {
	durable, says := c.Store.(store.Durable)
	return core.Config{
		Name: c.Name, IDPrefix: prefix, Start: c.Clock(), HasStore: c.Store != nil,
		MaxAttempts: c.MaxAttempts, Visibility: c.VisibilityTimeout, Backoff: c.Backoff,
		DefaultTTL: c.DefaultTTL, MaxTTL: maxTTL, ExpiryEvery: c.ExpiryInterval,
		StoreRetry: c.StoreRetry, Settled: c.SettledWindow, Heartbeat: c.Heartbeat,
		StoreInMemory: says && durable.Flush() == store.FlushNever, KeepHistory: c.KeepHistory, ConfirmAfterDelete: c.ConfirmAfterDelete, Limits: c.Limits,
	}
}
