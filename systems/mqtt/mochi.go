package mqtt

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	badgerdb "github.com/dgraph-io/badger/v4"
	mochimqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/hooks/auth"
	"github.com/mochi-mqtt/server/v2/hooks/storage/badger"
	"github.com/mochi-mqtt/server/v2/listeners"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/process"
)

// mochi is mochi-mqtt, run by this binary in a child process (see Role).
type mochi struct {
	persistent bool // in a badger database, as mochi-mqtt recommends; otherwise in memory
}

// oldest is empty: the server is part of this binary.
func (mochi) oldest() map[string]string { return nil }

func (mochi) system() string   { return "mqtt-mochi" }
func (mochi) installed() error { return nil }

func (mochi) in(image string) (server, error) {
	return nil, fmt.Errorf("mqtt: mochi-mqtt is built into this binary and cannot run from an image: leave out @%s", image)
}

func (m mochi) shown() []evidence.Setting {
	if m.persistent {
		return []evidence.Setting{{Name: "storage", Value: "badger"}, {Name: "sync_writes", Value: "true"}}
	}
	return []evidence.Setting{{Name: "storage", Value: "none"}}
}

func (mochi) versions() map[string]string {
	return map[string]string{"mochi-mqtt": mochimqtt.Version}
}

func (mochi) hides() string { return "" }

// RoleName is the name of Role for process.RunRole.
const RoleName = "mochi-mqtt"

// mochiConfig is passed from the parent to the role.
type mochiConfig struct {
	Address  string `json:"address"`
	Database string `json:"database,omitempty"` // directory; empty: in memory
}

func (m mochi) prepare(p Profile, address, dir string) (process.StartFunc, func(context.Context) ([]kept, error), error) {
	config := mochiConfig{Address: address}
	if m.persistent {
		config.Database = filepath.Join(dir, "badger")
	}
	var last atomic.Pointer[process.Child] // last started
	start := func(ctx context.Context, log io.Writer, exited func(process.Exit)) (process.Process, []string, error) {
		child, err := process.StartChild(ctx, process.ChildOptions{Role: RoleName, Config: config, Log: log, Exited: exited}, nil)
		if err != nil {
			return nil, nil, fmt.Errorf("mqtt: start the server on %s (main must give mqtt.Role to process.RunRole): %w", address, err)
		}
		last.Store(child)
		return child, nil, nil
	}
	shows := func(ctx context.Context) (all []kept, err error) {
		if err := last.Load().Call(ctx, keptMethod, p.v311, &all); err != nil {
			return nil, fmt.Errorf("mqtt: list the stored messages: %w", err)
		}
		return all, nil
	}
	return start, shows, nil
}

// keptMethod is the role's method that lists stored messages.
const keptMethod = "kept"

// keptWithin bounds the wait for publishes in progress.
const keptWithin = 2 * time.Second

// Role runs mochi-mqtt in this process until it is stopped. It is ready once
// its sessions are restored and it accepts connections.
func Role() process.Role {
	var running *mochimqtt.Server
	publishes := &handling{open: make(map[*mochimqtt.Client]chan struct{})}
	return process.Role{
		Start: func(_ context.Context, config json.RawMessage, _ *process.Parent) error {
			var c mochiConfig
			if err := json.Unmarshal(config, &c); err != nil {
				return fmt.Errorf("mqtt: configuration of the server's process: %w", err)
			}
			var err error
			running, err = serveMochi(c, publishes)
			return err
		},
		Methods: map[string]func(context.Context, json.RawMessage) (any, error){
			keptMethod: func(ctx context.Context, params json.RawMessage) (any, error) {
				var older bool
				if err := json.Unmarshal(params, &older); err != nil {
					return nil, fmt.Errorf("mqtt: version of the clients: %w", err)
				}
				ctx, cancel := context.WithTimeout(ctx, keptWithin)
				defer cancel()
				if err := publishes.wait(ctx); err != nil {
					return nil, fmt.Errorf("mqtt: a publish is still being processed: %w", err)
				}
				return storedBy(running, older), nil
			},
		},
		Stop: func(context.Context) error {
			if running == nil {
				return nil
			}
			return running.Close()
		},
	}
}

func serveMochi(c mochiConfig, publishes *handling) (*mochimqtt.Server, error) {
	s := mochimqtt.New(&mochimqtt.Options{Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}) // bounded by the parent
	err := s.AddHook(new(auth.AllowHook), nil)
	if err == nil {
		err = s.AddHook(publishes, nil)
	}
	if err == nil && c.Database != "" {
		options := badgerdb.DefaultOptions(c.Database).WithSyncWrites(true)
		err = s.AddHook(new(badger.Hook), &badger.Options{Options: &options})
	}
	if err == nil {
		err = s.AddListener(listeners.NewTCP(listeners.Config{ID: "tcp", Address: c.Address}))
	}
	if err == nil {
		err = s.Serve()
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("mqtt: run the server on %s: %w", c.Address, err)
	}
	return s, nil
}
