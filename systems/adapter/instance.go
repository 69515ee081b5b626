package adapter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems"
)

// instance is one run's system, with the process of the adapter that drives it.
// Its optional interfaces are its parts.
type instance struct {
	clients
	dir, address string
	server       *process.Server // nil where Custody starts none
	log          io.Closer       // of the adapter
	parts        []any
}

var _ systems.Composite = (*instance)(nil)

// Parts returns what this profile is able to do.
func (in *instance) Parts() []any { return in.parts }

// serverName is the actor of the server's events, and the name of its log.
const serverName = "broker"

// prepare asks for a system, which may keep its files in Dir.
type prepare struct {
	Profile string  `json:"profile"`
	Dir     string  `json:"dir"`
	Port    int     `json:"port,omitempty"` // of the server that Custody starts
	Scale   float64 `json:"scale"`
	Seed    uint64  `json:"seed"`
}

// prepared is the answer to prepare.
type prepared struct {
	Address string `json:"address"` // of a server that Custody does not start
	Server  *struct {
		Command    []string          `json:"command"`
		Env        map[string]string `json:"env"`
		StopSignal string            `json:"stopSignal"`
	} `json:"server"`
}

// Start starts a process of the adapter and, if the profile has one, the server
// that it prepares.
func (s System) Start(ctx context.Context, env systems.Env) (systems.Instance, error) {
	if err := env.NoDefects(s.said.System); err != nil {
		return nil, err
	}
	log, err := env.ServerLog(s.said.System, "adapter")
	if err != nil {
		return nil, err
	}
	c, err := start(s.command, log, s.bounds)
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	in := &instance{clients: clients{c, s.profile}, dir: env.Dir, log: log}
	if err := in.start(ctx, s, env); err != nil {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.bounds.call)
		defer cancel()
		return nil, errors.Join(err, in.Stop(stop))
	}
	return in, nil
}

func (in *instance) start(ctx context.Context, s System, env systems.Env) error {
	var port *process.Port
	number := 0
	if in.profile.able(systems.NeedProcess) {
		var err error
		if port, err = process.FreePort(); err != nil {
			return err
		}
		if number, err = strconv.Atoi(port.Number()); err != nil {
			return errors.Join(err, port.Close())
		}
	}
	var p prepared
	err := in.call(ctx, "prepare", prepare{s.profile.Name, env.Dir, number, s.scale, env.Seed}, &p)
	switch {
	case err != nil:
	case port != nil && (p.Server == nil || p.Address != ""):
		err = errors.New("prepare: the profile is able to process, so the answer has server, and no address")
	case port == nil && p.Server != nil:
		err = errors.New("prepare: the answer has server, and the profile is not able to process")
	case port == nil && in.profile.able(systems.NeedLinks) != (p.Address != ""):
		err = errors.New("prepare: the answer has address if, and only if, the profile is able to links")
	}
	if err != nil {
		err = in.wrap(err)
		if port != nil {
			err = errors.Join(err, port.Close())
		}
		return err
	}
	in.address = p.Address
	if port != nil {
		in.address = port.Address
		if err := in.serve(ctx, p, env, port); err != nil {
			return err
		}
	}
	protocol, err := s.profile.protocol(s.said.System)
	in.parts = parts(in, protocol)
	return err
}

func (c *conn) wrap(err error) error { return fmt.Errorf("adapter %s: %w", c.name, err) }

var stopSignals = map[string]syscall.Signal{"TERM": syscall.SIGTERM, "INT": syscall.SIGINT, "QUIT": syscall.SIGQUIT}

// serve starts the server that the adapter has prepared.
func (in *instance) serve(ctx context.Context, p prepared, env systems.Env, port *process.Port) error {
	log, err := env.ServerLog("adapter", serverName)
	if err != nil {
		return errors.Join(err, port.Close())
	}
	environment := os.Environ()
	for _, name := range slices.Sorted(maps.Keys(p.Server.Env)) {
		environment = append(environment, name+"="+p.Server.Env[name])
	}
	in.server = process.NewServer(serverName, env.Sink, log, func(ctx context.Context, log io.Writer, exited func(process.Exit)) (process.Process, []string, error) {
		started, err := process.StartProgram(ctx, process.ProgramOptions{
			Path: p.Server.Command[0], Args: p.Server.Command[1:], Env: environment, Dir: env.Dir, Log: log, Exited: exited,
			Family: true, End: stopSignals[p.Server.StopSignal],
			Ready: func(ctx context.Context) error {
				return in.call(ctx, "ready", struct {
					Address string `json:"address"`
				}{port.Address}, nil)
			},
		})
		return started, nil, err
	}, port)
	return in.server.Restart(ctx)
}

// Stop ends the adapter and the server. It fails if the adapter broke during
// the run: what was measured with it does not count.
func (in *instance) Stop(ctx context.Context) error {
	err := in.close(ctx)
	if in.server != nil {
		err = errors.Join(err, in.server.Close(ctx))
	}
	return errors.Join(err, in.log.Close())
}

