package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	client "github.com/rabbitmq/amqp091-go"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/links/amqp"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems"
)

// instance is one run's queues on a server, which share a prefix. Safe for
// concurrent use.
type instance struct {
	*clients
	*server
	pool *process.Pool
}

var (
	_ systems.System        = Profile{}
	_ systems.Connector     = Profile{}
	_ systems.Installed     = Profile{}
	_ systems.Contained     = Profile{}
	_ systems.Remote        = Profile{}
	_ systems.Networked     = (*instance)(nil)
	_ systems.Process       = (*instance)(nil)
	_ systems.Inspector     = (*instance)(nil)
	_ systems.Administrator = (*instance)(nil)
	_ systems.Rejecter      = (*delivery)(nil)
	_ process.Kept          = (*server)(nil)
)

// Start takes an untouched server of an earlier run, or starts one.
func (p Profile) Start(ctx context.Context, env systems.Env) (systems.Instance, error) {
	if err := env.NoDefects("rabbitmq"); err != nil {
		return nil, err
	}
	if p.at.Address != "" {
		return p.reach(ctx, env)
	}
	s, err := systems.TakeServer(ctx, env, "rabbitmq", p.kind(), func(log io.WriteCloser) (*server, error) {
		return startServer(ctx, p.image, env.Sink, log)
	})
	if err != nil {
		return nil, err
	}
	in := &instance{clients: newClients(p, s.address, systems.RunName()+"-"), server: s, pool: env.Servers}
	// A node writes metadata of a new queue with a delay: killed within
	// seconds, it loses the queue or restores one that never serves again,
	// although it has confirmed messages in it. Profiles mean queues that have
	// long existed.
	in.settle = s.console.write
	return in, nil
}

// kind is the pool key. One server serves all profiles, which differ in queues
// and clients.
func (p Profile) kind() string { return "rabbitmq " + p.image }

// Stop deletes the run's queues and returns the server to the pool; a server
// that was struck is closed.
func (in *instance) Stop(ctx context.Context) error {
	if in.Untouched() {
		if err := in.deleteQueues(ctx); err != nil {
			return errors.Join(err, in.Close(ctx))
		}
		return errors.Join(in.Detach(), in.pool.Put(ctx, in.profile.kind(), in.server))
	}
	return in.Close(ctx)
}

func (in *instance) deleteQueues(ctx context.Context) error {
	counts, err := in.console.count(ctx, in.prefix)
	if err != nil || len(counts) == 0 {
		return err
	}
	return in.deleteNamed(ctx, slices.Collect(maps.Keys(counts)))
}

func (c *clients) deleteNamed(ctx context.Context, queues []string) error {
	return c.administer(ctx, func(ch *client.Channel) error {
		for _, name := range queues {
			if _, err := ch.QueueDelete(name, false, false, false); err != nil {
				return fmt.Errorf("delete queue %s: %w", name, err)
			}
		}
		return nil
	})
}

func (c *clients) Address() string { return c.address }

// Protocol is nil with TLS: a link cannot read encrypted frames.
func (c *clients) Protocol() links.Protocol {
	if c.profile.at.TLS != nil {
		return nil
	}
	return amqp.Protocol{}
}

// Restart starts the server, which must have stopped.
func (in *instance) Restart(ctx context.Context) error {
	in.forgetQueues()
	return in.server.Restart(ctx)
}

// Rows counts all messages, unacknowledged ones included. It lists them only if
// all are dead letters: neither AMQP nor the node can read a message without
// changing it. Rows and a count of zero are exact.
func (in *instance) Rows(ctx context.Context) (evidence.Snapshot, error) {
	counts, err := in.console.count(ctx, in.prefix)
	if err != nil {
		return evidence.Snapshot{}, err
	}
	snapshot := evidence.Snapshot{Source: evidence.SourceBroker, Trust: evidence.Exact}
	dead := 0
	for name, n := range counts {
		snapshot.Count += n
		if strings.HasSuffix(name, deadSuffix) {
			dead += n
		}
	}
	if snapshot.Count > dead {
		snapshot.Trust = evidence.CountsOnly
		return snapshot, nil
	}
	if dead == 0 {
		return snapshot, nil
	}
	rows, err := in.DeadLetters(ctx)
	switch {
	case err != nil:
		return evidence.Snapshot{}, err
	case len(rows) == dead:
		snapshot.Rows = rows
	default: // one came or went, or is not requeued yet
		snapshot.Trust = evidence.CountsOnly
	}
	return snapshot, nil
}
