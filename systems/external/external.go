package external

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// System is an adapter's profile on a server of the user's own.
type System struct {
	startless // the adapter's, at the server's address
	path      string
	file      file
	scale     float64
	remote    bool         // the address may be on another machine
	inUse     *atomic.Bool // by a run that may strike the server
}

// startless is what an adapter offers for a server that it did not start.
type startless interface {
	systems.System
	systems.Connector
}

var (
	_ systems.System    = System{}
	_ systems.Connector = System{}
	_ systems.Exclusive = System{}
)

// Open reads a file. find looks up the adapter's profile it names.
func Open(path string, scale float64, find func(spec string, scale float64) (systems.System, error)) (systems.System, error) {
	f, err := read(path)
	if err != nil {
		return nil, err
	}
	base, err := find(f.System, scale)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.locate("system"), err)
	}
	adapter, ok := base.(systems.Remote)
	if !ok {
		return nil, fmt.Errorf("%s: the adapter of %s supports only servers that it starts itself", f.locate("system"), base.Describe().System)
	}
	profile := f.Behaviour.over(base.Describe().Profile)
	profile.Limits = f.Limits.over(profile.Limits, scale)
	if err := f.checkLimits(profile.Limits); err != nil {
		return nil, err
	}
	if err := f.checkClaims(profile); err != nil {
		return nil, err
	}
	endpoint, err := f.endpoint()
	if err != nil {
		return nil, err
	}
	there, ok := adapter.At(endpoint).(startless)
	if !ok {
		return nil, fmt.Errorf("%s: the adapter of %s does not support consumers in child processes", f.locate("system"), base.Describe().System)
	}
	return System{startless: there, path: path, file: f, scale: scale, inUse: new(atomic.Bool)}, nil
}

// endpoint reads the secrets from the environment.
func (f file) endpoint() (systems.Endpoint, error) {
	e := systems.Endpoint{Address: f.Address}
	for _, s := range []struct {
		field, variable string
		to              *string
	}{{"user-from", f.UserFrom, &e.User}, {"password-from", f.PasswordFrom, &e.Password}} {
		if s.variable == "" {
			continue
		}
		value, ok := os.LookupEnv(s.variable)
		if !ok {
			return systems.Endpoint{}, fmt.Errorf("%s: the environment variable %s is not set; export it", f.locate(s.field), s.variable)
		}
		*s.to = value
	}
	if f.TLS == nil {
		return e, nil
	}
	host, _, _ := net.SplitHostPort(f.Address) // validated before
	e.TLS = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
	if f.TLS.ServerName != "" {
		e.TLS.ServerName = f.TLS.ServerName
	}
	if f.TLS.CA != "" {
		authority, err := evidence.ReadRegular(f.TLS.CA, maxFile)
		if err != nil {
			return systems.Endpoint{}, fmt.Errorf("%s: %w", f.locate("tls.ca"), err)
		}
		e.TLS.RootCAs = x509.NewCertPool()
		if !e.TLS.RootCAs.AppendCertsFromPEM(authority) {
			return systems.Endpoint{}, fmt.Errorf("%s: %s contains no PEM certificate", f.locate("tls.ca"), f.TLS.CA)
		}
	}
	return e, nil
}

// AllowRemote permits a file's server on another machine. Other systems are
// returned unchanged.
func AllowRemote(s systems.System) systems.System {
	if s, ok := s.(System); ok {
		s.remote = true
		return s
	}
	return s
}

// Path returns the path of the file.
func (s System) Path() string { return s.path }

// Exclusive: all runs share the server.
func (s System) Exclusive() bool { return s.struck() }

func (s System) struck() bool { return len(s.file.Kill) > 0 }

// Describe returns the adapter's description, overridden by the file.
func (s System) Describe() systems.Description {
	d := s.startless.Describe()
	d.Profile.Summary = "a server of your own, with the settings of " + s.file.System + ": " + d.Profile.Summary
	d.Profile.Name = s.file.Name
	d.Profile = s.file.Behaviour.over(d.Profile)
	d.Profile.Limits = s.file.Limits.over(d.Profile.Limits, s.scale)
	if s.file.Claims != nil {
		d.Claims = nil
		for _, c := range s.file.Claims {
			d.Claims = append(d.Claims, evidence.Claim{Guarantee: c.Guarantee, Under: c.Under, Owner: evidence.OwnerSystem, Source: "the profile " + s.file.Name})
		}
	}
	for _, k := range s.file.Known {
		d.Known = append(d.Known, evidence.Known(k))
	}
	if s.struck() {
		d.Lacks[systems.NeedPause] = "the server's commands start, stop and kill it, but cannot pause it"
	} else {
		d.Lacks[systems.NeedProcess] = "the server is external, and no commands are given that start, stop and kill it"
	}
	if s.file.TLS != nil {
		d.Lacks[systems.NeedFrames] = "TLS ends at the server, so the link sees no frames"
	}
	return d
}

// Start connects a run to the server. It starts no process.
func (s System) Start(ctx context.Context, env systems.Env) (systems.Instance, error) {
	if host, _, _ := net.SplitHostPort(s.file.Address); !s.remote && !loopback(host) {
		return nil, fmt.Errorf("%s: %s is not on this machine, and a test floods it and may strike it; pass --allow-remote to permit that", s.file.locate("address"), s.file.Address)
	}
	if !s.struck() {
		return s.startless.Start(ctx, env)
	}
	if !s.inUse.CompareAndSwap(false, true) {
		return nil, errors.New("external: another run may strike this server: run one at a time (--parallel 1)")
	}
	in, err := s.start(ctx, env)
	if err != nil {
		s.inUse.Store(false)
		return nil, err
	}
	return in, nil
}

func (s System) start(ctx context.Context, env systems.Env) (systems.Instance, error) {
	log, err := env.Log(commandsLog)
	if err != nil {
		return nil, fmt.Errorf("external: log of the commands: %w", err)
	}
	began, err := s.startless.Start(ctx, env)
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	in, ok := began.(adapterInstance)
	if !ok {
		return nil, errors.Join(fmt.Errorf("external: %s cannot strike a server that it did not start", s.file.System), began.Stop(ctx), log.Close())
	}
	env.Sink.Record(evidence.Event{Kind: evidence.ProcessStarted, Actor: serverName, Reason: "already running: an external server"})
	return &instance{adapterInstance: in, file: s.file, sink: env.Sink, log: log, dir: env.Dir, release: func() { s.inUse.Store(false) }}, nil
}

func loopback(host string) bool {
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}

// Credentials returns an instance's credentials for clients in another process.
func (s System) Credentials(in systems.Instance) string {
	if struck, ok := in.(interface{ adapters() systems.Instance }); ok {
		in = struck.adapters()
	}
	return s.startless.Credentials(in)
}
