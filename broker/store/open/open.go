// Package open finds a broker's connection and opens the backend that it names.
// It holds the list of all backends.
package open

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/memory"
	"github.com/custodymq/custody/broker/store/redisstore"
	"github.com/custodymq/custody/broker/store/relational"
	"github.com/custodymq/custody/broker/store/sqlite"
)

// Options for the backends. A setting that a backend cannot obey is an error.
type Options struct {
	VFS           string // sqlite: a registered VFS
	Sync          store.Flush
	FlushInterval time.Duration // FlushPeriodic; 0 is the backend's default
	KeepHistory   bool          // Delete marks the row processed instead
	BusyTimeout   time.Duration // 0 is the backend's default
	Reserve       uint64        // bytes to leave free on the disk; 0 is the backend's default
}

type driver func(ctx context.Context, dsn string, p store.Partition, o Options) (store.Store, error)

var drivers = map[string]driver{
	"memory":    openMemory,
	"sqlite":    openSQLite,
	"postgres":  openServer(relational.Postgres),
	"mysql":     openServer(relational.MySQL),
	"sqlserver": openServer(relational.SQLServer),
	"redis":     openRedis,
}

// Open opens the store of the broker with exactly this name. Anything
// inconsistent is an error before the broker accepts a message.
func Open(ctx context.Context, connections store.Connections, name string, identity store.IdentitySource, options Options) (store.Store, error) {
	connection, err := connections.Find(name)
	if err != nil {
		return nil, err
	}
	known, ok := drivers[connection.Driver]
	if !ok {
		return nil, fmt.Errorf("store: connection %q: unknown driver %q; known are %s",
			name, connection.Driver, strings.Join(Drivers(), ", "))
	}
	id, err := identity()
	if err != nil {
		return nil, err
	}
	opened, err := known(ctx, connection.DSN, store.Partition{Connection: name, Identity: id}, options)
	if err != nil {
		return nil, fmt.Errorf("store: connection %q, driver %s: %w", name, connection.Driver, err)
	}
	return opened, nil
}

// Drivers returns the names of the available drivers, sorted.
func Drivers() []string {
	names := make([]string, 0, len(drivers))
	for name := range drivers {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func openMemory(_ context.Context, dsn string, p store.Partition, o Options) (store.Store, error) {
	if dsn != "" {
		return nil, fmt.Errorf("takes no DSN, got %q: rows in memory have no place", redact(dsn))
	}
	if o.VFS != "" {
		return nil, fmt.Errorf("has no files to put on VFS %q", o.VFS)
	}
	return memory.New(p, memory.Options{KeepHistory: o.KeepHistory}), nil
}

func openSQLite(ctx context.Context, dsn string, p store.Partition, o Options) (store.Store, error) {
	if strings.Contains(dsn, "://") || strings.HasPrefix(dsn, "file:") {
		return nil, fmt.Errorf("the DSN is the path of a file, got %q: another driver's, or a URI", redact(dsn))
	}
	opened, err := sqlite.Open(ctx, sqlite.Options{
		Path: dsn, Partition: p, VFS: o.VFS, Sync: o.Sync, FlushInterval: o.FlushInterval,
		KeepHistory: o.KeepHistory, BusyTimeout: o.BusyTimeout, Reserve: o.Reserve,
	})
	if err != nil {
		return nil, err // a nil *sqlite.Store would be a non-nil store.Store
	}
	return opened, nil
}

func openServer(d relational.Dialect) driver {
	return func(ctx context.Context, dsn string, p store.Partition, o Options) (store.Store, error) {
		if err := checkServer(o); err != nil {
			return nil, err
		}
		opened, err := relational.Open(ctx, d, relational.Options{DSN: dsn, Partition: p, Sync: o.Sync, KeepHistory: o.KeepHistory})
		if err != nil {
			return nil, err // a nil *relational.Store would be a non-nil store.Store
		}
		return opened, nil
	}
}

func openRedis(ctx context.Context, dsn string, p store.Partition, o Options) (store.Store, error) {
	if err := checkServer(o); err != nil {
		return nil, err
	}
	opened, err := redisstore.Open(ctx, redisstore.Options{DSN: dsn, Partition: p, Sync: o.Sync, KeepHistory: o.KeepHistory})
	if err != nil {
		return nil, err // a nil *redisstore.Store would be a non-nil store.Store
	}
	return opened, nil
}

// checkServer refuses what a store in a server of its own cannot obey.
func checkServer(o Options) error {
	switch {
	case o.VFS != "":
		return fmt.Errorf("has no files to put on VFS %q", o.VFS)
	case o.FlushInterval != 0 || o.BusyTimeout != 0 || o.Reserve != 0:
		return errors.New("takes no flush interval, busy timeout or reserve: they are the server's own")
	}
	return nil
}

// redact keeps only the scheme of a DSN: the rest may contain a password.
func redact(dsn string) string {
	if scheme, _, found := strings.Cut(dsn, ":"); found {
		return scheme + ":…"
	}
	return dsn
}
