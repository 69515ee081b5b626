package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/custodymq/custody/broker"
	"github.com/custodymq/custody/broker/access"
	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/store/handover"
	"github.com/custodymq/custody/broker/store/open"
	"github.com/custodymq/custody/evidence"
)

type brokerFlags struct {
	config      broker.Config
	tokenEnv    string
	access      accessFlags
	store, data string
	flush       string
	connections []string
	memory      string
	observed    observeFlags
}

const (
	defaultAddress = "127.0.0.1:5577"
	// closeBound limits how long a stopping broker may take to finish its
	// commits.
	closeBound = 10 * time.Second
)

func brokerCommand() *cobra.Command {
	var f brokerFlags
	cmd := &cobra.Command{
		Use:   "broker",
		Short: "Run the reference broker alone until it is interrupted",
		Long: `Run the reference broker alone, to try a client or a deployment against it. It
prints its address when it is ready, and stops in order at SIGINT or SIGTERM:
commits under way are finished and answered.

Its rows stand in the partition of its name and its storage identity
(` + store.IdentityVariable + `, otherwise the host's name). A connections
file says where the rows of which broker are, and is a JSON list:

  [{"name": "custody", "driver": "sqlite", "dsn": "/var/lib/custody/rows.db", "flush": "periodic"},
   {"name": "orders", "driver": "postgres", "dsn": "postgres://custody@db/custody"}]

The drivers are ` + strings.Join(open.Drivers(), ", ") + `. For a database
server, custody broker migrate makes the tables first.

The name must be matched exactly. Two such lists may be given; the first wins.
--store with --data is a list of one, and stands before the file's.

A publish is answered Accepted when its row is on disk (flush every-commit), or
before (periodic): a killed broker loses none of what it accepted so, a power cut
the last moments. Settled rows are deleted, or kept as history (--keep-history, or
"keepHistory": true of a connection).

At SIGHUP the files of --users and of the certificates are read again; while one
of them is wrong, all that was read before stays.`,
		Example: `  custody broker
  custody broker --listen 127.0.0.1:0 --store memory
  custody broker --name orders --connections connections.json
  CUSTODY_TOKEN=… custody broker --token-env CUSTODY_TOKEN
  custody broker --listen 0.0.0.0:5577 --allow-remote --tls-cert broker.pem --tls-key broker.key --users users.yaml
  custody broker --observe 127.0.0.1:9577 --log-format json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return serve(cmd, f) },
	}
	cmd.AddCommand(brokerCheckCommand(), brokerMigrateCommand(), brokerSwapCommand(), brokerBackupCommand(), brokerRestoreCommand(), brokerMaintainCommand())
	flags := cmd.Flags()
	flags.StringVar(&f.config.Listen, "listen", defaultAddress, "address; port 0 takes a free one")
	flags.BoolVar(&f.config.AllowRemote, "allow-remote", false, "listen on another address than loopback; needs --token-env, --users or --tls-client-ca")
	flags.StringVar(&f.tokenEnv, "token-env", "", "environment variable with the token, of at least 16 bytes, that clients must show")
	f.access.add(flags)
	f.places(flags)
	flags.StringVar(&f.flush, "flush", "", "of --store: every-commit (the default), or periodic, which loses the last moments in a power cut")
	flags.IntVar(&f.config.MaxAttempts, "max-attempts", 5, "deliveries of one message before it is dead-lettered")
	flags.DurationVar(&f.config.VisibilityTimeout, "visibility-timeout", 30*time.Second, "how long a delivery may stay unanswered before it comes again")
	flags.DurationVar(&f.config.DefaultTTL, "default-ttl", 24*time.Hour, "time to live of a message that names none")
	flags.BoolVar(&f.config.KeepHistory, "keep-history", false, "mark settled rows processed instead of deleting them")
	flags.BoolVar(&f.config.ConfirmAfterDelete, "confirm-after-delete", false, "confirm an acknowledgement only when the delete is durable")
	flags.StringVar(&f.memory, "memory", "", "how much may be held of messages, and of what peers send and do not read, such as 512MiB; the process needs about twice as much")
	f.observed.add(flags)
	cmd.AddCommand(userCommand())
	return cmd
}

func serve(cmd *cobra.Command, f brokerFlags) (err error) {
	config := f.config
	if err := checkBroker(f); err != nil {
		return err
	}
	if config.Token, err = tokenFrom(f.tokenEnv); err != nil {
		return err
	}
	if f.tokenEnv != "" {
		if err := access.CheckToken(config.Token); err != nil {
			return fmt.Errorf("--token-env %s: %w", f.tokenEnv, err)
		}
	}
	if config.Memory, err = memoryFrom(f.memory); err != nil {
		return err
	}
	broker.TuneRuntime(config.Memory)
	if config.Log, err = f.observed.logger(cmd.ErrOrStderr()); err != nil {
		return err
	}
	connections, err := f.lists(cmd.Flags().Changed("store") || cmd.Flags().Changed("data"))
	if err != nil {
		return err
	}
	if own, err := connections.Find(config.Name); err == nil { // or open.Open says why not
		config.KeepHistory = config.KeepHistory || own.KeepHistory
	}
	renewed, err := f.access.open(&config)
	if err != nil {
		return unmeasured{err}
	}
	hangUp := make(chan os.Signal, 1)
	signal.Reset(syscall.SIGHUP) // elsewhere SIGHUP ends a command: see endSignals
	signal.Notify(hangUp, syscall.SIGHUP)
	defer signal.Stop(hangUp)
	config.Connect = opener(connections, open.Options{KeepHistory: config.KeepHistory})
	rows, err := handover.Open(cmd.Context(), config.Connect, config.Name)
	if err != nil {
		return unmeasured{err}
	}
	if at := rows.Partition().Connection; at != config.Name {
		config.Log.Warn("the rows were handed over: name that connection to begin with it", "from", config.Name, "to", at)
	}
	defer func() {
		if closing := rows.Close(); err == nil && closing != nil {
			err = unmeasured{closing}
		}
	}()
	config.Store = rows
	server, err := broker.Open(cmd.Context(), config)
	if errors.Is(err, syscall.EADDRINUSE) {
		return unmeasured{fmt.Errorf("broker: %s is in use: stop what listens there, or choose another with --listen", config.Listen)}
	}
	if err != nil {
		return unmeasured{err}
	}
	observed, observing := f.observed.serve(server, config.Log)
	if observing == nil {
		defer observed.Close()
		fmt.Fprintf(cmd.OutOrStdout(), "broker %s is ready on %s\n", config.Name, server.Addr())
	}
	for running := observing == nil; running; {
		select {
		case <-hangUp:
			renewed.reload(server, config.Log)
		case <-cmd.Context().Done():
			running = false
		case <-server.Done():
			running = false
		}
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), closeBound)
	defer cancel()
	if err := errors.Join(observing, server.Close(bounded), server.Wait()); err != nil {
		return unmeasured{err}
	}
	fmt.Fprintf(cmd.OutOrStdout(), "broker %s has stopped\n", config.Name)
	return nil
}

// memoryFrom parses --memory.
func memoryFrom(size string) (int64, error) {
	n := broker.DefaultMemory()
	if size != "" {
		var err error
		if n, err = units.RAMInBytes(size); err != nil || n < minMemory {
			return 0, fmt.Errorf("--memory %q: give a size of at least %s, such as 512MiB", size, units.BytesSize(minMemory))
		}
	}
	return n, nil
}

const minMemory = 64 << 20 // the broker's own minimum

// checkBroker reports usage errors before anything is opened.
func checkBroker(f brokerFlags) error {
	host, _, err := net.SplitHostPort(f.config.Listen)
	if err != nil {
		return fmt.Errorf("--listen takes HOST:PORT, as in %s: %w", defaultAddress, err)
	}
	switch remote := !loopback(host); {
	case remote && !f.config.AllowRemote:
		return fmt.Errorf("--listen %s can be reached from other machines: add --allow-remote if that is meant", f.config.Listen)
	case remote && f.tokenEnv == "" && f.access.users == "" && f.access.clientCA == "":
		return errors.New("--allow-remote needs --token-env, --users or --tls-client-ca, so that not everybody can read and purge")
	case f.config.MaxAttempts < 1 || f.config.VisibilityTimeout <= 0 || f.config.DefaultTTL <= 0:
		return errors.New("--max-attempts, --visibility-timeout and --default-ttl must be positive")
	}
	return errors.Join(f.access.check(f.tokenEnv), f.observed.check())
}

// loopback reports whether a host is a loopback address, unreachable from other
// machines.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// tokenFrom reads the token from an environment variable, because every user of
// the machine can see a command line.
func tokenFrom(variable string) (string, error) {
	if variable == "" {
		return "", nil
	}
	token := os.Getenv(variable)
	if token == "" {
		return "", fmt.Errorf("--token-env: the environment variable %s is not set", variable)
	}
	return token, nil
}

// lists returns the broker's two connection lists: the one made of the flags, if
// it is wanted or the only one, followed by those of the files.
func (f brokerFlags) lists(own bool) (store.Connections, error) {
	var lists []store.ConnectionList
	if own || len(f.connections) == 0 {
		if _, err := store.ParseFlush(f.flush); err != nil {
			return store.Connections{}, fmt.Errorf("--flush: %w", err)
		}
		entry := store.Connection{Name: f.config.Name, Driver: f.store, DSN: f.data, Flush: f.flush}
		if f.store == "memory" {
			entry.DSN = ""
		}
		lists = append(lists, store.ConnectionList{Title: "the command line", Entries: []store.Connection{entry}})
	} else if f.flush != "" {
		return store.Connections{}, errors.New("--flush goes with --store; in a file of connections it is the field \"flush\" of each")
	}
	for _, file := range f.connections {
		entries, err := readConnections(file)
		if err != nil {
			return store.Connections{}, unmeasured{err}
		}
		lists = append(lists, store.ConnectionList{Title: file, Entries: entries})
	}
	if len(lists) > 2 {
		return store.Connections{}, errors.New("at most two lists of connections: two --connections, or one with --store")
	}
	lists = append(lists, store.ConnectionList{Title: "the second list"})
	return store.Connections{First: lists[0], Second: lists[1]}, nil
}

const maxConnections = 1 << 20 // size of a connections file

func readConnections(file string) ([]store.Connection, error) {
	text, err := evidence.ReadRegular(file, maxConnections)
	if err != nil {
		return nil, fmt.Errorf("read the connections: %w", err)
	}
	var entries []store.Connection
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&entries); err != nil {
		return nil, fmt.Errorf("read the connections in %s (a list of objects with name, driver and dsn): %w", file, err)
	}
	return entries, nil
}
