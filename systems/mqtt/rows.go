package mqtt

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/eclipse/paho.golang/packets"
	mochimqtt "github.com/mochi-mqtt/server/v2"
	mochipackets "github.com/mochi-mqtt/server/v2/packets"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// inspected is an instance whose server lists its stored messages. Safe for
// concurrent use.
type inspected struct {
	*instance
	kept func(context.Context) ([]kept, error)
}

var _ systems.Inspector = (*inspected)(nil)

// Rows lists what the server keeps for the run's sessions. Settled messages are
// gone.
func (in *inspected) Rows(ctx context.Context) (evidence.Snapshot, error) {
	all, err := in.kept(ctx)
	taken, err2 := in.seats.taken()
	if err := errors.Join(err, err2); err != nil {
		return evidence.Snapshot{}, err
	}
	s := evidence.Snapshot{Source: evidence.SourceBroker, Trust: evidence.Exact, Count: len(all)}
	for _, k := range all {
		row := k.Row
		row.State = evidence.RowPending
		row.Subscription, row.Destination = taken[k.ClientID], in.destination(row.Destination)
		s.Rows = append(s.Rows, row)
	}
	return s, nil
}

// kept is a message stored for a client. Its row's destination is still a
// topic.
type kept struct {
	ClientID string             `json:"client"`
	Row      evidence.StoredRow `json:"row"`
}

// storedBy lists unacknowledged and queued messages, which mochi-mqtt keeps in
// one place.
func storedBy(s *mochimqtt.Server, older bool) []kept {
	all := []kept{}
	for id, client := range s.Clients.GetAll() {
		for _, p := range client.State.Inflight.GetAll(false) {
			if p.FixedHeader.Type != mochipackets.Publish {
				continue // holds an acknowledgement, not a message
			}
			publish := &packets.Publish{Topic: p.TopicName, Payload: p.Payload, Properties: &packets.Properties{}}
			for _, u := range p.Properties.User {
				publish.Properties.User = append(publish.Properties.User, packets.User{Key: u.Key, Value: u.Val})
			}
			if older {
				_ = cutProperties(p.Payload, publish) // a foreign message keeps its payload
			}
			all = append(all, kept{ClientID: id, Row: systems.RowOf(decode(publish), evidence.RowInvalid)})
		}
	}
	return all
}

// handling is a hook that tracks publishes in progress: the server answers one
// before it stores it for subscribers. It handles one per client at a time.
type handling struct {
	mochimqtt.HookBase
	mu   sync.Mutex
	open map[*mochimqtt.Client]chan struct{} // closed when done
}

func (*handling) ID() string { return "handling" }

func (*handling) Provides(hook byte) bool {
	return hook == mochimqtt.OnPublish || hook == mochimqtt.OnPacketProcessed
}

func (h *handling) OnPublish(c *mochimqtt.Client, p mochipackets.Packet) (mochipackets.Packet, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open[c] = make(chan struct{})
	return p, nil
}

func (h *handling) OnPacketProcessed(c *mochimqtt.Client, p mochipackets.Packet, _ error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if done := h.open[c]; done != nil && p.FixedHeader.Type == mochipackets.Publish {
		close(done)
		delete(h.open, c)
	}
}

// wait returns once every publish answered before the call is stored.
func (h *handling) wait(ctx context.Context) error {
	h.mu.Lock()
	open := slices.Collect(maps.Values(h.open))
	h.mu.Unlock()
	for _, done := range open {
		select {
		case <-done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
