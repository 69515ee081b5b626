package kafka

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/custodymq/custody/containers"
	"github.com/custodymq/custody/links"
	kafkalink "github.com/custodymq/custody/links/kafka"
	"github.com/custodymq/custody/systems"
)

// instance is one run's part of a broker. Safe for concurrent use.
type instance struct {
	*clients
	*broker
	servers  *containers.Pool
	protocol links.Protocol
	admin    administrator
	log      log
}

var (
	_ systems.System    = Profile{}
	_ systems.Connector = Profile{}
	_ systems.Installed = Profile{}
	_ systems.Networked = (*instance)(nil)
	_ systems.Process   = (*instance)(nil)
	_ systems.Inspector = (*instance)(nil)
	_ systems.Rejecter  = (*groupDelivery)(nil)
	_ systems.Rejecter  = (*shareDelivery)(nil)
)

// Start takes a broker that an earlier run has left as it was, or starts one on
// free ports of 127.0.0.1 in a folder of its own.
func (p Profile) Start(ctx context.Context, env systems.Env) (systems.Instance, error) {
	if env.Defect != "" {
		return nil, fmt.Errorf("kafka: no seeded defect %q: this adapter has none", env.Defect)
	}
	log, err := env.Log(serverName)
	if err != nil {
		return nil, fmt.Errorf("kafka: log of the server: %w", err)
	}
	b, kept := containers.Take[*broker](ctx, env.Servers, p.serverKey())
	if kept {
		b.Attach(env.Sink, log)
	} else if b, err = p.newBroker(env.Sink, log); err != nil {
		return nil, errors.Join(err, log.Close())
	} else if err := p.startBroker(ctx, b); err != nil {
		return nil, errors.Join(err, b.Close(context.WithoutCancel(ctx)))
	}
	admin, err := newAdministrator(b.address)
	if err != nil {
		return nil, errors.Join(err, b.Close(context.WithoutCancel(ctx)))
	}
	prefix := names("custody-" + strings.ToLower(rand.Text()[:10]))
	return &instance{clients: p.clients(b.address, prefix), broker: b, servers: env.Servers, protocol: kafkalink.New(), admin: admin}, nil
}

func (p Profile) startBroker(ctx context.Context, b *broker) error {
	ctx, cancel := context.WithTimeout(ctx, p.scaled(readyBound))
	defer cancel()
	return b.Restart(ctx)
}

// serverKey names everything that makes two brokers alike.
func (p Profile) serverKey() string { return fmt.Sprintf("kafka %g", p.scale) }

func (in *instance) Address() string          { return in.broker.address }
func (in *instance) Protocol() links.Protocol { return in.protocol }

// Stop deletes what the run has made, and leaves the broker to the next run if
// nothing has struck it.
func (in *instance) Stop(ctx context.Context) error {
	var err error
	if in.Untouched() {
		err = in.clear(ctx)
	}
	in.admin.Close()
	err = errors.Join(err, in.Detach())
	return errors.Join(err, in.servers.Put(ctx, in.profile.serverKey(), in.broker))
}

// clear deletes the topics and groups of the run. A group whose member was
// killed is there until its session has run out.
func (in *instance) clear(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, in.profile.scaled(adminBound))
	defer cancel()
	groups, err := in.groups(ctx)
	if err != nil {
		return err
	}
	for _, group := range groups {
		if err := in.remove(ctx, group); err != nil {
			return err
		}
	}
	topics, err := in.admin.ListTopics(ctx)
	if err != nil {
		return fmt.Errorf("kafka: list the topics: %w", err)
	}
	var mine []string
	for topic := range topics {
		if in.names.has(topic) {
			mine = append(mine, topic)
		}
	}
	if len(mine) == 0 {
		return nil
	}
	deleted, err := in.admin.DeleteTopics(ctx, mine...)
	if err = errors.Join(err, deleted.Error()); err != nil {
		return fmt.Errorf("kafka: delete the topics of the run: %w", err)
	}
	return nil
}

// groups of the run, whoever has opened them.
func (in *instance) groups(ctx context.Context) ([]string, error) {
	listed, err := in.admin.ListGroups(ctx)
	if err != nil {
		return nil, fmt.Errorf("kafka: list the groups: %w", err)
	}
	var mine []string
	for group := range listed {
		if _, _, ok := in.names.subscriber(group); ok {
			mine = append(mine, group)
		}
	}
	return mine, nil
}

// remove deletes a group once it has no member.
func (in *instance) remove(ctx context.Context, group string) error {
	tick := time.NewTicker(backoff)
	defer tick.Stop()
	for {
		_, err := in.admin.DeleteGroup(ctx, group)
		if err == nil || errors.Is(err, kerr.GroupIDNotFound) {
			return nil
		}
		if !errors.Is(err, kerr.NonEmptyGroup) {
			return fmt.Errorf("kafka: delete group %s: %w", group, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("kafka: delete group %s: %w", group, err)
		}
	}
}
