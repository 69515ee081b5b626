// Package core is the reference broker's state machine: inputs are what
// sessions say, what the store answered and time; outputs are effects (send
// this, store that, wake me then). It does no I/O, reads no clock, starts no
// goroutine and draws no random number, so that the same inputs give the same
// effects, in a server, in a simulation and in a test.
//
// The life of an at-least-once message:
//
//	offered → persisting → pending ⇄ assigned → in flight → settled
//	            │            │ ⇄ delayed           │
//	            │            └→ expired            └→ dead-lettered(reason)
//	            ├→ rejected                           (nothing was written)
//	            └→ uncertain → deleted                (it may have been written)
//	offered → declined                                (nothing was tried)
package core

import (
	"math"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/wire"
)

// Machine is what the server drives: a Core, possibly wrapped by a seam.
type Machine interface {
	// Step processes one input and appends its effects to out. The effects are
	// valid until the next Step and must be carried out in order.
	Step(in *Input, now Instant, out []Effect) []Effect
}

// Instant is the time of a step. It has two clocks because they fail differently:
// the wall clock may be set while the broker runs, and decides only expiry;
// elapsed time is monotonic, and decides timeouts.
type Instant struct {
	Wall    time.Time
	Elapsed time.Duration // since the broker began
}

// Session identifies a connection while the broker runs. It is never reused.
type Session uint64

// Input is one event.
type Input struct {
	Kind    InputKind
	Session Session
	Message wire.Message // Opened: the Hello; Received; Found: the Admin command
	Reason  string       // Malformed
	Ticket  uint64       // Stored
	Err     error        // Stored: nil, *store.Failure, or another error (uncertain); Fetched: why it could not be read
	Row     store.Row    // Recovered, Found; Fetched: State is 0 if the row is not there
	IDs     []string     // Purged
	Size    int          // Fetched: as the effect said
}

// InputKind is the kind of an input.
type InputKind uint8

const (
	Opened    InputKind = iota + 1 // a session said a valid Hello
	Closed                         // a session has ended
	Received                       // a session sent a message
	Malformed                      // a session sent bytes that are not a message
	Stored                         // the operation with this ticket is durable, or failed
	Recovered                      // a row found at startup, before any session, in order
	Purged                         // the store deleted these expired rows
	Found                          // the dead letter that an Inspect requested
	Fetched                        // the content that a Fetch requested, or Err
	Tick                           // the time set by Arm has come
	Drain                          // the broker is stopping: nothing more is delivered
)

// Effect is one thing to do.
type Effect struct {
	Kind      EffectKind
	Session   Session         // Persist: of whose input it is an effect; 0 if of none
	Message   wire.Message    // Send; Inspect, Swap: the Admin command
	Ticket    uint64          // Persist: named again in Stored
	Operation store.Operation // Persist
	Wall      time.Time       // Purge: what has expired by then
	Elapsed   time.Duration   // Arm
	Reason    string          // CloseSession
	ID        string          // Fetch: the message
	Size      int             // Persist, Fetch: of the message's content, bytes
}

// EffectKind is the kind of an effect.
type EffectKind uint8

const (
	Send         EffectKind = iota + 1 // Message to Session
	Persist                            // make Operation durable, in the order of the effects
	Arm                                // Tick at Elapsed; replaces the earlier Arm
	CloseSession                       // after what was sent
	Purge                              // store.Expired, after the operations before it
	Fetch                              // read the content of a message
	Inspect                            // read rows for an Admin command: dlq.list, dlq.show and rows are answered by the server, dlq.redrive and dlq.discard come back as Found
	Swap                               // move to the store of another connection, as the Admin command Message says, and answer it
)

// Config configures a Core. The zero value of a field is not a default: the
// server fills in defaults.
type Config struct {
	Name        string // of the broker, sent to clients
	IDPrefix    string // of message IDs assigned here; unique per start
	Start       time.Time
	HasStore    bool
	MaxAttempts int
	Visibility  time.Duration // how long a delivery may stay unacknowledged
	Backoff     Backoff       // before redelivery after a NACK without a delay
	DefaultTTL  time.Duration
	MaxTTL      time.Duration
	ExpiryEvery time.Duration // between two purges
	StoreRetry  time.Duration // before a failed delete, mark or attempt is retried
	Settled     time.Duration // how long a finished message's ID is remembered
	Heartbeat   time.Duration // sent to clients
	KeepHistory bool          // settled rows are marked processed instead of deleted
	// StoreInMemory says that the store keeps its content in memory anyway, so
	// that dropping content here would save nothing.
	StoreInMemory bool
	// ConfirmAfterDelete delays the answer to an ACK until the delete is durable.
	// Otherwise the answer means only that delivery has stopped.
	ConfirmAfterDelete bool
	Limits             Limits
}

