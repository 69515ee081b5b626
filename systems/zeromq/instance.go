package zeromq

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/custodymq/custody/broker/client"
	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/wire"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/zmtp"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems"
)

// instance is a broker in a child process. Safe for concurrent use.
type instance struct {
	clients
	*process.Server
	adopt    func(io.Reader, string)
	database database
	flush    string // of its connection; empty: the driver's own

	mu       sync.Mutex
	config   brokerConfig
	identity string         // the environment variable; empty is unset
	child    *process.Child // of the last start
	fired    map[string]func(systems.StoreFired)
	taken    map[string][]string // by partition: those of which it has the rows, by migration
	swapped  bool                // the rows are in the spare place
	damaged  map[string]bool     // message IDs of rows that were planted so
	backup   string              // its file
	backedUp string              // the checkpoint of which the file has the rows
}

var (
	_ systems.Connector     = Profile{}
	_ systems.Networked     = (*instance)(nil)
	_ systems.Process       = (*instance)(nil)
	_ systems.Inspector     = (*instance)(nil)
	_ systems.Administrator = (*instance)(nil)
	_ systems.StoreFaulter  = (*instance)(nil)
	_ systems.StoreLinked   = (*instance)(nil)
	_ systems.Clocked       = (*instance)(nil)
	_ systems.Configurable  = (*instance)(nil)
	_ systems.Planter       = (*instance)(nil)
	_ systems.StoreMover    = (*instance)(nil)
	_ systems.StoreBackup   = (*instance)(nil)
	_ systems.Resolver      = (*producer)(nil)
	_ systems.Rejecter      = (*delivery)(nil)
)

// actor of the broker's events and name of its log.
const actor = "broker"

// Start runs a broker on a free port with its database in env.Dir.
func (p Profile) Start(ctx context.Context, env systems.Env) (systems.Instance, error) {
	port, err := process.FreePort()
	if err != nil {
		return nil, err
	}
	log, err := env.Log(actor)
	if err != nil {
		return nil, fmt.Errorf("zeromq: the broker's log: %w", err)
	}
	rows, err := p.open(ctx, env)
	if err != nil {
		return nil, errors.Join(err, log.Close(), port.Close())
	}
	token := rand.Text()
	in := &instance{clients: clients{profile: p, token: token, address: port.Address}, adopt: env.Adopt,
		database: rows, backup: filepath.Join(env.Dir, "backup.db"), identity: "identity-1", fired: map[string]func(systems.StoreFired){}, taken: map[string][]string{}, damaged: map[string]bool{}}
	if p.flush == store.FlushPeriodic {
		in.flush = p.flush.String()
	}
	defect := env.Defect
	if defect == GapDefect {
		defect = "" // the servers have it
	}
	in.config = brokerConfig{Name: "custody", Listen: port.Address, Token: token, Hostname: "host-1", History: p.history, Scale: p.scale, Defect: defect, Base: env.Base}
	in.Server = process.NewServer(actor, env.Sink, log, in.start, port)
	if err := in.Restart(ctx); err != nil {
		return nil, errors.Join(err, log.Close(), rows.release(ctx))
	}
	return in, nil
}

// Stop ends the broker's process, whatever state it is in.
func (in *instance) Stop(ctx context.Context) error {
	return errors.Join(in.Close(ctx), in.database.release(ctx))
}

func (in *instance) Address() string          { return in.address }
func (in *instance) Protocol() links.Protocol { return zmtp.Protocol{} }

func (in *instance) StoreProtocol() links.Protocol { return in.database.wire() }

func (in *instance) StoreProcess() systems.Process {
	p, _ := in.database.(systems.Process) // a file is none
	return p
}

// start starts the broker's process, which must not be running.
func (in *instance) start(ctx context.Context, log io.Writer, exited func(process.Exit)) (process.Process, []string, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.config.Connections = in.connections()
	var env []string
	if in.identity != "" {
		env = []string{store.IdentityVariable + "=" + in.identity}
	}
	child, err := process.StartChild(ctx, process.ChildOptions{Role: RoleName, Config: in.config, Env: env, Log: log,
		Events: func(r io.Reader) { in.adopt(r, actor) }, Exited: exited,
	}, in.notified)
	if err != nil {
		return nil, nil, fmt.Errorf("zeromq: start the broker on %s: %w", in.address, err)
	}
	in.child = child
	return child, append([]string{in.partition()}, in.taken[in.partition()]...), nil
}

