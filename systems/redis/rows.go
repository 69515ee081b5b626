package redis

import (
	"context"
	"fmt"
	"slices"
	"strings"

	client "github.com/redis/go-redis/v9"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

const (
	scanCount = 1000
	// maxPending bounds the pending entries read per group.
	maxPending = 1 << 20
)

// Rows reads every stream of the run, each with its groups in one transaction.
// Acknowledged entries stay in their stream, so an entry has a row per group,
// pending until the group has settled it, or one pending row if there is no
// group.
func (c clients) Rows(ctx context.Context) (evidence.Snapshot, error) {
	snapshot := evidence.Snapshot{Source: evidence.SourceBroker, Trust: evidence.Exact}
	err := c.profile.administer(ctx, c.address, func(ctx context.Context, admin *client.Client) error {
		names, err := c.names(ctx, admin)
		if err != nil {
			return err
		}
		slices.Sort(names)
		for _, key := range slices.Compact(names) {
			stream, err := readStream(ctx, admin, key)
			if err != nil {
				return fmt.Errorf("redis: read the rows of %s: %w", key, err)
			}
			snapshot.Rows = append(snapshot.Rows, stream.rows(strings.TrimPrefix(key, c.prefix))...)
		}
		return nil
	})
	if err != nil {
		return evidence.Snapshot{}, err
	}
	snapshot.Count = len(snapshot.Rows)
	return snapshot, nil
}

// stream is a snapshot of one stream.
type stream struct {
	key     string
	entries []client.XMessage
	groups  []group
}

// group is the position of a logical subscriber.
type group struct {
	name    string
	last    string         // ID of the last entry delivered
	pending map[string]int // delivery counts of unacknowledged entries, by ID
}

func readStream(ctx context.Context, c *client.Client, key string) (stream, error) {
	known, err := c.XInfoGroups(ctx, key).Result()
	if err != nil {
		return stream{}, err
	}
	// A group created after this has no row yet: nothing was delivered to it.
	var entries *client.XMessageSliceCmd
	var groups *client.XInfoGroupsCmd
	pending := make(map[string]*client.XPendingExtCmd)
	_, err = c.TxPipelined(ctx, func(tx client.Pipeliner) error {
		entries = tx.XRange(ctx, key, "-", "+")
		groups = tx.XInfoGroups(ctx, key)
		for _, g := range known {
			pending[g.Name] = tx.XPendingExt(ctx, &client.XPendingExtArgs{Stream: key, Group: g.Name, Start: "-", End: "+", Count: maxPending})
		}
		return nil
	})
	if err != nil {
		return stream{}, err
	}
	s := stream{key: key, entries: entries.Val()}
	for _, g := range groups.Val() {
		if pending[g.Name] == nil {
			continue
		}
		at := group{name: g.Name, last: g.LastDeliveredID, pending: make(map[string]int)}
		for _, p := range pending[g.Name].Val() {
			at.pending[p.ID] = int(p.RetryCount)
		}
		s.groups = append(s.groups, at)
	}
	return s, nil
}

func (s stream) rows(destination string) (rows []evidence.StoredRow) {
	for _, entry := range s.entries {
		row := systems.RowOf(decode(destination, s.key, entry), evidence.RowPending)
		if len(s.groups) == 0 {
			rows = append(rows, row)
		}
		for _, g := range s.groups {
			of := row
			of.Subscription, of.State = g.name, evidence.RowProcessed
			deliveries, pending := g.pending[entry.ID]
			if pending || newer(entry.ID, g.last) {
				of.State, of.Attempts = evidence.RowPending, deliveries
			}
			rows = append(rows, of)
		}
	}
	return rows
}

// newer compares entry IDs, which are two numbers: "1700000000000-0".
func newer(id, than string) bool {
	a, b := strings.SplitN(id, "-", 2), strings.SplitN(than, "-", 2)
	return slices.CompareFunc(a, b, compareNumbers) > 0
}

// compareNumbers compares decimals of any length without leading zeros.
func compareNumbers(a, b string) int {
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}
