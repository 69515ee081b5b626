// Package evidence holds what happened in a run, as plain data: events, stored
// rows, the manifest, and the files that hold them. It imports no other
// package of this module, so that a saved run can be judged without any broker.
package evidence

import "time"

// Event is one observation. It is a flat struct on purpose: one line of JSON,
// one decoder, one schema; fields that do not apply are omitted.
//
// Seq is the order of recording and says nothing about cause: "before" is
// proven only by a call that returned before another was made, by the order of
// frames on one connection, or by a hold.
type Event struct {
	Seq  uint64        `json:"seq"`
	At   time.Duration `json:"at"` // CLOCK_MONOTONIC since the run began, nanoseconds; the same clock in child processes
	Kind Kind          `json:"kind"`

	Actor        string `json:"actor,omitempty"`        // p1, c1, broker, harness; for a frame: the actor whose link carried it
	Session      string `json:"session,omitempty"`      // one connection of an actor, as the actor counts them: "c1#2"
	Subscription string `json:"subscription,omitempty"` // the logical subscriber: a competing set, group or durable identity
	Destination  string `json:"destination,omitempty"`  // topic, queue, stream
	BusinessID   string `json:"business,omitempty"`     // what the application calls it
	PublishID    string `json:"publish,omitempty"`      // producer + counter + try: ours, carried in the payload, one for each call
	MessageID    string `json:"message,omitempty"`      // what the system calls it; may be absent

	Acceptance   Acceptance    `json:"acceptance,omitzero"` // PublishReturned, LookupReturned
	HeldBy       HeldBy        `json:"heldBy,omitzero"`
	Ack          AckOutcome    `json:"ack,omitzero"`           // AckReturned, NackReturned
	Mark         Mark          `json:"mark,omitzero"`          // Delivered
	Attempt      int           `json:"attempt,omitzero"`       // Delivered: as the system counts, from 1; 0 where it does not
	ClientResult string        `json:"clientResult,omitempty"` // PublishReturned: what the call told the application, in words
	Key          string        `json:"key,omitempty"`          // ordering key
	Digest       string        `json:"digest,omitempty"`       // of payload, key and headers: see Envelope
	Size         int           `json:"size,omitzero"`          // payload bytes
	TTL          time.Duration `json:"ttl,omitzero"`           // PublishCalled: asked for; 0 is none

	Link  string      `json:"link,omitempty"`  // Frame*, Fault*: the link's name, that is its actor's
	Conn  int         `json:"conn,omitzero"`   // Frame*: connection number on that link, from 1
	Frame string      `json:"frame,omitempty"` // Frame*: the frame's kind, such as "ack"; for a store operation its name
	To    Direction   `json:"to,omitzero"`     // Frame*: which way it went
	Items []FrameItem `json:"items,omitempty"` // Frame*, FaultFired: the messages in the frame that was carried or hit

	Fault  string `json:"fault,omitempty"`  // Fault*: the label in the script
	Struck string `json:"struck,omitempty"` // FrameCarried, Fault*: what was done: "drop", "hold", "duplicate"…
	// Incarnation of the process that a fault struck, missed or healed: the
	// number of its start, from 1; 0 if there is none.
	Incarnation int `json:"incarnation,omitzero"`

	Phase Phase     `json:"phase,omitzero"` // PhaseBegan
	Exit  *ExitInfo `json:"exit,omitempty"` // ProcessExited
	Call  uint64    `json:"call,omitzero"`  // *Called and its *Returned: the actor's own count of calls, pairing the two
	OK    bool      `json:"ok,omitzero"`    // AwaitEnded, SubscribeReturned, HealthChecked; PublishReturned: the call told the application that all is well

	Cause      Cause         `json:"cause,omitzero"`       // PublishReturned, LookupReturned, DeadLettered, Probed: the system's own why; SessionEnded: disconnected, unless its owner closed it
	Standing   Standing      `json:"standing,omitzero"`    // LookupReturned
	Duplicate  bool          `json:"duplicate,omitzero"`   // PublishReturned: the system calls it an earlier publish, come again
	Negative   bool          `json:"negative,omitzero"`    // FrameCarried: an answer that takes no responsibility and confirms nothing
	Window     int           `json:"window,omitzero"`      // SubscribeCalled: most unacknowledged deliveries asked for
	Command    Command       `json:"command,omitzero"`     // Commanded, Purged: what was ordered
	Checkpoint string        `json:"checkpoint,omitempty"` // SnapshotTaken; Commanded restore and rewind: to where
	Offset     time.Duration `json:"offset,omitzero"`      // ClockSet: how far ahead of true time
	Drain      DrainReason   `json:"drain,omitzero"`       // DrainEnded
	Partitions []string      `json:"partitions,omitempty"` // ProcessStarted of the broker: its own, then those it took over by migration
	Line       int           `json:"line,omitzero"`        // AwaitEnded, not OK: the line of the script whose deadline passed, as printed
	Left       int           `json:"left,omitzero"`        // AwaitEnded, not OK: so many steps of the script were not run because of it

	Probe       string       `json:"probe,omitempty"`      // Probed: its name
	Wanted      ProbeOutcome `json:"wanted,omitzero"`      // Probed: what the protocol says must come of it
	Got         ProbeOutcome `json:"got,omitzero"`         // Probed: what came of it; left out where it could not be made
	WantedCause Cause        `json:"wantedCause,omitzero"` // Probed: the cause that a refusal must name; Cause is the one that it named

	Reason string `json:"reason,omitempty"` // why, in words for people: an error, a refusal, what was missing. Nothing is judged by it
}