func (in *instance) partition() string {
	id := in.identity
	if id == "" {
		id = in.config.Hostname
	}
	return store.Partition{Connection: in.config.Name, Identity: id}.String()
}

func (in *instance) notified(note string, value json.RawMessage) {
	var f storeFired
	if note != "fired" || json.Unmarshal(value, &f) != nil {
		return
	}
	in.mu.Lock()
	fired := in.fired[f.Label]
	in.mu.Unlock()
	if fired != nil {
		fired(f.Fired)
	}
}

// ArmStore arms a fault of the store's server, or in the store of the broker's
// process.
func (in *instance) ArmStore(ctx context.Context, f systems.StoreFault, fired func(systems.StoreFired)) (func(context.Context) error, error) {
	if strike := in.database.faults()[f.Verb]; strike != nil {
		heal, err := strike(ctx)
		if err == nil {
			fired(systems.StoreFired{})
		}
		return heal, err
	}
	in.mu.Lock()
	child := in.child
	in.fired[f.Label] = fired
	in.mu.Unlock()
	if err := child.Call(ctx, "arm", f, nil); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		err := child.Call(ctx, "heal", f.Label, nil)
		if errors.Is(err, process.ErrExited) {
			return nil // the fault ended with its process
		}
		return err
	}, nil
}

// SetClock offsets the broker's clock. The offset survives restarts.
func (in *instance) SetClock(ctx context.Context, offset time.Duration) error {
	in.mu.Lock()
	in.config.Clock = offset
	child := in.child
	in.mu.Unlock()
	if err := child.Call(ctx, "clock", offset, nil); !errors.Is(err, process.ErrExited) {
		return err
	}
	return nil // applied at the next start
}

// settings are those of Configure, and their values where these are given:
// identity is the environment variable ("unset" removes it), identity-now that of
// the running process; limits are those of Limited; acks are "confirmed" after the
// delete.
var settings = map[string][]string{
	"identity": nil, "identity-now": nil, "hostname": nil, "name": nil,
	"limits": slices.Sorted(maps.Keys(limitsOf)), "acks": {"confirmed", "default"}, "users": {"default", "several"},
}

// Configure changes a setting at the next start.
func (in *instance) Configure(ctx context.Context, setting, value string) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	switch setting {
	case "identity":
		in.identity = value
		if value == "unset" {
			in.identity = ""
		}
	case "hostname":
		in.config.Hostname = value
	case "name":
		in.config.Name = value
	case "limits":
		in.config.Limits = value
	case "acks":
		in.config.Confirms = value == "confirmed"
	case "users":
		in.config.Users = value == "several"
	case "identity-now":
		return in.child.Call(ctx, "setenv", value, nil)
	default:
		return fmt.Errorf("zeromq: no setting %q", setting)
	}
	return nil
}

// changeUsers has the running broker take up other users.
func (in *instance) changeUsers(ctx context.Context) error {
	in.mu.Lock()
	child, token := in.child, in.config.Token
	in.mu.Unlock()
	return child.Call(ctx, "users", token, nil)
}

func (in *instance) admin(ctx context.Context, command, messageID string) (wire.Message, error) {
	conn, err := in.dial(ctx, "administrator", in.address)
	if err != nil {
		return wire.Message{}, err
	}
	defer conn.Close()
	m, err := conn.Admin(ctx, command, messageID)
	if err == nil && m.Answer != wire.Accepted {
		err = fmt.Errorf("%w: %s", client.ErrRefused, m.Reason)
	}
	if err != nil {
		return m, fmt.Errorf("zeromq: %s %s: %w", command, messageID, err)
	}
	return m, nil
}

func (in *instance) Redrive(ctx context.Context, messageID string) error {
	_, err := in.admin(ctx, "dlq.redrive", messageID)
	return err
}

func (in *instance) Discard(ctx context.Context, messageID string) error {
	_, err := in.admin(ctx, "dlq.discard", messageID)
	return err
}

// DeadLetters are the dead rows of the broker's own partition.
func (in *instance) DeadLetters(ctx context.Context) ([]evidence.StoredRow, error) {
	s, err := in.Rows(ctx)
	if err != nil {
		return nil, err
	}
	var dead []evidence.StoredRow
	for _, r := range s.Rows {
		if r.State == evidence.RowDead && r.Partition == s.Partition {
			dead = append(dead, r)
		}
	}
	return dead, nil
}
