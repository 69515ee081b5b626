// Package simulated runs the reference broker in virtual time: its own engine,
// state machine, codec and seeded defects, over a network, store and clients in
// memory. The same seed gives the same history.
package simulated

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/custodymq/custody/broker"
	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/zmtp"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/systems/zeromq"
	"github.com/custodymq/custody/tasks"
)

// System is a simulated profile of the reference broker.
type System struct {
	zeromq.Profile
	// Disk keeps the rows in the broker's real store, whose files lie on a
	// simulated disk: whoever kills the broker cuts its power.
	Disk bool
	// Flush is when a commit is synced: as the profile has it. A test may set
	// another, and break the profile's claims.
	Flush store.Flush
	// Tamper changes the broker's configuration, for tests.
	Tamper func(*broker.Config)

	description systems.Description
}

// New simulates a profile with its rows in memory.
func New(p zeromq.Profile) System {
	return System{Profile: p, Flush: p.FlushPolicy(), description: describe(p, false)}
}

// OnDisk simulates a profile with its rows in files on a simulated disk.
func OnDisk(p zeromq.Profile) System {
	return System{Profile: p, Disk: true, Flush: p.FlushPolicy(), description: describe(p, true)}
}

// Of simulates a system, on a simulated disk or in memory; false if it cannot be
// simulated.
func Of(s systems.System, disk bool) (systems.System, bool) {
	p, ok := s.(zeromq.Profile)
	if disk {
		return OnDisk(p), ok && p.FlushPolicy() != store.FlushNever
	}
	return New(p), ok
}

// Simulated implements systems.Simulated.
func (System) Simulated() {}

// Describe is the profile's description without what does not exist in memory.
func (s System) Describe() systems.Description { return s.description }

func describe(p zeromq.Profile, disk bool) systems.Description {
	d := p.Describe()
	d.Lacks, d.Versions = maps.Clone(d.Lacks), map[string]string{"protocol": d.Versions["protocol"]}
	if d.Lacks == nil {
		d.Lacks = map[systems.Need]string{}
	}
	d.CutsPower = disk
	world := "simulated: virtual time; network, store and clients in memory"
	if disk {
		world = "simulated: virtual time; network and clients in memory; files on a disk that may lose, when the broker is killed, what was not synced"
	}
	d.Profile.Settings = append([]evidence.Setting{{Name: "world", Value: world}}, d.Profile.Settings...)
	for verb, operations := range d.StoreFaults {
		if disk {
			break
		}
		// No files in memory.
		d.StoreFaults[verb] = slices.DeleteFunc(slices.Clone(operations), zeromq.OfFiles)
		if len(d.StoreFaults[verb]) == 0 {
			delete(d.StoreFaults, verb)
		}
	}
	for need, why := range map[systems.Need]string{
		systems.NeedPlanting:    "the simulated store keeps no rows of older versions",
		systems.NeedDamage:      "the simulated store keeps no damaged rows",
		systems.NeedMoves:       "the simulated broker has one store, which nobody exchanges",
		systems.NeedStoreBackup: "the simulated broker has one store, of which nobody makes a copy",
		systems.NeedBytes:       "the simulated network carries frames whole",
		systems.NeedVolume:      "the simulated store lies in memory",
	} {
		if d.Lacks[need] == "" {
			d.Lacks[need] = why
		}
	}
	return d
}

// Start boots the broker in the simulated runtime.
func (s System) Start(_ context.Context, env systems.Env) (systems.Instance, error) {
	world, ok := env.Runtime.(*tasks.Simulated)
	if !ok {
		return nil, errors.New("simulated: the run's runtime is not simulated")
	}
	in := &instance{Simulated: world, system: s, sink: env.Sink, defect: env.Defect, heartbeat: s.Broker().Heartbeat,
		name: "custody", identity: "identity-1", hostname: "host-1", links: map[string]*link{}}
	in.database = &database{in: in, storage: &inMemory{wall: in.wall, fleeting: s.Flush == store.FlushNever}}
	if s.Disk {
		d, err := newDisk(in, env.Seed)
		if err != nil {
			return nil, err
		}
		in.database.storage = d
	}
	if err := in.boot(); err != nil {
		return nil, errors.Join(err, in.database.close())
	}
	return in, nil
}

