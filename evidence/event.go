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
	At   time.Duration `json:"at"` // on CLOCK_MONOTONIC since the run began, in nanoseconds; child processes use the same clock
	Kind Kind          `json:"kind"`

	Actor        string `json:"actor,omitempty"`        // p1, c1, broker, harness; for a frame: the actor whose link carried it
	Session      string `json:"session,omitempty"`      // one connection of an actor, as the actor counts them: "c1#2"
	Subscription string `json:"subscription,omitempty"` // the logical subscriber: a competing set, group or durable identity
	Destination  string `json:"destination,omitempty"`  // topic, queue, stream
	BusinessID   string `json:"business,omitempty"`     // the application's ID
	PublishID    string `json:"publish,omitempty"`      // Custody's ID, one per call, carried in the payload: producer + counter + try
	MessageID    string `json:"message,omitempty"`      // the system's ID; may be absent

	Acceptance   Acceptance    `json:"acceptance,omitzero"` // PublishReturned, LookupReturned
	HeldBy       HeldBy        `json:"heldBy,omitzero"`
	Ack          AckOutcome    `json:"ack,omitzero"`           // AckReturned, NackReturned
	Mark         Mark          `json:"mark,omitzero"`          // Delivered
	Attempt      int           `json:"attempt,omitzero"`       // Delivered: the system's own delivery count, from 1; 0 if it keeps none
	ClientResult string        `json:"clientResult,omitempty"` // PublishReturned: what the call returned to the application, in words
	Key          string        `json:"key,omitempty"`          // ordering key
	Digest       string        `json:"digest,omitempty"`       // of payload, key and headers: see Envelope
	Size         int           `json:"size,omitzero"`          // payload bytes
	TTL          time.Duration `json:"ttl,omitzero"`           // PublishCalled: requested time to live; 0 means none

	Link  string      `json:"link,omitempty"`  // Frame*, Fault*: the link's name, which is its actor's
	Conn  int         `json:"conn,omitzero"`   // Frame*: connection number on that link, from 1
	Frame string      `json:"frame,omitempty"` // Frame*: the frame's kind, such as "ack"; for a store operation, its name
	To    Direction   `json:"to,omitzero"`     // Frame*: its direction
	Items []FrameItem `json:"items,omitempty"` // Frame*, FaultFired: the messages in the frame that was carried or struck

	Fault  string `json:"fault,omitempty"`  // Fault*: the label in the script
	Struck string `json:"struck,omitempty"` // FrameCarried, Fault*: what was done: "drop", "hold", "duplicate"…
	// Incarnation of the process that a fault struck, missed or healed: the
	// number of its start, from 1; 0 if there is none.
	Incarnation int `json:"incarnation,omitzero"`

	Phase Phase     `json:"phase,omitzero"` // PhaseBegan
	Exit  *ExitInfo `json:"exit,omitempty"` // ProcessExited
	Call  uint64    `json:"call,omitzero"`  // *Called and its *Returned: the actor's own call number, which pairs the two
	OK    bool      `json:"ok,omitzero"`    // AwaitEnded, SubscribeReturned, HealthChecked: success; PublishReturned: the call returned success to the application

	Cause      Cause         `json:"cause,omitzero"`       // PublishReturned, LookupReturned, DeadLettered, Probed: the cause given by the system; SessionEnded: disconnected, unless the owner closed it
	Standing   Standing      `json:"standing,omitzero"`    // LookupReturned
	Duplicate  bool          `json:"duplicate,omitzero"`   // PublishReturned: the system reported a duplicate of an earlier publish
	Negative   bool          `json:"negative,omitzero"`    // FrameCarried: an answer that neither takes responsibility nor confirms anything
	Window     int           `json:"window,omitzero"`      // SubscribeCalled: the requested maximum of unacknowledged deliveries
	Command    Command       `json:"command,omitzero"`     // Commanded, Purged: the command
	Checkpoint string        `json:"checkpoint,omitempty"` // SnapshotTaken; Commanded restore and rewind: the target
	Offset     time.Duration `json:"offset,omitzero"`      // ClockSet: offset ahead of true time
	Drain      DrainReason   `json:"drain,omitzero"`       // DrainEnded
	Partitions []string      `json:"partitions,omitempty"` // ProcessStarted of the broker: its own partitions, then those it took over by migration
	Line       int           `json:"line,omitzero"`        // AwaitEnded, not OK: the line of the printed script whose deadline passed
	Left       int           `json:"left,omitzero"`        // AwaitEnded, not OK: the number of script steps skipped because of it

	Probe       string       `json:"probe,omitempty"`      // Probed: its name
	Wanted      ProbeOutcome `json:"wanted,omitzero"`      // Probed: the outcome that the protocol demands
	Got         ProbeOutcome `json:"got,omitzero"`         // Probed: the actual outcome; omitted if the probe could not be made
	WantedCause Cause        `json:"wantedCause,omitzero"` // Probed: the cause that a refusal must give; Cause is the one given

	Reason string `json:"reason,omitempty"` // free text for people: an error, a refusal, what was missing. Never judged
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
	Ordered bool   `json:"ordered"`          // requested by the harness
	// Waited is how long the harness waited for an orderly exit before it
	// killed the process; 0 if it did not have to.
	Waited time.Duration `json:"waited,omitzero"`
}

// Kind names an event. The zero kind is invalid.
type Kind uint8

const (
	KindInvalid Kind = iota
	PhaseBegan
	PublishCalled
	PublishReturned
	SubscribeCalled   // a consumer's session requests its subscription
	SubscribeReturned // confirmed (OK) or refused
	SessionOpened     // an actor has a working connection
	SessionEnded      // closed or broken; Reason says which
	Delivered         // handed to the application
	HandlerFailed     // the application could not process a delivery
	EffectCalled      // business transaction begins
	EffectCommitted   // …and is committed
	EffectAbsorbed    // the consumption log had the message: no effect
	EffectFailed      // …rolled back, or of unknown outcome (Reason)
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
	StoreReturned // …and returned (with Reason if it failed)
	AwaitBegan
	AwaitEnded    // OK, or the deadline passed
	SnapshotTaken // stored rows were read
	HealthChecked
	DrainEnded
	WatchEnded
	DeadLettered // reported by the system or by an administrator's command
	Purged
	ClockSet
	Probed // Wanted is the outcome that the protocol demands, Got the actual one
	Commanded
	Noted
	FaultMissed // it found nothing to strike; Reason says why
)

var kindNames = []string{
	"", "phase-began", "publish-called", "publish-returned", "subscribe-called", "subscribe-returned",
	"session-opened", "session-ended", "delivered", "handler-failed", "effect-called", "effect-committed",
	"effect-absorbed", "effect-failed", "ack-called", "ack-returned", "nack-called", "nack-returned",
	"lookup-called", "lookup-returned", "frame-carried", "link-connected", "link-disconnected",
	"fault-armed", "fault-fired", "fault-healed", "process-started", "process-exited", "process-paused",
	"process-continued", "store-called", "store-returned", "await-began", "await-ended", "snapshot-taken", "health-checked", "drain-ended", "watch-ended", "dead-lettered", "purged", "clock-set", "probed",
	"commanded", "noted", "fault-missed",
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

// Phase of a run. Phases always occur in this order.
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
