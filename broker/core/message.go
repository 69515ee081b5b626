package core

import (
	"math"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/wire"
)

// message is an at-least-once message from its offer until its ID is forgotten.
type message struct {
	state      state
	id         string
	businessID string
	key        string
	headers    map[string]string
	payload    []byte // nil once finished
	size       int    // of the payload
	topic      *topic // nil once finished
	rank       uint64 // order of arrival here
	inserted   int64  // wall clock, ns
	expires    int64

	// No delivery leaves before its attempt is durable, so attempts are
	// bounded, and marked as repeated, across a crash too. The first attempt
	// rides in the insert whenever a competitor with credit is there.
	attempts  int // made, with those before a restart
	recorded  int // durable
	recording int // on their way to the store

	sub          *subscription // assigned or in flight
	lastConsumer string
	reason       string // why dead or expired; the last error text before
	wakes        time.Duration
	timer        int // place in the heap + 1

	publisher caller   // waits for the insert
	repeaters []caller // published the same message ID meanwhile
	acker     caller   // waits for the delete (ConfirmAfterDelete)
	keepUntil int64    // finished: wall clock, ns

	older *message // of the same business ID
}

type state uint8

const (
	persisting state = iota + 1
	redriven         // from the dead letters, on the way to the store
	pending
	assigned  // to a subscription, its attempt on the way to the store
	inFlight  // delivered and unanswered
	delayed   // pending, not before a time
	uncertain // answered Unknown; being deleted
	settled
	expired
	dead
	discarded
	refused // a stored row of an older protocol version
)

func (s state) unsettled() bool { return s >= persisting && s <= delayed }

// row is the whole row as it is inserted.
func (m *message) row() store.Row {
	return store.Row{
		State: store.Pending, MessageID: m.id, BusinessID: m.businessID, Topic: m.topic.name,
		Key: m.key, Headers: m.headers, Payload: m.payload, Version: wire.Version,
		InsertedAt: time.Unix(0, m.inserted), ExpiresAt: time.Unix(0, m.expires),
		Attempts: m.recording, LastConsumer: m.lastConsumer,
	}
}

// remember puts a message under its IDs.
func (c *Core) remember(m *message) {
	c.lastRank++
	m.rank = c.lastRank
	c.messages[m.id] = m
	if m.businessID != "" {
		m.older = c.business[m.businessID]
		c.business[m.businessID] = m
	}
	if m.state.unsettled() {
		c.unsettled++
		m.topic.unsettled++
	}
}

// finish ends a message's life in a final state; only its IDs stay.
func (c *Core) finish(m *message, final state) {
	if m.state.unsettled() {
		c.unsettled--
		m.topic.unsettled--
	}
	c.timers.stop(m)
	m.state = final
	m.payload, m.headers, m.topic, m.sub = nil, nil, nil, nil
	if final == dead || final == uncertain || final == refused {
		return // remembered for as long as there is a row, or may be
	}
	c.retain(m, c.now.Wall.Add(c.cfg.Settled).UnixNano())
}

func (c *Core) retain(m *message, until int64) {
	m.keepUntil = until
	c.settled = append(c.settled, m)
	if len(c.settled) > c.cfg.Limits.SettledIDs {
		c.forgetOldest()
	}
}

// forgetOldest drops the ID that was finished first, and remembers that from
// its publication backwards nothing can be proven any more.
func (c *Core) forgetOldest() {
	m := c.settled[0]
	c.settled[0] = nil
	c.settled = c.settled[1:]
	c.horizon = max(c.horizon, m.inserted)
	c.forget(m)
}

func (c *Core) forget(m *message) {
	c.timers.stop(m)
	if c.messages[m.id] == m {
		delete(c.messages, m.id)
	}
	if m.businessID == "" {
		return
	}
	if c.business[m.businessID] == m {
		if m.older == nil {
			delete(c.business, m.businessID)
		} else {
			c.business[m.businessID] = m.older
		}
		return
	}
	for at := c.business[m.businessID]; at != nil; at = at.older {
		if at.older == m {
			at.older = m.older
			return
		}
	}
}

