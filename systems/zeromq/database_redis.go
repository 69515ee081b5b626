package zeromq

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"

	client "github.com/redis/go-redis/v9"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/redisstore"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/resp"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems"
)

// redis is the database kind of a redis-server as packaged by Debian.
type redis struct{}

func (redis) title() string { return "redis" }

const redisProgram = "redis-server"

func (redis) installed() error {
	if _, err := exec.LookPath(redisProgram); err != nil {
		return fmt.Errorf("zeromq: %s is missing: apt-get install redis-server, or make brokers", redisProgram)
	}
	return nil
}

func (k redis) version() (program, of string) {
	if k.installed() != nil {
		return redisProgram, notInstalled
	}
	return redisProgram, versionOf(redisProgram)
}

// redisServer is a server started by this run or an earlier one. The run has it
// to itself.
type redisServer struct {
	*process.Server
	address  string
	password string
	folder   string
	volume   *process.Volume // in the folder, or nil
	changed  atomic.Bool     // what it is set to
}

var _ process.Kept = (*redisServer)(nil)

// redisText is the server's whole configuration.
const redisText = `bind 127.0.0.1
port %s
dir %q
requirepass %s
maxclients %d
databases 1
save ""
appendonly yes
appendfsync always
`

func (k redis) start(ctx context.Context, env systems.Env, log io.WriteCloser) (_ *redisServer, err error) {
	if err := k.installed(); err != nil {
		return nil, err
	}
	port, err := process.FreePort()
	if err != nil {
		return nil, err
	}
	folder, err := process.Folder()
	if err != nil {
		return nil, errors.Join(err, port.Close())
	}
	s := &redisServer{address: port.Address, password: rand.Text(), folder: folder}
	defer func() {
		if err != nil {
			err = errors.Join(err, port.Close(), s.volume.Close(), os.RemoveAll(folder))
		}
	}()
	dir, file := filepath.Join(folder, "server"), filepath.Join(folder, "redis.conf")
	err = errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(file, fmt.Appendf(nil, redisText, port.Number(), dir, s.password, maxConnections), 0o600))
	if err != nil {
		return nil, fmt.Errorf("zeromq: configuration of redis-server: %w", err)
	}
	if env.Volume {
		if s.volume, err = process.Mount(dir, redisVolume); err != nil {
			return nil, err
		}
	}
	s.Server = process.NewServer(serverName, env.Sink, log, func(ctx context.Context, log io.Writer, exited func(process.Exit)) (process.Process, []string, error) {
		p, err := process.StartProgram(ctx, process.ProgramOptions{Path: redisProgram, Args: []string{file}, Dir: dir, Log: log, Exited: exited, Ready: s.ping, Family: true})
		if err != nil {
			return nil, nil, fmt.Errorf("zeromq: start redis-server on %s: %w", port.Address, err)
		}
		return p, nil, nil
	}, port)
	return s, s.Restart(ctx)
}

func (s *redisServer) dsn(address string) string {
	return "redis://:" + s.password + "@" + address + "/0"
}

const redisVolume = 24 << 20 // bytes

func (s *redisServer) client() (*client.Client, error) {
	o, err := client.ParseURL(s.dsn(s.address))
	if err != nil {
		return nil, err
	}
	o.MaxRetries = -1
	return client.NewClient(o), nil
}

func (s *redisServer) with(do func(*client.Client) error) error {
	c, err := s.client()
	if err != nil {
		return err
	}
	return errors.Join(do(c), c.Close())
}

// Untouched reports whether another run can have it.
func (s *redisServer) Untouched() bool {
	return !s.changed.Load() && s.volume == nil && s.Server.Untouched()
}

func (s *redisServer) ping(ctx context.Context) error {
	return s.with(func(c *client.Client) error { return c.Ping(ctx).Err() })
}

// Close stops the server and removes its folder; its data is no longer needed.
func (s *redisServer) Close(ctx context.Context) error {
	var err error
	if s.Running() {
		err = s.Kill(ctx)
	}
	return errors.Join(err, s.Server.Close(ctx), s.volume.Close(), os.RemoveAll(s.folder))
}

// redisDatabase is a server's whole database, which is empty when the run starts.
type redisDatabase struct {
	*redisServer
	pool *process.Pool
	link string // address of the broker's link to it
}

// open takes a server that was used before, or a new one.
func (k redis) open(ctx context.Context, env systems.Env) (database, error) {
	log, err := env.ServerLog(Name, serverName)
	if err != nil {
		return nil, err
	}
	servers := env.Servers
	if env.Volume {
		servers = nil
	}
	s, kept := process.Take[*redisServer](ctx, servers, k.title())
	if kept {
		s.Attach(env.Sink, log)
	} else if s, err = k.start(ctx, env, log); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	d := &redisDatabase{redisServer: s, pool: env.Servers, link: s.address}
	if env.Link != nil {
		if d.link, err = env.Link(ctx, serverName, s.address, d.wire()); err != nil {
			return nil, errors.Join(err, s.Close(ctx))
		}
	}
	return d, nil
}

func (d *redisDatabase) connection() (driver, dsn string) { return "redis", d.dsn(d.link) }

func (*redisDatabase) wire() links.Protocol { return resp.Protocol{Store: true} }

// spare is another partition of the same server.
func (d *redisDatabase) spare() (driver, dsn string) { return d.connection() }

func (d *redisDatabase) rows(ctx context.Context, fn func(store.Row) error) error {
	return redisstore.All(ctx, d.dsn(d.address), fn)
}

func (d *redisDatabase) plant(ctx context.Context, p store.Partition, row store.Row) error {
	return redisstore.Plant(ctx, d.dsn(d.address), p, row)
}

func (*redisDatabase) damage(context.Context, string) error {
	return errors.New("zeromq: rows in Redis cannot be damaged with a statement")
}

// release empties the server and returns it to the pool, or closes it if it was
// struck.
func (d *redisDatabase) release(ctx context.Context) error {
	if !d.Untouched() {
		return d.Close(ctx)
	}
	if err := d.with(func(c *client.Client) error { return c.FlushAll(ctx).Err() }); err != nil {
		return errors.Join(fmt.Errorf("zeromq: empty the run's database: %w", err), d.Close(ctx))
	}
	return errors.Join(d.Detach(), d.pool.Put(ctx, redis{}.title(), d.redisServer))
}