// Backoff doubles from Base up to Max with each attempt.
type Backoff struct{ Base, Max time.Duration }

func (b Backoff) after(attempt int) time.Duration {
	d := b.Base
	for ; attempt > 1 && d < b.Max; attempt-- {
		d *= 2
	}
	return min(d, b.Max)
}

// Limits bound everything that a peer could make grow.
type Limits struct {
	Sessions      int
	Subscriptions int   // per session
	InFlight      int   // per subscription
	InFlightBytes int   // unacknowledged payload per session; a single message may exceed it
	PublishWindow int   // unanswered publishes per session
	Messages      int   // unsettled, in all topics
	Topics        int   // remembered
	SettledIDs    int   // kept in memory; the oldest are dropped first
	Listeners     int   // subscriptions per filter and mode
	FanOut        int   // copies of an at-most-once message
	Memory        int64 // bytes of messages, topics and subscriptions, excluding finished messages; 0: no limit
	SettledBytes  int64 // for the IDs of finished messages; 0: no limit
	Errors        int   // malformed messages before a session is closed
}

// Core is the broker's state. It is not safe for concurrent use.
type Core struct {
	cfg Config
	now Instant
	out []Effect

	sessions      map[Session]*session
	subscriptions int
	filters       filters
	topics        map[string]*topic
	idle          chain[topic, *topic] // without messages, least recently used first
	stocked       []*topic             // hold pending messages that no one could take
	messages      map[string]*message  // by message ID, until they are finished
	business      map[string]family    // the same messages by business ID
	finished      finished
	horizon       int64 // every publish after it (wall clock, ns) is remembered
	unsettled     int
	tickets       map[uint64]ticket
	timers        heap[*message] // by elapsed time
	deadlines     heap[*message] // by wall clock

	held     int64      // bytes, see memory.go
	resident []*message // messages whose content may be dropped
	wanted   fifo[*message]
	fetches  int   // in progress
	fetched  int64 // bytes requested by them

	lastTicket, lastID, lastRank uint64
	armed                        time.Duration
	nextPurge                    time.Duration
	maintaining                  bool
	draining                     bool

	// Work for dispatch, in this order.
	leaving fifo[*subscription] // ended, but still hold messages
	joining fifo[*competitors]  // have not seen all topics yet
	touched fifo[*topic]        // received a message
	hungry  fifo[*subscription] // received credit
	budget  int                 // left in this step
	asking  Session             // the session whose input this step processes

	stats Stats
}

// Stats count what happened since the start; the answer to Admin "stats".
type Stats struct {
	Sessions      int    `json:"sessions"`
	Subscriptions int    `json:"subscriptions"`
	Unsettled     int    `json:"unsettled"`
	Held          int64  `json:"heldBytes"`
	Accepted      uint64 `json:"accepted"`
	Declined      uint64 `json:"declined"`
	Rejected      uint64 `json:"rejected"`
	Unknown       uint64 `json:"unknown"`
	Delivered     uint64 `json:"delivered"`
	Redelivered   uint64 `json:"redelivered"`
	Settled       uint64 `json:"settled"`
	Expired       uint64 `json:"expired"`
	DeadLettered  uint64 `json:"deadLettered"`
	Refused       uint64 `json:"refusedRows"` // rows of another protocol version, left untouched
	Damaged       uint64 `json:"damagedRows"` // rows that fail their checksum, left untouched
	StoreFailures uint64 `json:"storeFailures"`
}

// New returns a Core without sessions and messages.
func New(cfg Config) *Core {
	for _, bytes := range []*int64{&cfg.Limits.Memory, &cfg.Limits.SettledBytes} {
		if *bytes == 0 {
			*bytes = math.MaxInt64
		}
	}
	return &Core{
		cfg:      cfg,
		sessions: map[Session]*session{},
		topics:   map[string]*topic{},
		messages: map[string]*message{},
		business: map[string]family{},
		filters:  filters{version: 1}, // topics start at 0, so each looks up its listeners
		finished: newFinished(),
		tickets:  map[uint64]ticket{},
		timers:   byWaking(), deadlines: byDeadline(),
		// A marker outlives its message's settlement by cfg.Settled, so anything
		// published within that time before the start is still in the store.
		horizon:   cfg.Start.Add(-cfg.Settled).UnixNano(),
		armed:     -1,
		nextPurge: cfg.ExpiryEvery,
	}
}

