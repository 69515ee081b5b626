package core

import (
	"math"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/wire"
)

// message is an at-least-once message, from its publish until it is finished or
// its dead letter is discarded. A million of them may be held at once, so fields
// are few and small, and content may be in the store only.
type message struct {
	id             string
	businessID     string
	lastConsumer   string
	reason         string   // why it is dead, or what ended it; before that, the last error text
	content        *content // nil: only in the store
	topic          *topic   // nil once finished
	sub            *subscription
	links[message]           // in sub's pipeline or inFlight
	repeaters      *[]caller // publishes of the same message ID received while it was being stored

	rank      uint64 // order of arrival in this process
	inserted  int64  // wall clock, ns
	expires   int64
	keepUntil int64 // if finished: wall clock, ns
	wakes     time.Duration
	size      int // bytes of content

	// A delivery is sent only after its attempt is durable, so that attempts are
	// bounded, and redeliveries marked, across a crash too. The insert records
	// the first attempt if a competitor with credit is present.
	attempts  int32 // made, including those before a restart
	recorded  int32 // durable
	recording int32 // being stored

	queued, timer, deadline, kin, resident place // positions in topic.queue, Core.timers, Core.deadlines, the family, Core.resident

	state    state
	fetching bool
}

// content is what a delivery carries.
type content struct {
	key     string
	headers map[string]string
	payload []byte
}

func (b *content) size() int {
	n := len(b.key) + len(b.payload)
	for name, value := range b.headers {
		n += len(name) + len(value)
	}
	return n
}

type state uint8

const (
	persisting state = iota + 1
	redriven         // from the dead letters, being stored
	pending
	assigned  // to a subscription; its attempt or content is not ready yet
	inFlight  // delivered and unacknowledged
	delayed   // pending, but not before a certain time
	uncertain // answered Unknown and being deleted
	settled
	expired
	ended // before this start: how is not recorded
	dead
	discarded
	refused // a stored row of another protocol version
	damaged // a stored row that fails its checksum
)

func (s state) unsettled() bool { return s >= persisting && s <= delayed }

// finished reports whether only the message's IDs are remembered.
func (s state) finished() bool {
	return s == settled || s == expired || s == discarded || s == ended
}

// row returns the complete row to insert.
func (m *message) row() store.Row {
	return store.Row{
		State: store.Pending, MessageID: m.id, BusinessID: m.businessID, Topic: m.topic.name,
		Key: m.content.key, Headers: m.content.headers, Payload: m.content.payload, Version: wire.Version,
		InsertedAt: time.Unix(0, m.inserted), ExpiresAt: time.Unix(0, m.expires),
		Attempts: int(m.recording), LastConsumer: m.lastConsumer,
	}
}

func byRank() heap[*message] {
	return heap[*message]{
		before: func(a, b *message) bool { return a.rank < b.rank },
		place:  func(m *message) *place { return &m.queued },
	}
}

func byWaking() heap[*message] {
	return heap[*message]{
		before: func(a, b *message) bool { return a.wakes < b.wakes || a.wakes == b.wakes && a.rank < b.rank },
		place:  func(m *message) *place { return &m.timer },
	}
}

func byDeadline() heap[*message] {
	return heap[*message]{
		before: func(a, b *message) bool { return a.expires < b.expires || a.expires == b.expires && a.rank < b.rank },
		place:  func(m *message) *place { return &m.deadline },
	}
}

// wake sets the message's timer, which timeouts handles.
func (c *Core) wake(m *message, at time.Duration) {
	m.wakes = at
	c.timers.fix(m)
}

// limitLife registers a waiting message's deadline, which maintain handles.
func (c *Core) limitLife(m *message) { c.deadlines.fix(m) }

// become changes the state, and thereby possibly which message answers for the
// business ID.
func (c *Core) become(m *message, s state) {
	before := lookups[m.state].weight
	m.state = s
	if m.kin > 0 && lookups[s].weight != before {
		if kin := c.business[m.businessID]; len(kin) > 1 {
			f := kin.heap()
			f.fix(m)
		}
	}
}

// remember adds a new message to the state.
func (c *Core) remember(m *message) {
	c.lastRank++
	m.rank = c.lastRank
	c.messages[m.id] = m
	c.held += m.cost()
	if m.businessID != "" {
		f := c.business[m.businessID].heap()
		f.push(m)
		c.business[m.businessID] = f.items
	}
	if m.state.unsettled() {
		c.occupy(m.topic)
		c.limitLife(m)
	}
}

// family is the unfinished messages with the same business ID, as a heap: the
// first one answers lookups.
type family []*message

func (f family) heap() heap[*message] {
	return heap[*message]{
		items: f,
		before: func(a, b *message) bool {
			if wa, wb := lookups[a.state].weight, lookups[b.state].weight; wa != wb {
				return wa > wb
			}
			return a.rank < b.rank
		},
		place: func(m *message) *place { return &m.kin },
	}
}

// finish ends a message in a final state. Of a finished message only the IDs are
// kept.
func (c *Core) finish(m *message, final state) {
	c.drop(m)
	c.deadlines.remove(m)
	if m.state.unsettled() {
		c.dequeue(m)
		c.vacate(m.topic)
	}
	c.become(m, final)
	m.topic, m.sub = nil, nil
	if !final.finished() {
		return // remembered as long as a row exists or may exist
	}
	m.keepUntil = c.now.Wall.Add(c.cfg.Settled).UnixNano()
	c.forget(m)
	c.retain(m.id, m.businessID, final, m.inserted, m.keepUntil)
}

