package redis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	client "github.com/redis/go-redis/v9"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/resp"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems"
	"github.com/custodymq/custody/tasks"
)

// instance is one run's share of a redis-server. Safe for concurrent use.
type instance struct {
	clients
	*server
	pool *process.Pool
}

// server is a redis-server in a process of its own, which may serve several
// runs in turn.
type server struct {
	*process.Server
	endpoint string // address and port
	dir      string
}

var (
	_ systems.System    = Profile{}
	_ systems.Connector = Profile{}
	_ systems.Installed = Profile{}
	_ systems.Contained = Profile{}
	_ systems.Remote    = Profile{}
	_ systems.Networked = (*instance)(nil)
	_ systems.Process   = (*instance)(nil)
	_ systems.Inspector = (*instance)(nil)
)

// serverName is the actor of the server's events and the name of its log.
const serverName = "broker"

// configText is the server's whole configuration.
const configText = `bind 127.0.0.1
port %s
dir %q
daemonize no
protected-mode yes
databases 1
save ""
%s
`

// Start takes an untouched server of an earlier run, or starts one on a free
// port of 127.0.0.1.
func (p Profile) Start(ctx context.Context, env systems.Env) (systems.Instance, error) {
	if err := env.NoDefects("redis"); err != nil {
		return nil, err
	}
	if p.at.Address != "" {
		return p.reach(ctx, env)
	}
	s, err := systems.TakeServer(ctx, env, "redis", p.kind(), func(log io.WriteCloser) (*server, error) {
		return p.startServer(ctx, env.Sink, log)
	})
	if err != nil {
		return nil, err
	}
	return &instance{clients: clients{profile: p, address: s.endpoint, prefix: systems.RunName() + ":"}, server: s, pool: env.Servers}, nil
}

// kind is the pool key: servers of one kind are interchangeable.
func (p Profile) kind() string { return "redis-server " + p.image + " " + p.persistence }

func (p Profile) startServer(ctx context.Context, sink evidence.Sink, log io.WriteCloser) (*server, error) {
	port, err := process.FreePort()
	if err != nil {
		return nil, err
	}
	dir, err := process.Folder()
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "redis.conf")
	if err := os.WriteFile(file, fmt.Appendf(nil, configText, port.Number(), dir, p.persistence), 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("redis: configuration of the server: %w", err), os.RemoveAll(dir))
	}
	s := &server{endpoint: port.Address, dir: dir}
	s.Server = process.NewServer(serverName, sink, log, func(ctx context.Context, log io.Writer, exited func(process.Exit)) (process.Process, []string, error) {
		process, err := process.StartProgram(ctx, process.ProgramOptions{
			Image: p.image, Path: p.release().program, Args: []string{file}, Dir: dir, Log: log, Exited: exited,
			Ready: func(ctx context.Context) error { return p.administer(ctx, port.Address, ping) },
		})
		return process, nil, err
	}, port)
	if err := s.Restart(ctx); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return s, nil
}

// Close stops the server and removes its folder.
func (s *server) Close(ctx context.Context) error {
	return errors.Join(s.Server.Close(ctx), os.RemoveAll(s.dir))
}

// administer runs do on a connection of its own, bypassing all links.
func (p Profile) administer(ctx context.Context, address string, do func(context.Context, *client.Client) error) error {
	s, err := p.open(ctx, address, func(ctx context.Context, s *session) error { return ping(ctx, s.client) })
	if err != nil {
		return err
	}
	defer s.end()
	defer context.AfterFunc(ctx, tasks.Guarded(s.end))()
	return do(ctx, s.client)
}

func ping(ctx context.Context, c *client.Client) error { return c.Ping(ctx).Err() }

func (c clients) Address() string { return c.address }

// Protocol is nil with TLS: a link cannot read encrypted frames.
func (c clients) Protocol() links.Protocol {
	if c.profile.at.TLS != nil {
		return nil
	}
	return resp.Protocol{PubSub: c.profile.reads == channel}
}

// Stop deletes the run's keys and returns the server to the pool; a server that
// was struck is closed.
func (in *instance) Stop(ctx context.Context) error {
	if !in.Untouched() {
		return in.Close(ctx)
	}
	return errors.Join(in.forget(ctx), in.Detach(), in.pool.Put(ctx, in.profile.kind(), in.server))
}

// forget deletes the run's keys.
func (c clients) forget(ctx context.Context) error {
	return c.profile.administer(ctx, c.address, func(ctx context.Context, admin *client.Client) error {
		names, err := c.names(ctx, admin)
		if err != nil || len(names) == 0 {
			return err
		}
		if err := admin.Unlink(ctx, names...).Err(); err != nil {
			return fmt.Errorf("redis: delete the streams of the run: %w", err)
		}
		return nil
	})
}

// names lists the run's streams, possibly with duplicates.
func (c clients) names(ctx context.Context, admin *client.Client) ([]string, error) {
	var names []string
	for cursor := uint64(0); ; {
		found, next, err := admin.Scan(ctx, cursor, c.prefix+"*", scanCount).Result()
		if err != nil {
			return nil, fmt.Errorf("redis: list the streams of the run: %w", err)
		}
		names = append(names, found...)
		if cursor = next; cursor == 0 {
			return names, nil
		}
	}
}