var _ Machine = (*Core)(nil)

// Step implements Machine.
func (c *Core) Step(in *Input, now Instant, out []Effect) []Effect {
	c.now, c.out, c.budget, c.asking = now, out, stepBudget, in.Session
	switch in.Kind {
	case Opened:
		c.open(in.Session, &in.Message)
	case Closed:
		c.close(in.Session)
	case Received:
		if s := c.sessions[in.Session]; s != nil {
			c.receive(s, &in.Message)
		}
	case Malformed:
		if s := c.sessions[in.Session]; s != nil {
			c.refuse(s, in.Message.Request, in.Reason)
		}
	case Stored:
		c.stored(in.Ticket, in.Err)
	case Recovered:
		c.recover(&in.Row)
	case Purged:
		c.purged(in.IDs)
	case Found:
		c.found(in)
	case Fetched:
		c.contentHere(&in.Row, in.Size, in.Err)
	case Drain:
		c.draining = true
	case Tick:
		c.armed, c.budget = -1, tickBudget
		c.timeouts()
		c.maintain()
	}
	if !c.draining {
		c.dispatch()
		c.fetch()
		c.arm()
	}
	out, c.out = c.out, nil
	return out
}

type handler func(*Core, *session, *wire.Message)

// handlers lists what a client may send; every other kind is refused.
var handlers = map[wire.Kind]handler{
	wire.Publish:     (*Core).publish,
	wire.Subscribe:   (*Core).subscribe,
	wire.Unsubscribe: (*Core).unsubscribe,
	wire.Credit:      (*Core).credit,
	wire.Ack:         (*Core).ack,
	wire.Nack:        (*Core).nack,
	wire.Lookup:      (*Core).lookup,
	wire.Admin:       (*Core).admin,
	wire.Ping:        (*Core).ping,
	wire.Pong:        func(*Core, *session, *wire.Message) {},
}

func (c *Core) receive(s *session, m *wire.Message) {
	h := handlers[m.Kind]
	if h == nil {
		c.refuse(s, m.Request, "this kind of message is not for the broker, or was said already")
		return
	}
	h(c, s, m)
}

func (c *Core) ping(s *session, m *wire.Message) {
	c.send(s.id, wire.Message{Kind: wire.Pong, Request: m.Request})
}

// refuse answers with an Error and keeps the session, up to a limit: one bad
// message must not cost a peer its session, and a stream of them must not cost
// the broker.
func (c *Core) refuse(s *session, request uint64, reason string) {
	c.send(s.id, wire.Message{Kind: wire.Error, Request: request, Reason: Clip(reason)})
	s.errors++
	if s.errors >= c.cfg.Limits.Errors {
		c.out = append(c.out, Effect{Kind: CloseSession, Session: s.id, Reason: "too many malformed messages"})
		c.close(s.id)
	}
}

func (c *Core) send(to Session, m wire.Message) {
	c.out = append(c.out, Effect{Kind: Send, Session: to, Message: m})
}

// ticket says what an operation sent to the store was for.
type ticket struct {
	kind    store.OperationKind
	m       *message
	attempt int32
	asker   caller // who waits for the result
}

// caller is who waits for an answer. The zero value means no one.
type caller struct {
	session Session
	request uint64
}

func (c *Core) persist(t ticket, row store.Row) {
	c.lastTicket++
	c.tickets[c.lastTicket] = t
	c.out = append(c.out, Effect{Kind: Persist, Session: c.asking, Ticket: c.lastTicket, Operation: store.Operation{Kind: t.kind, Row: row}, Size: t.m.size})
}

func (c *Core) arm() {
	next := c.nextPurge
	if c.timers.len() > 0 {
		next = min(next, c.timers.first().wakes)
	}
	if c.unfinished() {
		next = min(next, c.now.Elapsed)
	}
	if next != c.armed && (c.armed < 0 || c.armed > c.now.Elapsed) {
		c.armed = next
		c.out = append(c.out, Effect{Kind: Arm, Elapsed: next})
	}
}

// Clip shortens a text to what the protocol allows, at a character boundary.
func Clip(s string) string {
	if len(s) <= wire.MaxReason {
		return s
	}
	n := wire.MaxReason
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n]
}
