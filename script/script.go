// Package script is the notation for scenarios. Every step prints as one line,
// and every line parses back into the same step. Reports show scripts, replay
// runs them, and users write them in files.
package script

import (
	"fmt"
	"time"

	"github.com/custodymq/custody/evidence"
)

// Scenario is a situation: the steps that cause it, the conditions that must
// have been reached, and the guarantees it exercises.
type Scenario struct {
	Name    string
	Why     string   // one sentence
	Needs   []string // what the system must support: see systems.Need
	Steps   []Step
	Reached []evidence.Condition // conditions of the situation
	Expect  []string             // guarantees exercised

	source *source // positions in the file; nil if not parsed
}

// Step is one line of a script: one of the types of this package.
type Step interface {
	// line prints the step without comments.
	line() string
}

// Producer declares a producer, which opens its session at once.
type Producer struct {
	Name        string
	Destination string
	Mode        string        // "", at-most-once, at-least-once
	TTL         time.Duration // default for its messages; 0 for none
	// Commits a business row for each business ID: CommitsFirst, CommitsLast or
	// none if empty.
	Commits string
	Outbox  bool // commits the row and the message in one transaction, and leaves publishing to a relay
}

// When a producer without an outbox commits its business row.
const (
	CommitsFirst = "first" // and publishes once, whatever comes of it
	CommitsLast  = "last"  // if its publish was accepted
)

// Consumer declares a consumer, and starts it unless Offline.
type Consumer struct {
	Name        string
	Destination string
	As          string // logical subscriber; empty for the destination's own
	Mode        string
	Idempotent  bool   // keeps a consumption log
	Handler     string // how it handles deliveries: see business.Patterns; empty leaves it to Idempotent
	Child       bool   // runs in a process of its own
	Offline     bool   // not started until `start`
	Window      int    // most unacknowledged deliveries; 0 means 1
	Fails       []Failing
	Takes       time.Duration // handler's processing time before the effect
	TakesOn     IDs           // …for these messages only; zero for all
	Silent      bool          // receives, but neither acknowledges nor commits
}

// Relay declares a relay, and starts it unless Offline. It publishes what producers
// with an outbox have committed.
type Relay struct {
	Name        string
	Destination string // of the messages
	Mode        string
	Policy      string // see business.Policies; empty for the one that keeps the promise
	Child       bool   // runs in a process of its own
	Offline     bool   // not started until `start`
}

// Failing is a message on which a consumer's handler fails.
type Failing struct {
	On    IDs
	Times int // on each of them; 0 for always
}

// FailTimes reports whether the handler fails on a business ID, and how often;
// 0 means always.
func (s Consumer) FailTimes(businessID string) (times int, fails bool) {
	for _, f := range s.Fails {
		if f.On.Has(businessID) {
			return f.Times, true
		}
	}
	return 0, false
}

// Work returns the handler's processing time for a business ID.
func (s Consumer) Work(businessID string) time.Duration {
	if s.TakesOn == (IDs{}) || s.TakesOn.Has(businessID) {
		return s.Takes
	}
	return 0
}

// Publish sends one message, or a range From..To.
type Publish struct {
	BusinessID string // or the stem of a range: "order-" with From and To
	From, To   int    // a range when To > 0: order-1..order-20
	By         string
	Size       int // body in bytes
	SizeTo     int // of a range: size of the last message, growing from Size; 0 for all Size
	TTL        time.Duration
	Headers    int // number of generated headers
	Key        string
	Keys       int    // of a range: this many keys in turn, instead of Key
	MessageID  string // chosen by the publisher
	Window     int    // of a range: most unanswered publishes; 0 means 1
	Background bool   // the next step starts at once; `settle` or the drain waits for it
	Cancel     bool   // the caller cancels once the publish frame was sent
	Until      string // "accepted": retry Declined and Rejected within a bound, with a new publish ID and the same message ID
}

// Count returns the number of messages.
func (s Publish) Count() int {
	if s.To == 0 {
		return 1
	}
	return s.To - s.From + 1
}

// Message returns the step that publishes only the i-th message, from 0. In a
// range, sizes grow linearly and keys rotate.
func (s Publish) Message(i int) Publish {
	if s.To == 0 {
		return s
	}
	one, last := s, s.Count()-1
	one.BusinessID, one.From, one.To = fmt.Sprintf("%s%d", s.BusinessID, s.From+i), 0, 0
	one.SizeTo, one.Keys = 0, 0
	if s.SizeTo > 0 && last > 0 {
		one.Size = s.Size + int(int64(s.SizeTo-s.Size)*int64(i)/int64(last))
	}
	if s.Keys > 0 {
		one.Key = fmt.Sprintf("key-%d", i%s.Keys+1)
	}
	return one
}

