package zeromq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/ncruces/go-sqlite3"

	"github.com/custodymq/custody/broker"
	"github.com/custodymq/custody/broker/defects"
	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/faulty"
	"github.com/custodymq/custody/broker/store/open"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems"
)

// RoleName of the broker's process.
const RoleName = "broker"

// brokerConfig is passed to the broker's process.
type brokerConfig struct {
	Name        string
	Listen      string
	Token       string
	Hostname    string // used instead of the machine's own
	Connections store.Connections
	History     bool
	Limits      string // see Limited
	Confirms    bool
	Users       bool // several: see usersOf
	Scale       float64
	Defect      string
	Base        int64
	Clock       time.Duration
}

// vfsName is the fault-injecting VFS with which the process opens its
// databases.
const vfsName = "custody-faulty"

// roleState is the broker with its store and fault hooks.
type roleState struct {
	server    *broker.Server
	store     store.Store
	neighbour store.Store
	files     *faulty.VFS
	armed     *storeFaults
}

// machineErrors are the errors of a start that do not accuse the broker.
var machineErrors = []error{
	context.DeadlineExceeded, context.Canceled, store.ErrFull,
	syscall.EADDRINUSE, syscall.EADDRNOTAVAIL, syscall.EACCES, syscall.EPERM, syscall.EROFS, syscall.EIO,
	syscall.ENOSPC, syscall.EDQUOT, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE,
	sqlite3.FULL, sqlite3.IOERR, sqlite3.CANTOPEN, sqlite3.NOMEM, sqlite3.PERM, sqlite3.READONLY, sqlite3.BUSY, sqlite3.LOCKED,
}

// Role runs the broker in a child process, with fault hooks above and below the
// database.
func Role() process.Role {
	r := &roleState{}
	return process.Role{
		Start: func(ctx context.Context, config json.RawMessage, p *process.Parent) error {
			err := r.start(ctx, config, p)
			if slices.ContainsFunc(machineErrors, func(e error) bool { return errors.Is(err, e) }) {
				err = fmt.Errorf("%w: %w", process.ErrUnfit, err)
			}
			return err
		},
		Stop: func(ctx context.Context) error {
			if r.server == nil {
				return nil
			}
			r.armed.healAll()
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			err := errors.Join(r.server.Close(ctx), r.store.Close())
			if r.neighbour != nil {
				err = errors.Join(err, r.neighbour.Close())
			}
			r.files.Close()
			return err
		},
		Methods: map[string]func(context.Context, json.RawMessage) (any, error){
			"clock": method(func(offset time.Duration) error {
				r.server.SetClockOffset(offset)
				return nil
			}),
			"users": method(func(token string) error {
				changed, err := usersOf(token, true)
				if err == nil {
					r.server.SetUsers(changed)
				}
				return err
			}),
			"setenv": method(func(value string) error { return os.Setenv(store.IdentityVariable, value) }),
			"arm":    method(func(f systems.StoreFault) error { return r.armed.arm(f) }),
			"heal": method(func(label string) error {
				r.armed.heal(label)
				return nil
			}),
		},
	}
}

// method adapts a command with one parameter and no result.
func method[T any](do func(T) error) func(context.Context, json.RawMessage) (any, error) {
	return func(_ context.Context, params json.RawMessage) (any, error) {
		var v T
		if err := json.Unmarshal(params, &v); err != nil {
			return nil, fmt.Errorf("zeromq: parameter of a command: %w", err)
		}
		return nil, do(v)
	}
}

func (r *roleState) start(ctx context.Context, config json.RawMessage, p *process.Parent) error {
	var c brokerConfig
	if err := json.Unmarshal(config, &c); err != nil {
		return fmt.Errorf("zeromq: the broker's configuration: %w", err)
	}
	sink := evidence.NewPipeSink(p.Events, c.Base)
	r.armed = newArmory(sink, p)
	r.files = faulty.New(vfsName)
	r.files.Arm(r.armed)
	identity := store.Identity(os.LookupEnv, func() (string, error) { return c.Hostname, nil })
	options := open.Options{KeepHistory: c.History}
	if c.Connections.First.Entries[0].Driver == "sqlite" {
		options.VFS, options.Reserve = vfsName, 1<<20
	}
	opened, err := open.Open(ctx, c.Connections, c.Name, identity, options)
	if err != nil {
		return err
	}
	wrapped := faulty.Wrap(opened)
	wrapped.Arm(r.armed)
	r.store = wrapped
	cfg := Profile{history: c.History, scale: c.Scale}.Broker()
	cfg = Limited(cfg, c.Limits)
	cfg.ConfirmAfterDelete = c.Confirms
	cfg.Name, cfg.Listen, cfg.Token, cfg.Store = c.Name, c.Listen, c.Token, wrapped
	if c.Users {
		if cfg.Users, err = usersOf(c.Token, false); err != nil {
			return err
		}
		cfg.Token = ""
	}
	cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	if c.Defect != "" {
		if err := r.seed(ctx, c, options, &cfg); err != nil {
			return err
		}
	}
	if r.server, err = broker.Open(ctx, cfg); err != nil {
		return err
	}
	r.server.SetClockOffset(c.Clock)
	return nil
}

// neighbours pairs the storage identities that scenarios use. A defect that
// crosses partitions reaches from one into the other.
var neighbours = map[string]string{"identity-1": "identity-2", "identity-2": "identity-1"}

func (r *roleState) seed(ctx context.Context, c brokerConfig, options open.Options, cfg *broker.Config) error {
	d, err := defects.Find(c.Defect)
	if err != nil {
		return err
	}
	var o defects.Options
	if d.NeedsNeighbour {
		other := func() (string, error) { return neighbours[r.store.Partition().Identity], nil }
		if r.neighbour, err = open.Open(ctx, c.Connections, c.Name, other, options); err != nil {
			return err
		}
		o.Neighbour = r.neighbour
	}
	return defects.Apply(c.Defect, cfg, o)
}