// parts are the optional interfaces that a profile is able to.
func parts(in *instance, protocol links.Protocol) []any {
	all := map[systems.Need]any{
		systems.NeedLinks:       network{in.address, protocol},
		systems.NeedRows:        inspector{in.conn},
		systems.NeedDeadLetters: administrator{in.conn},
		systems.NeedRewind:      rewinder{in.conn},
		systems.NeedClock:       clock{in.conn},
		systems.NeedStoreFaults: storeFaulter{in.conn},
		systems.NeedProcess:     in.server,
	}
	var list []any
	for _, need := range in.profile.Abilities {
		if part := all[need]; part != nil {
			list = append(list, part)
		}
	}
	return list
}

var (
	_ systems.Networked     = network{}
	_ systems.Process       = (*process.Server)(nil)
	_ systems.Inspector     = inspector{}
	_ systems.Administrator = administrator{}
	_ systems.Rewinder      = rewinder{}
	_ systems.Clocked       = clock{}
	_ systems.StoreFaulter  = storeFaulter{}
)

type network struct {
	address  string
	protocol links.Protocol // nil: the links carry bytes
}

func (n network) Address() string { return n.address }

func (n network) Protocol() links.Protocol { return n.protocol }

type row struct {
	State        evidence.RowState `json:"state"`
	Message      message           `json:"message"`
	Subscription string            `json:"subscription"`
	Attempts     int               `json:"attempts"`
	Expired      bool              `json:"expired"`
	Cause        evidence.Cause    `json:"cause"`
	Reason       string            `json:"reason"`
}

func stored(rows []row) []evidence.StoredRow {
	list := make([]evidence.StoredRow, 0, len(rows))
	for _, r := range rows {
		s := systems.RowOf(r.Message.system(), r.State)
		s.Subscription, s.Attempts, s.Expired, s.Cause, s.Reason = r.Subscription, r.Attempts, r.Expired, r.Cause, r.Reason
		list = append(list, s)
	}
	return list
}

type inspector struct{ *conn }

func (i inspector) Rows(ctx context.Context) (evidence.Snapshot, error) {
	var r struct {
		Trust evidence.Trust `json:"trust"`
		Count int            `json:"count"`
		Rows  []row          `json:"rows"`
	}
	if err := i.call(ctx, "rows", struct{}{}, &r); err != nil {
		return evidence.Snapshot{}, err
	}
	s := evidence.Snapshot{Source: evidence.SourceBroker, Trust: r.Trust, Count: r.Count}
	if r.Trust != evidence.CountsOnly {
		s.Rows, s.Count = stored(r.Rows), len(r.Rows)
	}
	return s, nil
}

type administrator struct{ *conn }

func (a administrator) DeadLetters(ctx context.Context) ([]evidence.StoredRow, error) {
	var r struct {
		Rows []row `json:"rows"`
	}
	err := a.call(ctx, "dead-letters", struct{}{}, &r)
	return stored(r.Rows), err
}

func (a administrator) Redrive(ctx context.Context, id string) error {
	return a.call(ctx, "redrive", ofMessage{id}, nil)
}

func (a administrator) Discard(ctx context.Context, id string) error {
	return a.call(ctx, "discard", ofMessage{id}, nil)
}

type ofMessage struct {
	MessageID string `json:"messageId"`
}

type rewinder struct{ *conn }

func (r rewinder) Position(ctx context.Context, destination string) (string, error) {
	var a struct {
		Position string `json:"position"`
	}
	err := r.call(ctx, "position", struct {
		Destination string `json:"destination"`
	}{destination}, &a)
	return a.Position, err
}

func (r rewinder) Rewind(ctx context.Context, destination, subscription string, to systems.Point) error {
	return r.call(ctx, "rewind", struct {
		Destination  string    `json:"destination"`
		Subscription string    `json:"subscription"`
		Time         time.Time `json:"time,omitzero"`
		Position     string    `json:"position,omitempty"`
	}{destination, subscription, to.Time, to.Position}, nil)
}

type clock struct{ *conn }

func (c clock) SetClock(ctx context.Context, offset time.Duration) error {
	return c.call(ctx, "clock", struct {
		Offset duration `json:"offset"`
	}{duration(offset)}, nil)
}

type storeFaulter struct{ *conn }

func (s storeFaulter) ArmStore(ctx context.Context, f systems.StoreFault, fired func(systems.StoreFired)) (func(context.Context) error, error) {
	s.mu.Lock()
	s.fired[f.Label] = func(l line) error {
		one := systems.StoreFired{Operation: l.Operation}
		for _, m := range l.Messages {
			r := systems.RowOf(m.system(), evidence.RowPending)
			one.Items = append(one.Items, evidence.FrameItem{BusinessID: r.BusinessID, PublishID: r.PublishID, MessageID: r.MessageID})
		}
		fired(one)
		return nil
	}
	s.mu.Unlock()
	err := s.call(ctx, "arm", struct {
		Label     string   `json:"label"`
		Verb      string   `json:"verb"`
		Operation string   `json:"operation,omitempty"`
		After     bool     `json:"after,omitempty"`
		N         int      `json:"n"`
		Every     bool     `json:"every,omitempty"`
		Delay     duration `json:"delay,omitempty"`
	}{f.Label, f.Verb, f.Operation, f.After, f.N, f.Every, duration(f.Delay)}, nil)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		return s.call(ctx, "heal", struct {
			Label string `json:"label"`
		}{f.Label}, nil)
	}, nil
}