// Retry publishes a business ID again.
type Retry struct {
	BusinessID string
	By         string
	SameID     bool // reuse the message ID, so that the system can deduplicate
}

// Resolve looks up what became of a publish whose answer was Unknown.
type Resolve struct {
	BusinessID string
	By         string
}

// Fault arms a fault, which fires once unless Repeat says otherwise. It is
// armed before the next step.
type Fault struct {
	Label  string
	Verb   string        // drop, hold, duplicate, delay, cut, corrupt, kill, pause, shutdown, black-hole, latency, bandwidth, reset, down, unreachable, slow, full, fsync-error, lose-reply, clock
	Target string        // "broker", "store" or an actor; empty for frame faults
	Repeat Repeat        // Once, Every or UntilHealed
	When   When          // relative to the event
	Event  string        // "frame ack", "operation insert"; empty for at once
	N      int           // the N-th message of the event since arming; 0 for the first
	Of     string        // the message with this business ID
	On     string        // the actor whose link carries it
	By     time.Duration // for delay, latency, slow, clock
	Rate   int           // KiB/s, for bandwidth
}

// Repeat is how often a fault fires.
type Repeat string

const (
	Once        Repeat = ""
	Every       Repeat = "every"
	UntilHealed Repeat = "until-healed"
)

// When is whether a fault strikes before or after its event.
type When string

const (
	At     When = ""
	Before When = "before"
	After  When = "after"
)

// Heal ends a fault ahead of the heal phase.
type Heal struct{ Label string }

// Await waits for a condition. Its deadline ends the act phase and is never
// itself a verdict.
type Await struct {
	Condition evidence.Condition
	Within    time.Duration // 0 for DefaultWithin
}

// DefaultWithin is the default deadline of an await, before scaling.
const DefaultWithin = 10 * time.Second

// Wait waits until no message has made progress for Quiet. Its deadline ends
// the act phase, as an await's does.
type Wait struct {
	Quiet  time.Duration
	Within time.Duration // 0 for Quiet plus DefaultWithin
}

// Provoke makes the system redeliver a message, by its profile's means.
type Provoke struct{ BusinessID string }

// Settle waits for background publishes to be answered.
type Settle struct {
	By     string // producer; empty for all
	Within time.Duration
}

// Start starts the broker, or a consumer that is offline, stopped or killed.
type Start struct{ Actor string }

// Stop stops a consumer in order: it closes its session.
type Stop struct{ Actor string }

// Restart shuts the broker down if it runs, and starts it.
type Restart struct{ Actor string }

// Snapshot reads the stored rows of broker and business at a named checkpoint.
type Snapshot struct{ Checkpoint string }

// Set changes a setting of the broker, effective at its next start.
type Set struct {
	Setting string // identity, hostname or name
	Value   string
}

// Plant stores a row that the broker must refuse.
type Plant struct {
	What        string // is wrong with it: one of Plants
	BusinessID  string
	Destination string
}

// What Plant plants.
const (
	Old            = "old"             // of an older protocol version
	Damaged        = "damaged"         // it fails its checksum
	DamagedContent = "damaged-content" // its content does, which shows only when that is read
)

// Plants lists what can be planted.
var Plants = []string{Old, Damaged, DamagedContent}

// Swap moves the rows of the running broker to its other store.
type Swap struct{}

// Migrate moves the rows of the broker, which is down, to another storage identity.
type Migrate struct{ From, To string }

// Probe sends the system malformed and extreme requests.
type Probe struct {
	Target string // the broker
	Kind   string // which probes; empty for all
}

// Redrive returns a dead-lettered message to its source.
type Redrive struct{ BusinessID string }

// Discard deletes a dead-lettered message.
type Discard struct{ BusinessID string }

// Restore restores the business database, or the store of the broker, which is down,
// from the backup of a checkpoint.
type Restore struct {
	Checkpoint string
	Broker     bool
}

// Fault is what a restore of the broker's store is to the judge. No label in a script
// has blanks.
func (s Restore) Fault() Fault { return Fault{Label: "restore to " + s.Checkpoint, Verb: "restore"} }

// Rewind moves a stopped consumer's logical subscriber back to a checkpoint.
type Rewind struct {
	Consumer   string
	Checkpoint string
	By         string // ByTime or ByPosition
}

// How a position in a log is identified.
const (
	ByTime     = "time"
	ByPosition = "position"
)

// Elapse waits until a message has been expired for the given margin.
type Elapse struct {
	BusinessID string
	Margin     time.Duration
}

// Comment is a step with the comment lines above it.
type Comment struct {
	Lines []string
	Step  Step
}
