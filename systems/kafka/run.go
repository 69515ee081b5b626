package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/custodymq/custody/links"
	kafkalink "github.com/custodymq/custody/links/kafka"
	"github.com/custodymq/custody/systems"
)

// run is one run's topics and groups on a broker, which share a prefix. Safe
// for concurrent use.
type run struct {
	*clients
	protocol links.Protocol
	admin    administrator
	log      log
}

func (p Profile) newRun(address string) (*run, error) {
	admin, err := p.newAdministrator(address)
	if err != nil {
		return nil, err
	}
	r := &run{clients: p.clients(address, names(systems.RunName())), admin: admin}
	if p.at.TLS == nil { // otherwise links cannot read frames
		r.protocol = kafkalink.New()
	}
	return r, nil
}

func (r *run) Address() string          { return r.address }
func (r *run) Protocol() links.Protocol { return r.protocol }

// clear deletes the run's topics and groups. A group whose member was killed
// remains until its session times out.
func (r *run) clear(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.profile.scaled(adminBound))
	defer cancel()
	groups, err := r.groups(ctx)
	if err != nil {
		return err
	}
	for _, group := range groups {
		if err := r.remove(ctx, group); err != nil {
			return err
		}
	}
	topics, err := r.admin.ListTopics(ctx)
	if err != nil {
		return fmt.Errorf("kafka: list the topics: %w", err)
	}
	var mine []string
	for topic := range topics {
		if r.names.has(topic) {
			mine = append(mine, topic)
		}
	}
	if len(mine) == 0 {
		return nil
	}
	deleted, err := r.admin.DeleteTopics(ctx, mine...)
	if err = errors.Join(err, deleted.Error()); err != nil {
		return fmt.Errorf("kafka: delete the topics of the run: %w", err)
	}
	return nil
}

// groups of the run, whoever created them.
func (r *run) groups(ctx context.Context) ([]string, error) {
	listed, err := r.admin.ListGroups(ctx)
	if err != nil {
		return nil, fmt.Errorf("kafka: list the groups: %w", err)
	}
	var mine []string
	for group := range listed {
		if _, _, ok := r.names.subscriber(group); ok {
			mine = append(mine, group)
		}
	}
	return mine, nil
}

// remove deletes a group once it has no member.
func (r *run) remove(ctx context.Context, group string) error {
	tick := time.NewTicker(backoff)
	defer tick.Stop()
	for {
		_, err := r.admin.DeleteGroup(ctx, group)
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
