package kafka

import (
	"encoding/hex"
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
)

// shared is state across connections: a client fetches on one connection,
// commits on another, and learns topic names on a third.
type shared struct {
	topics *links.Pending[[16]byte, string] // newer requests identify a topic by UUID

	mu       sync.Mutex
	sessions *links.Pending[string, *received]    // by client ID
	txns     *links.Pending[string, *transaction] // by transactional ID
}

const (
	maxTopics   = 1 << 12
	maxSessions = 1 << 10 // and transactional IDs
	// maxReceived bounds a session's uncommitted messages.
	maxReceived = 1 << 16
	// maxStored bounds a transaction's messages.
	maxStored = 1 << 12
)

func newShared() *shared {
	return &shared{
		topics:   links.NewPending[[16]byte, string](maxTopics),
		sessions: links.NewPending[string, *received](maxSessions),
		txns:     links.NewPending[string, *transaction](maxSessions),
	}
}

func (s *shared) learn(m *kmsg.MetadataResponse) {
	for i := range m.Topics {
		t := &m.Topics[i]
		if _, known := s.topics.Lookup(t.TopicID); !known && t.Topic != nil && t.TopicID != [16]byte{} {
			s.topics.Add(t.TopicID, *t.Topic)
		}
	}
}

// topic returns a topic's name, however a request identifies it; an unknown
// UUID is used as the name.
func (s *shared) topic(name string, id [16]byte) string {
	if name != "" {
		return name
	}
	if known, ok := s.topics.Lookup(id); ok {
		return known
	}
	return hex.EncodeToString(id[:])
}

// received holds the messages a session received and has not committed.
type received struct {
	mu   sync.Mutex
	open map[spot]evidence.FrameItem
}

// spot is a message's position.
type spot struct {
	topicPartition topicPartition
	offset         int64
}

func (s *shared) session(client string) *received {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, known := s.sessions.Lookup(client)
	if !known {
		r = &received{open: make(map[spot]evidence.FrameItem)}
		s.sessions.Add(client, r)
	}
	return r
}

// transaction is an open transaction: a client produces on one connection and
// commits on another.
type transaction struct {
	mu    sync.Mutex
	items []evidence.FrameItem
}

func (s *shared) transaction(id string) *transaction {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, known := s.txns.Lookup(id)
	if !known {
		t = &transaction{}
		s.txns.Add(id, t)
	}
	return t
}

func (t *transaction) open() []evidence.FrameItem {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.items)
}

func (t *transaction) stored(items []evidence.FrameItem) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.items = append(t.items, items[:min(len(items), maxStored-len(t.items))]...)
}

func (t *transaction) ended() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.items = nil
}

func (r *received) arrived(p topicPartition, offset int64, item evidence.FrameItem) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.open) < maxReceived {
		r.open[spot{p, offset}] = item
	}
}

// committed removes and returns what precedes an offset, in order.
func (r *received) committed(p topicPartition, offset int64) []evidence.FrameItem {
	r.mu.Lock()
	defer r.mu.Unlock()
	var before []int64
	for at := range r.open {
		if at.topicPartition == p && at.offset < offset {
			before = append(before, at.offset)
		}
	}
	slices.Sort(before)
	items := make([]evidence.FrameItem, 0, len(before))
	for _, o := range before {
		items = append(items, r.open[spot{p, o}])
		delete(r.open, spot{p, o})
	}
	return items
}
