package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/custodymq/custody/process"
)

// RoleName is the name of Role for process.RunRole.
const RoleName = "nats-server"

// serverConfig is passed from the parent to the role.
type serverConfig struct {
	File string `json:"file"` // a nats-server configuration file
}

// readyWithin bounds the server's start, including recovery of its streams.
const readyWithin = 60 * time.Second

// Role runs nats-server in this process until it is stopped. It is ready once
// its streams are recovered and it accepts connections.
func Role() process.Role {
	var running *server.Server
	return process.Role{
		Start: func(_ context.Context, config json.RawMessage, _ *process.Parent) error {
			var c serverConfig
			if err := json.Unmarshal(config, &c); err != nil {
				return fmt.Errorf("nats: configuration of the server's process: %w", err)
			}
			var err error
			running, err = serve(c)
			return err
		},
		Stop: func(context.Context) error {
			if running != nil {
				running.Shutdown()
				running.WaitForShutdown()
			}
			return nil
		},
	}
}

func serve(c serverConfig) (*server.Server, error) {
	options, err := server.ProcessConfigFile(c.File)
	if err != nil {
		return nil, fmt.Errorf("nats: read %s: %w", c.File, err)
	}
	options.NoSigs = true // the role handles signals
	s, err := server.NewServer(options)
	if err != nil {
		return nil, fmt.Errorf("nats: configure the server: %w", err)
	}
	s.ConfigureLogger() // to standard error, bounded by the parent
	s.Start()
	if !s.ReadyForConnections(readyWithin) {
		s.Shutdown()
		return nil, fmt.Errorf("nats: the server does not accept connections after %v: see its log", readyWithin)
	}
	if !s.JetStreamEnabled() {
		s.Shutdown()
		return nil, errors.New("nats: the server runs without JetStream: see its log")
	}
	return s, nil
}