// recover takes a row that was stored before this start.
func (c *Core) recover(row *store.Row) {
	m := &message{
		id: row.MessageID, businessID: row.BusinessID, key: row.Key, headers: row.Headers, payload: row.Payload, size: len(row.Payload),
		inserted: row.InsertedAt.UnixNano(), expires: deadline(row.ExpiresAt),
		attempts: row.Attempts, recorded: row.Attempts, recording: row.Attempts,
		lastConsumer: row.LastConsumer, reason: row.Reason,
	}
	st := row.State
	if st == store.Damaged {
		// A message that is missing, or whose IDs are damaged, is not proven
		// absent by their not being here.
		c.horizon = max(c.horizon, c.now.Wall.UnixNano())
		if row.MessageID == "" {
			return
		}
	}
	if st == store.Pending && !store.Readable(row.Version) {
		st = store.RefusedVersion
	}
	if st == store.Pending {
		m.state, m.topic = pending, c.recoveredTopic(row.Topic)
		c.remember(m)
		c.requeue(m)
		return
	}
	final := map[store.State]state{store.Dead: dead, store.RefusedVersion: refused, store.Damaged: refused}[st]
	if final == 0 {
		final = settled
	}
	m.payload, m.headers = nil, nil
	m.state = final
	c.remember(m)
	switch {
	case final == refused:
		c.stats.Refused++
	case final == settled:
		if row.InsertedAt.IsZero() {
			m.inserted = c.cfg.Start.UnixNano()
		}
		until := row.KeepUntil
		if until.IsZero() { // history rows stay; their IDs need not
			until = c.now.Wall.Add(c.cfg.Settled)
		}
		c.retain(m, until.UnixNano())
	}
}

// deadline of a row; a row without one never expires.
func deadline(t time.Time) int64 {
	if t.IsZero() {
		return math.MaxInt64
	}
	return t.UnixNano()
}

// recoveredTopic is never refused: what was accepted once is kept.
func (c *Core) recoveredTopic(name string) *topic {
	if t := c.topic(name); t != nil {
		return t
	}
	t := &topic{name: name, groupTurn: map[string]int{}}
	c.topics[name] = t
	return t
}

// lookup answers for a business ID. TTL in the request says how long ago the
// asker began to publish it: only with that can absence be proven, since the
// IDs of finished messages are kept for a limited time.
func (c *Core) lookup(s *session, q *wire.Message) {
	reply := wire.Message{Kind: wire.LookupReply, Request: q.Request, BusinessID: q.BusinessID}
	best := -1
	for m := c.business[q.BusinessID]; m != nil; m = m.older {
		if r := lookups[m.state]; r.weight > best {
			best = r.weight
			reply.MessageID, reply.Answer, reply.Cause, reply.Reason = m.id, r.answer, r.cause, r.reason
			if m.reason != "" && (m.state == dead || r.reason == "") {
				reply.Reason = m.reason
			}
		}
	}
	switch {
	case q.BusinessID == "":
		reply.Answer, reply.Reason = wire.Refused, "a lookup needs a business ID"
	case best >= 0:
	case q.TTL > 0 && c.now.Wall.Add(-q.TTL).UnixNano() > c.horizon:
		reply.Answer = wire.NotSeen
	default:
		reply.Answer, reply.Reason = wire.Forgotten, "IDs of finished messages are kept for a limited time, and the lookup does not prove that this one is younger"
	}
	reply.Reason = Clip(reply.Reason)
	c.send(s.id, reply)
}

// lookups: of several messages with one business ID the weightiest answers.
var lookups = [...]struct {
	weight int
	answer wire.Answer
	reason string
	cause  wire.Cause
}{
	uncertain:  {1, wire.Unknown, "the store failed, and what may have been written is being deleted", wire.NoCause},
	persisting: {2, wire.Unknown, "on its way to the store", wire.NoCause},
	discarded:  {3, wire.Forgotten, "discarded from the dead letters by command", wire.Discarded},
	expired:    {4, wire.Forgotten, "its time to live passed", wire.Expired},
	dead:       {5, wire.Dead, "", wire.NoCause},
	redriven:   {5, wire.Dead, "", wire.NoCause},
	settled:    {6, wire.Settled, "", wire.NoCause},
	refused:    {7, wire.Stored, "written by another protocol version, or damaged: kept, and never delivered", wire.NoCause},
	pending:    {8, wire.Stored, "", wire.NoCause},
	assigned:   {8, wire.Stored, "", wire.NoCause},
	inFlight:   {8, wire.Stored, "", wire.NoCause},
	delayed:    {8, wire.Stored, "", wire.NoCause},
}
