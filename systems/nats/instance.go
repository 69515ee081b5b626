package nats

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/custodymq/custody/links"
	natslink "github.com/custodymq/custody/links/nats"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems"
)

// instance is a nats-server in a process of its own. Safe for concurrent use.
type instance struct {
	clients
	*process.Server
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
	_ systems.Rejecter  = (*delivery)(nil)
)

// serverName is the actor of the server's events and the name of its log.
const serverName = "broker"

// configText is the server's whole configuration. sync_interval must be quoted:
// bare, 2m would mean two million seconds.
const configText = `listen: %q
server_name: "custody"
max_payload: 4MB
jetstream {
  store_dir: %q
  max_memory_store: 64MB
  max_file_store: 4GB
%s}
`

// Start runs a server on a free port of 127.0.0.1 with its store in env.Dir and
// creates the stream.
func (p Profile) Start(ctx context.Context, env systems.Env) (systems.Instance, error) {
	if err := env.NoDefects("nats"); err != nil {
		return nil, err
	}
	if p.at.Address != "" {
		return p.reach(ctx, env)
	}
	port, err := process.FreePort()
	if err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(env.Dir)
	if err != nil {
		return nil, fmt.Errorf("nats: folder of the server: %w", err)
	}
	file := filepath.Join(dir, "nats-server.conf")
	sync := ""
	if release, err := p.release(); err != nil || !systems.Older(release, syncSince) {
		sync = fmt.Sprintf("  sync_interval: %q\n", p.sync)
	}
	text := fmt.Sprintf(configText, port.Address, filepath.Join(dir, "jetstream"), sync)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("nats: configuration of the server: %w", err)
	}
	log, err := env.ServerLog("nats", serverName)
	if err != nil {
		return nil, err
	}
	in := &instance{clients: clients{profile: p, address: port.Address}}
	start := in.startChild
	if p.image != "" {
		start = in.startContainer
	}
	in.Server = process.NewServer(serverName, env.Sink, log, func(ctx context.Context, log io.Writer, exited func(process.Exit)) (process.Process, []string, error) {
		process, err := start(ctx, file, log, exited)
		return process, nil, err
	}, port)
	if err := in.Server.Restart(ctx); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	if err := in.makeStream(ctx); err != nil {
		return nil, errors.Join(err, in.Stop(context.WithoutCancel(ctx)))
	}
	return in, nil
}

func (in *instance) startChild(ctx context.Context, file string, log io.Writer, exited func(process.Exit)) (process.Process, error) {
	child, err := process.StartChild(ctx, process.ChildOptions{Role: RoleName, Config: serverConfig{File: file}, Log: log, Exited: exited}, nil)
	if err != nil {
		return nil, fmt.Errorf("nats: start the server on %s (main must give nats.Role to process.RunRole): %w", in.address, err)
	}
	return child, nil
}

func (in *instance) startContainer(ctx context.Context, file string, log io.Writer, exited func(process.Exit)) (process.Process, error) {
	process, err := process.StartProgram(ctx, process.ProgramOptions{
		Image: in.profile.image, Path: program, Args: []string{"--config", file}, Dir: filepath.Dir(file), Log: log, Exited: exited,
		Ready: func(ctx context.Context) error {
			return in.administer(ctx, func(js jetstream.JetStream) error { _, err := js.AccountInfo(ctx); return err })
		},
	})
	if err != nil {
		return nil, fmt.Errorf("nats: start the server on %s: %w", in.address, err)
	}
	return process, nil
}

// Stop ends the server in any state.
func (in *instance) Stop(ctx context.Context) error { return in.Close(ctx) }

// Restart starts the server, which must have stopped, and recreates a stream in
// memory.
func (in *instance) Restart(ctx context.Context) error {
	err := in.Server.Restart(ctx)
	if err == nil && in.profile.storage == jetstream.MemoryStorage {
		err = in.makeStream(ctx)
	}
	return err
}

func (c clients) makeStream(ctx context.Context) error {
	p := c.profile
	if p.core {
		return nil
	}
	config := jetstream.StreamConfig{
		Name:        p.stream,
		Subjects:    []string{p.stream + ".>"},
		Storage:     p.storage,
		PersistMode: p.persist,
		Retention:   p.retention(),
		MaxAge:      p.scaled(p.maxAge),
		Duplicates:  p.scaled(p.duplicates),
		AllowMsgTTL: p.expires(),
	}
	if p.storage == jetstream.MemoryStorage {
		// The stream is recreated after each restart: no message may get the ID
		// of one that was lost with the previous stream.
		config.FirstSeq = uint64(time.Now().UnixMicro())
	}
	return c.administer(ctx, func(js jetstream.JetStream) error {
		_, err := js.CreateStream(ctx, config)
		return err
	})
}

// administer runs do on a connection of its own, bypassing all links.
func (c clients) administer(ctx context.Context, do func(jetstream.JetStream) error) error {
	s, err := c.profile.dial(ctx, c.address, "administrator")
	if err != nil {
		return err
	}
	defer s.conn.Close()
	js, err := jetstream.New(s.conn)
	if err == nil {
		err = do(js)
	}
	if err != nil {
		return fmt.Errorf("nats: administer stream %s: %w", c.profile.stream, err)
	}
	return nil
}

func (c clients) Address() string { return c.address }

// Protocol is nil with TLS: a link cannot read encrypted frames.
func (c clients) Protocol() links.Protocol {
	if c.profile.at.TLS != nil {
		return nil
	}
	return natslink.Protocol{}
}
