package rabbitmq

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"

	client "github.com/rabbitmq/amqp091-go"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems"
)

// server is a RabbitMQ node with its helper processes. It may outlive the run
// that started it: see process.Pool.
type server struct {
	*process.Server
	address string
	dir     string // private: configuration, cookie, database
	epmd    process.Process
	console *console
}

const (
	// serverProgram is not the wrapper in PATH, which requires the user root or
	// rabbitmq.
	serverProgram = "/usr/lib/rabbitmq/bin/rabbitmq-server"
	// serverName is the actor of the server's events and the name of its log.
	serverName = "broker"
)

const configText = `listeners.tcp.1 = %s
distribution.listener.interface = 127.0.0.1
log.console = true
log.file = false
disk_free_limit.absolute = 50MB
`

// startServer runs a node on free ports of 127.0.0.1 with a port mapper (epmd)
// of its own: the one that Erlang starts by itself outlives the node and is
// shared.
func startServer(ctx context.Context, image string, sink evidence.Sink, log io.WriteCloser) (*server, error) {
	var ports [3]*process.Port
	for i := range ports {
		var err error
		if ports[i], err = process.FreePort(); err != nil {
			return nil, err
		}
	}
	clients, mapper, peers := ports[0], ports[1], ports[2]
	dir, err := process.Folder()
	if err != nil {
		return nil, err
	}
	s := &server{address: clients.Address, dir: dir}
	env, err := s.configure(image, mapper.Number(), peers.Number())
	if err != nil {
		return nil, errors.Join(err, s.discard(ctx))
	}
	s.epmd, err = process.StartProgram(ctx, process.ProgramOptions{
		Image: image, Path: "epmd", Args: []string{"-port", mapper.Number(), "-address", "127.0.0.1"}, Env: env, Dir: s.dir,
		Ready: func(ctx context.Context) error { return reachable(ctx, mapper.Address) },
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("rabbitmq: start epmd: %w", err), s.discard(ctx))
	}
	s.console = &console{node: nodeName(s.address), image: image, dir: s.dir, env: env}
	s.Server = process.NewServer(serverName, sink, log, func(ctx context.Context, log io.Writer, exited func(process.Exit)) (process.Process, []string, error) {
		p, err := process.StartProgram(ctx, process.ProgramOptions{
			Image: image, Path: serverProgram, Env: env, Dir: s.dir, Log: log, Exited: exited,
			Ready: func(ctx context.Context) error { return ready(ctx, s.address) },
		})
		if err != nil {
			return nil, nil, fmt.Errorf("rabbitmq: start the server on %s: %w", s.address, err)
		}
		return p, nil, nil
	}, ports[:]...)
	if err := s.Restart(ctx); err != nil {
		return nil, errors.Join(err, s.discard(ctx))
	}
	if err := s.console.write(ctx); err != nil { // the first query takes the longest
		return nil, errors.Join(err, s.Close(ctx))
	}
	return s, nil
}

// Close kills the node and removes its directory: nothing in it is needed, and
// an orderly shutdown takes longer.
func (s *server) Close(ctx context.Context) error {
	var err error
	if s.Running() {
		err = s.Kill(ctx)
	}
	return errors.Join(err, s.Server.Close(ctx), s.discard(ctx))
}

// discard ends the helper processes and removes the directory.
func (s *server) discard(ctx context.Context) error {
	var errs []error
	if s.console != nil {
		errs = append(errs, s.console.close(context.WithoutCancel(ctx)))
	}
	if s.epmd != nil {
		errs = append(errs, s.epmd.Kill(context.WithoutCancel(ctx)))
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}

// nodeName is the name of the node that listens on an address.
func nodeName(address string) string {
	_, port, _ := net.SplitHostPort(address)
	return "p" + port + "@localhost"
}

// configure writes the node's files and returns its environment. mapper and
// peers are port numbers.
func (s *server) configure(image, mapper, peers string) (env []string, err error) {
	in := func(name string) string { return filepath.Join(s.dir, name) }
	for _, dir := range []string{"home", "db", "log"} {
		if err := os.Mkdir(in(dir), 0o700); err != nil {
			return nil, fmt.Errorf("rabbitmq: folder of the server: %w", err)
		}
	}
	for name, text := range map[string]string{
		"home/.erlang.cookie": rand.Text(),
		"rabbitmq.conf":       fmt.Sprintf(configText, s.address),
		"advanced.config":     "[].\n",
		"plugins":             "[].\n",
		"env.conf":            "",
	} {
		if err := os.WriteFile(in(name), []byte(text), 0o400); err != nil {
			return nil, fmt.Errorf("rabbitmq: configuration of the server: %w", err)
		}
	}
	if image == "" { // images have their own PATH
		env = append(env, "PATH="+os.Getenv("PATH"))
	}
	return append(env,
		"HOME="+in("home"),
		"LANG=C.UTF-8",
		"RABBITMQ_NODENAME="+nodeName(s.address),
		"RABBITMQ_CONF_ENV_FILE="+in("env.conf"),
		"RABBITMQ_CONFIG_FILE="+in("rabbitmq"),
		"RABBITMQ_ADVANCED_CONFIG_FILE="+in("advanced"),
		"RABBITMQ_ENABLED_PLUGINS_FILE="+in("plugins"),
		"RABBITMQ_MNESIA_BASE="+in("db"),
		"RABBITMQ_LOG_BASE="+in("log"),
		"RABBITMQ_PID_FILE="+in("pid"),
		"RABBITMQ_LOGS=-",
		"RABBITMQ_DIST_PORT="+peers,
		// Keeps Erlang's idle schedulers from busy-waiting on few cores.
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=+sbwt none +sbwtdcpu none +sbwtdio none",
		// Makes the script exec the server; otherwise a kill would hit the
		// script only.
		"RUNNING_UNDER_SYSTEMD=true",
		"ERL_EPMD_PORT="+mapper,
		"ERL_EPMD_ADDRESS=127.0.0.1",
		"ERL_CRASH_DUMP=/dev/null",
	), nil
}

// ready succeeds once the node accepts connections, which it does after
// recovering its queues.
func ready(ctx context.Context, address string) error {
	s, err := dial(ctx, systems.Endpoint{Address: address}, "ready", readyTimeout, func(*client.Channel) error { return nil })
	if err != nil {
		return err
	}
	return s.Close(ctx)
}

func reachable(ctx context.Context, address string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}
