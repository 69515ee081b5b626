package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems"
)

// instance is one run's share of a broker started here. Safe for concurrent
// use.
type instance struct {
	*run
	*broker
	servers *process.Pool
}

var (
	_ systems.System    = Profile{}
	_ systems.Connector = Profile{}
	_ systems.Installed = Profile{}
	_ systems.Contained = Profile{}
	_ systems.Networked = (*instance)(nil)
	_ systems.Process   = (*instance)(nil)
	_ systems.Inspector = (*instance)(nil)
	_ systems.Rewinder  = (*instance)(nil)
	_ systems.Rejecter  = (*groupDelivery)(nil)
	_ systems.Rejecter  = (*shareDelivery)(nil)
)

// Start takes an untouched broker of an earlier run, or starts one on free
// ports of 127.0.0.1.
func (p Profile) Start(ctx context.Context, env systems.Env) (systems.Instance, error) {
	if err := env.NoDefects("kafka"); err != nil {
		return nil, err
	}
	if p.at.Address != "" {
		return p.reach(ctx, env)
	}
	b, err := systems.TakeServer(ctx, env, "kafka", p.serverKey(), func(log io.WriteCloser) (*broker, error) {
		b, err := p.newBroker(env.Sink, log)
		if err != nil {
			return nil, err
		}
		if err := p.startBroker(ctx, b); err != nil {
			return nil, errors.Join(err, b.Close(context.WithoutCancel(ctx)))
		}
		return b, nil
	})
	if err != nil {
		return nil, err
	}
	r, err := p.newRun(b.address)
	if err == nil && p.transactional {
		if err = r.admin.syncCommits(ctx); err != nil {
			r.admin.Close()
		}
	}
	if err != nil {
		return nil, errors.Join(err, b.Close(context.WithoutCancel(ctx)))
	}
	return &instance{run: r, broker: b, servers: env.Servers}, nil
}

func (p Profile) startBroker(ctx context.Context, b *broker) error {
	ctx, cancel := context.WithTimeout(ctx, p.scaled(readyBound))
	defer cancel()
	return b.Restart(ctx)
}

// serverKey is the pool key: brokers with the same key are interchangeable.
func (p Profile) serverKey() string { return fmt.Sprintf("kafka %g %s", p.scale, p.image) }

// Stop deletes what the run created and returns the broker to the pool if it is
// untouched.
func (in *instance) Stop(ctx context.Context) error {
	var err error
	if in.Untouched() {
		err = in.clear(ctx)
	}
	in.admin.Close()
	err = errors.Join(err, in.Detach())
	return errors.Join(err, in.servers.Put(ctx, in.profile.serverKey(), in.broker))
}

// Rows continues from the previous snapshot unless the broker was struck.
func (in *instance) Rows(ctx context.Context) (evidence.Snapshot, error) {
	return in.rows(ctx, in.Untouched())
}
