// Package script is the notation for scenarios: every step prints as one line
// and every line parses back into the same step. Reports show it, saved runs
// are replayed from it, and users write it in a file.
package script

import (
	"fmt"
	"time"

	"github.com/custodymq/custody/evidence"
)

// Scenario is a named situation, the steps that bring it about, what must have
// been reached, and the guarantees it puts to the test. A Go value that can be
// printed (Print) and parsed back (Parse).
type Scenario struct {
	Name    string
	Why     string               // one sentence
	Needs   []string             // what the system must have: see systems.Need
	Steps   []Step               // in order
	Reached []evidence.Condition // what makes the situation
	Expect  []string             // guarantees exercised

	source *source // where its parts stand in a file; nil where it was not parsed
}

// Step is one line of a script. The set is closed: the types of this package.
type Step interface {
	// line prints the step, without its comments.
	line() string
}

// Producer declares a producer; its session is opened at once.
type Producer struct {
	Name        string
	Destination string
	Mode        string        // "", at-most-once, at-least-once
	TTL         time.Duration // default for its messages; 0 is none
}

// Consumer declares a consumer and starts it, unless it is Offline.
type Consumer struct {
	Name        string
	Destination string
	As          string // logical subscriber; empty is the destination's own
	Mode        string
	Idempotent  bool // has a consumption log
	Child       bool // runs in a process of its own
	Offline     bool // declared only; `start` brings it up
	Window      int  // most unacknowledged deliveries; 0 is 1
	Fails       []Failing
	Takes       time.Duration // how long its handler works before its effect; 0 is no time
	TakesOn     IDs           // …on these messages only; zero is all
	Silent      bool          // takes deliveries and never acknowledges nor commits
}

// Failing is what a consumer's handler fails on.
type Failing struct {
	On    IDs
	Times int // how often on each of them; 0 is always
}

// FailTimes says whether the handler fails on a business ID, and how often; 0 is
// always.
func (s Consumer) FailTimes(businessID string) (times int, fails bool) {
	for _, f := range s.Fails {
		if f.On.Has(businessID) {
			return f.Times, true
		}
	}
	return 0, false
}

// Work is how long the handler works on a business ID before its effect.
func (s Consumer) Work(businessID string) time.Duration {
	if s.TakesOn == (IDs{}) || s.TakesOn.Has(businessID) {
		return s.Takes
	}
	return 0
}

// Publish sends messages: one, or First..Last with the same stem.
type Publish struct {
	BusinessID string // of a single message, or the stem of a range: "order-" with From and To
	From, To   int    // a range when To > 0: order-1..order-20
	By         string
	Size       int // body bytes; 0 is empty
	SizeTo     int // of a range: the last message's size, where Size is the first's; 0 where all have Size
	TTL        time.Duration
	Headers    int // how many generated headers each carries
	Key        string
	Keys       int    // of a range: so many keys in turn, instead of Key
	MessageID  string // chosen by the publisher
	Window     int    // of a range: most receipts outstanding; 0 is 1
	Background bool   // the next step begins at once; `settle` or the drain joins it
	Cancel     bool   // the caller cancels once the publish frame has left
	Until      string // "accepted": Declined and Rejected are tried again (a new publish ID, the same message ID), within the step's bound
}

// Count is how many messages are published.
func (s Publish) Count() int {
	if s.To == 0 {
		return 1
	}
	return s.To - s.From + 1
}

// Message is the step that publishes the i-th of them alone, from 0. The sizes
// of a range go up evenly, from the first message's to the last's, and its keys
// are taken in turn.
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

// Retry publishes a business ID again: another try of the same message.
type Retry struct {
	BusinessID string
	By         string
	SameID     bool // with the message ID of the first try, so that the system can recognise it
}

// Resolve asks the system what became of a publish whose answer is Unknown.
type Resolve struct {
	BusinessID string
	By         string
}

// Fault arms a fault. It fires once unless Repeat says otherwise; arming
// returns before the next step.
type Fault struct {
	Label  string
	Verb   string        // drop, hold, duplicate, delay, cut, corrupt, kill, pause, shutdown, black-hole, latency, bandwidth, reset, down, unreachable, slow, full, fsync-error, lose-reply, clock
	Target string        // struck: "broker", "store", or an actor; empty for what strikes a frame
	Repeat Repeat        //
	When   When          // relative to the event
	Event  string        // "frame ack", "operation insert"; empty: at once
	N      int           // the N-th message of the event since arming; 0 is the first
	Of     string        // the one that carries this business ID
	On     string        // the actor on whose link it happens
	By     time.Duration // delay, latency, slow, clock
	Rate   int           // bandwidth, KiB/s
}

// Repeat of a fault.
type Repeat string

const (
	Once        Repeat = ""
	Every       Repeat = "every"
	UntilHealed Repeat = "until-healed"
)

// When a fault strikes, relative to its event.
type When string

const (
	At     When = ""
	Before When = "before"
	After  When = "after"
)

// Heal ends a fault before the heal phase does.
type Heal struct{ Label string }

// Await waits until a condition holds. The deadline ends the act phase and is
// never itself a verdict.
type Await struct {
	Condition evidence.Condition
	Within    time.Duration // 0 is DefaultWithin
}

// DefaultWithin is an await's deadline where the script gives none (before scaling).
const DefaultWithin = 10 * time.Second

// Wait lasts until it is quiet: no message has gone on its way for so long. A
// deadline that passes ends the act phase, as an await's does.
type Wait struct {
	Quiet  time.Duration
	Within time.Duration // 0 is DefaultWithin beyond the quiet time
}

// Provoke makes the system deliver a message again, by its profile's own means.
type Provoke struct{ BusinessID string }

// Settle waits for the receipts of background publishes.
type Settle struct {
	By     string // producer; empty is all
	Within time.Duration
}

// Start brings up a consumer that was declared offline, stopped or killed, or the broker.
type Start struct{ Actor string }

// Stop ends an actor in order: a consumer closes its session, the broker shuts down.
type Stop struct{ Actor string }

// Restart is Stop (where it runs) and Start, of the broker.
type Restart struct{ Actor string }

// Snapshot reads the stored rows, broker's and business's, at a named checkpoint.
type Snapshot struct{ Checkpoint string }

// Set changes a setting of the broker; it counts from its next start.
type Set struct {
	Setting string // identity, hostname, name
	Value   string
}

// Plant puts a stored row of an older protocol version among the others.
type Plant struct {
	BusinessID  string
	Destination string
}

// Probe has the system asked what no well-behaved client asks.
type Probe struct {
	Target string // the broker
	Kind   string // of the probes that are made; empty is all
}

// Redrive sends a dead-lettered message back to where it came from.
type Redrive struct{ BusinessID string }

// Discard removes a dead-lettered message.
type Discard struct{ BusinessID string }

// Restore puts the application's database back to what it was at a checkpoint:
// an older backup.
type Restore struct{ Checkpoint string }

// Rewind puts a consumer's logical subscriber back to where the destination's
// log ended at a checkpoint. The consumer is stopped.
type Rewind struct {
	Consumer   string
	Checkpoint string
	By         string // ByTime or ByPosition
}

// How a point in a log is found again.
const (
	ByTime     = "time"
	ByPosition = "position"
)

// Elapse waits until a message's time to live is over by the given margin, the
// one thing that only time can bring about. It is recorded.
type Elapse struct {
	BusinessID string
	Margin     time.Duration
}

// Comment lines stand before the step they belong to and survive printing.
type Comment struct {
	Lines []string
	Step  Step
}
