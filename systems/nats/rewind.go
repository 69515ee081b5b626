package nats

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/custodymq/custody/systems"
)

var _ systems.Rewinder = clients{}

// Position is the stream's last sequence: one for all destinations.
func (c clients) Position(ctx context.Context, _ string) (string, error) {
	var last uint64
	err := c.administer(ctx, func(js jetstream.JetStream) error {
		stream, err := js.Stream(ctx, c.profile.stream)
		if err == nil {
			last = stream.CachedInfo().State.LastSeq
		}
		return err
	})
	return strconv.FormatUint(last, 10), err
}

// Rewind deletes the subscriber's durable consumer and recreates it at another
// position: the start of a consumer cannot be changed.
func (c clients) Rewind(ctx context.Context, destination, subscription string, to systems.Point) error {
	subject, err := subjectOf(c.profile.stream, destination)
	if err != nil {
		return err
	}
	config := c.profile.consumerConfig(destination, subscription, subject)
	if to.Position == "" {
		config.DeliverPolicy, config.OptStartTime = jetstream.DeliverByStartTimePolicy, &to.Time
	} else {
		last, err := strconv.ParseUint(to.Position, 10, 64)
		if err != nil {
			return fmt.Errorf("nats: %q is not a stream position: %w", to.Position, err)
		}
		config.DeliverPolicy, config.OptStartSeq = jetstream.DeliverByStartSequencePolicy, last+1
	}
	return c.administer(ctx, func(js jetstream.JetStream) error {
		if err := js.DeleteConsumer(ctx, c.profile.stream, config.Durable); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
			return err
		}
		_, err := js.CreateConsumer(ctx, c.profile.stream, config)
		return err
	})
}
