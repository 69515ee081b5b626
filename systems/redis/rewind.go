package redis

import (
	"context"
	"fmt"
	"math"
	"strings"

	client "github.com/redis/go-redis/v9"

	"github.com/custodymq/custody/systems"
)

var _ systems.Rewinder = clients{}

// Position is the ID of the stream's last entry.
func (c clients) Position(ctx context.Context, destination string) (string, error) {
	position := beforeAll
	err := c.profile.administer(ctx, c.address, func(ctx context.Context, admin *client.Client) error {
		info, err := admin.XInfoStream(ctx, c.prefix+destination).Result()
		switch {
		case err == nil:
			position = info.LastGeneratedID
		case strings.Contains(err.Error(), "no such key"): // nothing published yet
			err = nil
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("redis: the position of %s: %w", destination, err)
	}
	return position, nil
}

const beforeAll = "0-0"

// Rewind sets the group's last-delivered ID, so that it reads on from the next
// entry. Pending entries stay pending. An ID starts with the time at which its
// entry was stored, in milliseconds.
func (c clients) Rewind(ctx context.Context, destination, subscription string, to systems.Point) error {
	last := to.Position
	if last == "" {
		last = fmt.Sprintf("%d-%d", to.Time.UnixMilli()-1, uint64(math.MaxUint64))
	}
	err := c.profile.administer(ctx, c.address, func(ctx context.Context, admin *client.Client) error {
		return admin.XGroupSetID(ctx, c.prefix+destination, subscription, last).Err()
	})
	if err != nil {
		return fmt.Errorf("redis: rewind %s of %s to %s: %w", subscription, destination, last, err)
	}
	return nil
}