// retain remembers the IDs of a finished message.
func (c *Core) retain(id, businessID string, final state, inserted, until int64) {
	c.horizon = max(c.horizon, c.finished.add(id, businessID, final, inserted, until))
	for c.finished.n > c.cfg.Limits.SettledIDs || c.finished.bytes() > c.cfg.Limits.SettledBytes {
		c.forgetOldest()
	}
}

// forgetOldest drops the ID that finished first, and records that absence can no
// longer be proven for anything published up to that message.
func (c *Core) forgetOldest() {
	c.horizon = max(c.horizon, c.finished.oldest().inserted)
	c.finished.drop()
}

// forget removes an unfinished message from the state.
func (c *Core) forget(m *message) {
	c.timers.remove(m)
	if c.messages[m.id] != m {
		return
	}
	delete(c.messages, m.id)
	c.held -= m.cost()
	f := c.business[m.businessID].heap()
	f.remove(m)
	if len(f.items) == 0 {
		delete(c.business, m.businessID)
	} else {
		c.business[m.businessID] = f.items
	}
}

// recover takes over a row stored before this start. Its content stays in the
// store.
func (c *Core) recover(row *store.Row) {
	m := &message{
		id: row.MessageID, businessID: row.BusinessID, size: row.Size,
		inserted: row.InsertedAt.UnixNano(), expires: deadline(row.ExpiresAt),
		attempts: int32(row.Attempts), recorded: int32(row.Attempts), recording: int32(row.Attempts),
		lastConsumer: row.LastConsumer, reason: row.Reason,
	}
	switch row.State {
	case store.Pending:
		m.state, m.topic = pending, c.recoveredTopic(row.Topic)
		c.remember(m)
		c.requeue(m)
	case store.Dead:
		m.state = dead
		c.remember(m)
	case store.RefusedVersion:
		m.state = refused
		c.remember(m)
		c.stats.Refused++
	case store.Damaged:
		// Rows are missing or have damaged IDs, so not knowing an ID no longer
		// proves its absence.
		c.horizon = max(c.horizon, c.now.Wall.UnixNano())
		c.stats.Damaged++
		if m.id != "" {
			m.state = damaged
			c.remember(m)
		}
	default:
		inserted, until := m.inserted, row.KeepUntil
		if row.InsertedAt.IsZero() {
			inserted = c.cfg.Start.UnixNano()
		}
		if until.IsZero() { // history rows stay, but their IDs need not be remembered forever
			until = c.now.Wall.Add(c.cfg.Settled)
		}
		final, recorded := endings[row.Reason]
		if !recorded {
			final = ended
		}
		c.retain(m.id, m.businessID, final, inserted, until.UnixNano())
	}
}

// endings are the final states by what the store keeps of them.
var endings = map[string]state{store.EndAcknowledged: settled, store.EndExpired: expired, store.EndDiscarded: discarded}

// deadline converts a row's deadline; zero means never.
func deadline(t time.Time) int64 {
	if t.IsZero() {
		return math.MaxInt64
	}
	return t.UnixNano()
}

// lookup reports what became of a business ID. The request's TTL says how long
// ago its first publish began. Absence can be proven only with that, because
// finished IDs are remembered for a limited time.
func (c *Core) lookup(s *session, q *wire.Message) {
	reply := wire.Message{Kind: wire.LookupReply, Request: q.Request, BusinessID: q.BusinessID}
	best, id, own := state(0), "", ""
	if kin := c.business[q.BusinessID]; len(kin) > 0 {
		best, id, own = kin[0].state, kin[0].id, kin[0].reason
	}
	for _, final := range [...]state{settled, ended, expired, discarded} {
		if lookups[final].weight <= lookups[best].weight {
			continue
		}
		if r, there := c.finished.latest(q.BusinessID, final); there {
			best, id, own = final, string(r.id), ""
		}
	}
	switch l := lookups[best]; {
	case q.BusinessID == "":
		reply.Answer, reply.Reason = wire.Refused, "a lookup needs a business ID"
	case best != 0:
		reply.MessageID, reply.Answer, reply.Cause, reply.Reason = id, l.answer, l.cause, l.reason
		if own != "" && (best == dead || l.reason == "") {
			reply.Reason = own
		}
	case q.TTL > 0 && c.now.Wall.Add(-q.TTL).UnixNano() > c.horizon:
		reply.Answer = wire.NotSeen
	default:
		reply.Answer, reply.Reason = wire.Forgotten, "IDs of finished messages are kept for a limited time, and the lookup does not prove that this one is younger"
	}
	reply.Reason = Clip(reply.Reason)
	c.send(s.id, reply)
}

// lookups maps states to answers. Of several messages with the same business ID
// the one with the highest weight answers, and among equals the oldest.
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
	ended:      {5, wire.Forgotten, "it has ended, and how was not recorded", wire.NoCause},
	dead:       {6, wire.Dead, "", wire.NoCause},
	redriven:   {6, wire.Dead, "", wire.NoCause},
	settled:    {7, wire.Settled, "", wire.NoCause},
	refused:    {8, wire.Stored, "written by another protocol version: kept, and never delivered", wire.NoCause},
	damaged:    {8, wire.Stored, "damaged in the store: kept as it is, and never delivered", wire.NoCause},
	pending:    {9, wire.Stored, "", wire.NoCause},
	assigned:   {9, wire.Stored, "", wire.NoCause},
	inFlight:   {9, wire.Stored, "", wire.NoCause},
	delayed:    {9, wire.Stored, "", wire.NoCause},
}
