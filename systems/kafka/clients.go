package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/custodymq/custody/systems"
)

// clients opens sessions with a server, whichever process runs it. Safe for
// concurrent use.
type clients struct {
	profile Profile
	address string
	names   names

	mu    sync.Mutex
	made  map[string]bool // topics known to exist
	ready map[string]bool // share groups known to start at the earliest offset
}

func (p Profile) clients(address string, n names) *clients {
	return &clients{profile: p, address: address, names: n, made: make(map[string]bool), ready: make(map[string]bool)}
}

// Credentials are the address of the broker, the prefix of the run's names and
// the SASL mechanism. User and password are not among them: the profile holds
// those.
func (p Profile) Credentials(in systems.Instance) string {
	var r *run
	switch in := in.(type) {
	case *instance:
		r = in.run
	case *remote:
		r = in.run
	default:
		return ""
	}
	return strings.Join([]string{r.address, string(r.names), r.profile.mechanism}, " ")
}

// Connect returns clients of a server that another process started.
func (p Profile) Connect(credentials string) (systems.Clients, error) {
	parts := strings.Split(credentials, " ")
	if _, _, err := net.SplitHostPort(parts[0]); err != nil || len(parts) != 3 || parts[1] == "" {
		return nil, errors.Join(fmt.Errorf("kafka: malformed credentials %q: want address, prefix and mechanism, as returned by Credentials", credentials), err)
	}
	p.mechanism = parts[2]
	return p.clients(parts[0], names(parts[1])), nil
}

func (c *clients) Producer(ctx context.Context, o systems.ProducerOptions) (systems.Producer, error) {
	if err := systems.OnlyDefaultMode("kafka", o.Mode); err != nil {
		return nil, err
	}
	o.Address = cmp.Or(o.Address, c.address)
	return systems.ProducerOf(c.producer(ctx, o))
}

func (c *clients) Consumer(ctx context.Context, o systems.ConsumerOptions) (systems.Consumer, error) {
	if err := systems.OnlyDefaultMode("kafka", o.Mode); err != nil {
		return nil, err
	}
	o.Address, o.Window = cmp.Or(o.Address, c.address), max(o.Window, 1)
	topic, err := c.topic(ctx, o.Destination)
	if err != nil {
		return nil, err
	}
	if c.profile.share {
		return c.shareConsumer(ctx, o, topic)
	}
	return c.groupConsumer(ctx, o, topic)
}

// topic returns the topic of a destination, created if necessary.
func (c *clients) topic(ctx context.Context, destination string) (string, error) {
	topic, err := c.names.topic(destination)
	if err != nil {
		return "", err
	}
	return topic, c.once(ctx, c.made, topic, func(ctx context.Context, admin administrator) error {
		_, err := admin.CreateTopic(ctx, c.profile.partitions, 1, c.profile.topicSettings(), topic)
		if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
			return err
		}
		return awaitLeaders(ctx, admin, topic)
	})
}

// once runs do once per name.
func (c *clients) once(ctx context.Context, done map[string]bool, name string, do func(context.Context, administrator) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if done[name] {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, c.profile.scaled(adminBound))
	defer cancel()
	err := c.profile.administer(c.address, func(admin administrator) error { return do(bounded, admin) })
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("%w: %w", systems.ErrUnavailable, err)
	}
	done[name] = err == nil
	return err
}

// awaitLeaders waits until every partition of a topic has a serving leader.
func awaitLeaders(ctx context.Context, admin administrator, topic string) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		ends, err := admin.ListEndOffsets(ctx, topic)
		if err = errors.Join(err, ends.Error()); err == nil && len(ends[topic]) > 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("kafka: topic %s has no leader yet: %w", topic, errors.Join(context.Cause(ctx), err))
		}
	}
}

// fromStart makes a share group start at the earliest offset instead of the
// latest.
func (c *clients) fromStart(ctx context.Context, group string) error {
	return c.once(ctx, c.ready, group, func(ctx context.Context, admin administrator) error {
		request := kmsg.NewPtrIncrementalAlterConfigsRequest()
		resource := kmsg.NewIncrementalAlterConfigsRequestResource()
		config := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
		config.Name, config.Value = "share.auto.offset.reset", kmsg.StringPtr("earliest")
		resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeGroupConfig, group
		resource.Configs = append(resource.Configs, config)
		request.Resources = append(request.Resources, resource)
		response, err := request.RequestWith(ctx, admin.kafka)
		if err != nil {
			return err
		}
		for _, r := range response.Resources {
			err = errors.Join(err, kerr.ErrorForCode(r.ErrorCode))
		}
		return err
	})
}