// FrameItem is one message (or its acknowledgement) carried by a frame.
type FrameItem struct {
	BusinessID string `json:"business,omitempty"`
	PublishID  string `json:"publish,omitempty"`
	MessageID  string `json:"message,omitempty"`
}

// ExitInfo says how a process of the system under test ended.
type ExitInfo struct {
	Code    int    `json:"code"`             // -1 when ended by a signal
	Signal  string `json:"signal,omitempty"` // "killed"
	Ordered bool   `json:"ordered"`          // the harness asked for it
	// Waited is how long the harness waited for an orderly end, before it killed
	// the process instead; 0 if it did not have to.
	Waited time.Duration `json:"waited,omitzero"`
}

// Kind names an event. The zero kind is invalid.
type Kind uint8

const (
	KindInvalid Kind = iota
	PhaseBegan
	PublishCalled
	PublishReturned
	SubscribeCalled   // a consumer's session asks for its subscription
	SubscribeReturned // confirmed (OK) or refused
	SessionOpened     // an actor has a working connection
	SessionEnded      // closed or broken; Reason says which
	Delivered         // handed to the application
	HandlerFailed     // the application could not process a delivery
	EffectCalled      // business transaction begins
	EffectCommitted   // …and is committed
	EffectAbsorbed    // the consumption log knew the message: nothing done
	EffectFailed      // …rolled back, or its outcome is not known (Reason)
	AckCalled
	AckReturned
	NackCalled
	NackReturned
	LookupCalled
	LookupReturned // Acceptance: Accepted = stored or settled, Rejected = proven not stored, Unknown
	FrameCarried   // a frame passed a link (or was struck there: Struck)
	LinkConnected
	LinkDisconnected
	FaultArmed
	FaultFired
	FaultHealed
	ProcessStarted
	ProcessExited
	ProcessPaused
	ProcessContinued
	StoreCalled   // a store operation begins (Frame names it)
	StoreReturned // …and has returned (Reason when it failed)
	AwaitBegan
	AwaitEnded    // OK, or the deadline passed
	SnapshotTaken // stored rows were read
	HealthChecked
	DrainEnded
	WatchEnded
	DeadLettered // an administrator's command or the system said so
	Purged
	ClockSet
	Probed // a probe was made: Wanted is the outcome that the protocol demands, Got the actual one
	Commanded
	Noted
	FaultMissed     // it found nothing to strike; Reason says why
	RecordCommitted // a producer's business row, of which a message tells, is committed
)

var kindNames = []string{
	"", "phase-began", "publish-called", "publish-returned", "subscribe-called", "subscribe-returned",
	"session-opened", "session-ended", "delivered", "handler-failed", "effect-called", "effect-committed",
	"effect-absorbed", "effect-failed", "ack-called", "ack-returned", "nack-called", "nack-returned",
	"lookup-called", "lookup-returned", "frame-carried", "link-connected", "link-disconnected",
	"fault-armed", "fault-fired", "fault-healed", "process-started", "process-exited", "process-paused",
	"process-continued", "store-called", "store-returned", "await-began", "await-ended", "snapshot-taken", "health-checked", "drain-ended", "watch-ended", "dead-lettered", "purged", "clock-set", "probed",
	"commanded", "noted", "fault-missed", "record-committed",
}

func (k Kind) String() string                { return nameOf(kindNames, k) }
func (k Kind) MarshalText() ([]byte, error)  { return marshalName(kindNames, k) }
func (k *Kind) UnmarshalText(b []byte) error { return unmarshalName(kindNames, "event kind", b, k) }

// Direction of a frame on a link.
type Direction uint8

const (
	NoDirection Direction = iota
	ToBroker
	ToClient
)

var directionNames = []string{"", "broker", "client"}

func (d Direction) String() string               { return nameOf(directionNames, d) }
func (d Direction) MarshalText() ([]byte, error) { return marshalName(directionNames, d) }
func (d *Direction) UnmarshalText(b []byte) error {
	return unmarshalName(directionNames, "direction", b, d)
}

// Phase of a run; they always come in this order.
type Phase uint8

const (
	NoPhase Phase = iota
	Prepare
	Act
	Heal
	Drain
	Watch
	Ended
)

var phaseNames = []string{"", "prepare", "act", "heal", "drain", "watch", "ended"}

func (p Phase) String() string                { return nameOf(phaseNames, p) }
func (p Phase) MarshalText() ([]byte, error)  { return marshalName(phaseNames, p) }
func (p *Phase) UnmarshalText(b []byte) error { return unmarshalName(phaseNames, "phase", b, p) }

// Sink records events as they happen. Record sets Seq, and At if it is zero (a
// child process sets its own), and returns Seq, or 0 in a child process, whose
// parent assigns it. The event is written when Record returns. Safe for
// concurrent use.
type Sink interface {
	Record(Event) uint64
}