// instance is the broker and its environment.
type instance struct {
	*tasks.Simulated
	system    System
	sink      evidence.Sink
	defect    string
	heartbeat time.Duration

	database                 *database
	broker                   *brokerProcess // nil while down
	boots                    int
	offset                   time.Duration // of the broker's clock
	name, identity, hostname string
	limits                   string           // of the next broker: see zeromq.Limited
	confirms                 bool             // of the next broker: its Acks after the delete
	links                    map[string]*link // by address
}

var (
	_ systems.Simulated     = System{}
	_ systems.Connector     = System{}
	_ systems.Networked     = (*instance)(nil)
	_ systems.Linker        = (*instance)(nil)
	_ systems.Process       = (*instance)(nil)
	_ systems.Inspector     = (*instance)(nil)
	_ systems.Administrator = (*instance)(nil)
	_ systems.StoreFaulter  = (*instance)(nil)
	_ systems.Clocked       = (*instance)(nil)
	_ systems.Configurable  = (*instance)(nil)
)

var background = context.Background()

// wall reads the broker's clock.
func (in *instance) wall() time.Time { return in.Wall().Add(in.offset) }

func (in *instance) partition() store.Partition {
	identity := in.identity
	if identity == "" {
		identity = in.hostname
	}
	return store.Partition{Connection: in.name, Identity: identity}
}

// Stop ends the broker, if it runs.
func (in *instance) Stop(ctx context.Context) error {
	if in.broker == nil {
		return in.database.close()
	}
	return errors.Join(in.Shutdown(ctx), in.database.close())
}

func (in *instance) Address() string          { return "simulated" }
func (in *instance) Protocol() links.Protocol { return zmtp.Protocol{} }

// Link makes an actor's link.
func (in *instance) Link(o links.Options) (links.Interruptible, error) {
	l := &link{in: in, opts: o}
	in.links[l.Addr()] = l
	return l, nil
}

func (in *instance) Running() bool { return in.broker != nil }

// order applies an order to the current process.
func (in *instance) order(do func(*brokerProcess)) error {
	if in.broker == nil {
		return process.ErrNotRunning
	}
	do(in.broker)
	return nil
}

func (in *instance) Kill(context.Context) error     { return in.order((*brokerProcess).kill) }
func (in *instance) Shutdown(context.Context) error { return in.order((*brokerProcess).shutdown) }
func (in *instance) Pause(context.Context) error    { return in.order((*brokerProcess).pause) }
func (in *instance) Continue(context.Context) error { return in.order((*brokerProcess).resume) }

func (in *instance) Restart(ctx context.Context) error {
	if err := in.Sleep(ctx, time.Millisecond+in.Jitter()); err != nil {
		return err
	}
	return in.boot()
}

func (in *instance) Rows(context.Context) (evidence.Snapshot, error) { return in.database.rows() }

func (in *instance) SetClock(_ context.Context, offset time.Duration) error {
	in.offset = offset
	in.database.stale = true
	return nil
}

// Configure changes a setting at the next start.
func (in *instance) Configure(_ context.Context, setting, value string) error {
	switch setting {
	case "identity":
		in.identity = value
		if value == "unset" {
			in.identity = ""
		}
	case "hostname":
		in.hostname = value
	case "name":
		in.name = value
	case "limits":
		in.limits = value
	case "acks":
		in.confirms = value == "confirmed"
	case "users": // it admits everybody
	case "identity-now": // read at the start only
	default:
		return fmt.Errorf("simulated: no setting %q", setting)
	}
	in.database.stale = true
	return nil
}

// ArmStore arms a fault in the running broker's store.
func (in *instance) ArmStore(_ context.Context, f systems.StoreFault, fired func(systems.StoreFired)) (func(context.Context) error, error) {
	if in.broker == nil {
		return nil, process.ErrExited
	}
	hook := in.broker.hook
	armed, err := hook.arm(f, fired)
	if err != nil {
		return nil, err
	}
	return func(context.Context) error {
		hook.heal(armed)
		return nil
	}, nil
}

// DeadLetters are the dead rows of the broker's own partition.
func (in *instance) DeadLetters(context.Context) ([]evidence.StoredRow, error) {
	s, err := in.database.rows()
	var dead []evidence.StoredRow
	for _, r := range s.Rows {
		if r.State == evidence.RowDead && r.Partition == s.Partition {
			dead = append(dead, r)
		}
	}
	return dead, err
}

func (in *instance) Redrive(ctx context.Context, messageID string) error {
	return in.admin(ctx, "dlq.redrive", messageID)
}

func (in *instance) Discard(ctx context.Context, messageID string) error {
	return in.admin(ctx, "dlq.discard", messageID)
}
