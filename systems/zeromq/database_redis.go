package zeromq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"syscall"

	client "github.com/redis/go-redis/v9"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/redisstore"
	"github.com/custodymq/custody/links/resp"
	"github.com/custodymq/custody/systems"
)

// redisText is the server's configuration, but for its port and folder.
const redisText = `bind 127.0.0.1
requirepass %[1]s
masterauth %[1]s
maxclients %[2]d
databases 1
save ""
appendonly yes
appendfsync always
repl-diskless-sync-delay 0
`

var redis = &serverKind{
	name: "redis", driver: "redis", protocol: resp.Protocol{Store: true},
	program: "redis-server", packaged: "redis-server", volume: 24 << 20,
	without: map[systems.Need]string{systems.NeedDamage: undamageable},
	engine:  redisEngine{}, replication: redisReplication{}, waits: "?replicas=1",
	files: func(password string) map[string]string {
		return map[string]string{"redis.conf": fmt.Sprintf(redisText, password, maxConnections)}
	},
	args: func(dir, port string) []string {
		return []string{filepath.Join(dir, "redis.conf"), "--port", port, "--dir", dir}
	},
	dsn: func(_, address, password, _ string) string { return "redis://:" + password + "@" + address + "/0" },
}

const undamageable = "rows in Redis cannot be damaged with a statement"

// redisEngine speaks to Redis. A run has the server's whole database, which is
// empty when it starts.
type redisEngine struct{}

func (redisEngine) client(s *databaseServer) (*client.Client, error) {
	o, err := client.ParseURL(s.kind.dsn("", s.address, s.password, ""))
	if err != nil {
		return nil, err
	}
	o.MaxRetries = -1
	return client.NewClient(o), nil
}

func (e redisEngine) with(s *databaseServer, do func(*client.Client) error) error {
	c, err := e.client(s)
	if err != nil {
		return err
	}
	return errors.Join(do(c), c.Close())
}

func (e redisEngine) ping(ctx context.Context, s *databaseServer) error {
	return e.with(s, func(c *client.Client) error { return c.Ping(ctx).Err() })
}

func (redisEngine) prepare(context.Context, *served) error { return nil }

func (e redisEngine) remove(ctx context.Context, d *served) error {
	return e.with(d.databaseServer, func(c *client.Client) error { return c.FlushAll(ctx).Err() })
}

func (redisEngine) rows(ctx context.Context, d *served, fn func(store.Row) error) error {
	return redisstore.All(ctx, d.dsn(), fn)
}

func (redisEngine) damage(context.Context, *served, string) error {
	return errors.New("zeromq: " + undamageable)
}

func (redisEngine) plant(ctx context.Context, d *served, p store.Partition, row store.Row) error {
	return redisstore.Plant(ctx, d.dsn(), p, row)
}

func (e redisEngine) occupy(ctx context.Context, s *databaseServer) (io.Closer, error) {
	c, err := e.client(s)
	if err != nil {
		return nil, err
	}
	return c, c.Ping(ctx).Err() // which keeps its connection
}

// crowded: the server closes what it refuses, and its client may see no more than
// that.
func (redisEngine) crowded(err error) bool {
	return strings.Contains(err.Error(), "max number of clients") || errors.Is(err, io.EOF) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}

// refuse makes the server a replica of one that is not there.
func (e redisEngine) refuse(ctx context.Context, d *served) error {
	return e.with(d.databaseServer, func(c *client.Client) error {
		if err := c.ReplicaOf(ctx, "127.0.0.1", "1").Err(); err != nil {
			return err
		}
		err := c.Set(ctx, "custody:written", "1", 0).Err()
		if err == nil || !strings.HasPrefix(err.Error(), "READONLY") {
			return fmt.Errorf("zeromq: the server still takes writes: %w", err)
		}
		return nil
	})
}

func (e redisEngine) permit(ctx context.Context, d *served) error {
	return e.with(d.databaseServer, func(c *client.Client) error { return c.ReplicaOf(ctx, "NO", "ONE").Err() })
}
