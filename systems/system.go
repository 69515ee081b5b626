// Package systems is the contract of a system under test. An adapter turns one
// real system into these few interfaces; systems/<name> holds one each, and a
// user writes theirs against this file alone.
//
// Nothing in the contract needs shared memory, so an adapter in another
// language can stand behind a pipe.
package systems

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/tasks"
)

// System is one configuration (a profile) of a system under test.
type System interface {
	Describe() Description
	// Start brings up an instance of its own in env.Dir, ready to be used. The
	// caller stops it.
	Start(ctx context.Context, env Env) (Instance, error)
}

// Description is what is known of a system before it is started.
type Description struct {
	System   string // "zeromq"
	Profile  evidence.Profile
	Claims   []evidence.Claim
	Versions map[string]string // of server and client
	// Known are findings of this profile that its owner knows of.
	Known []evidence.Known
	// Forgets are the classes of fault over which the system forgets the message
	// IDs by which it knows a repeated publish again. A consumption log that
	// goes by message ID then promises nothing.
	Forgets []evidence.Class
	// WaitsForAbsent says that a consumer which has competed and gone away is
	// given its share of what is published meanwhile, and that the share waits
	// for it and for no other.
	WaitsForAbsent bool
	// StoreFaults are the operations of its store that a StoreFaulter can strike,
	// by the verb of a script; no operations are all of them. "block" is also
	// what strikes a process at an operation. Nil is every verb: say what there
	// is, and the scenarios that ask for more do not apply.
	StoreFaults map[string][]string
	// Oldest versions of servers that the adapter can drive, by the names of
	// Versions. Start refuses an older one, and says so.
	Oldest map[string]string
	// Lacks names what a scenario may need and this system has no counterpart
	// for, with the reason a report gives: "no per-message time to live".
	Lacks map[Need]string
}

// Need is something that a scenario needs of a system. Those with an optional
// interface below are found by type assertion; the others are had unless
// Description.Lacks names them.
type Need string

const (
	NeedLinks       Need = "links"          // Networked
	NeedFrames      Need = "frames"         // Networked with a Protocol
	NeedBytes       Need = "bytes"          // …whose bytes can be struck: late, or at a bounded rate
	NeedProcess     Need = "process"        // Process
	NeedPause       Need = "pause"          // …which can stand still
	NeedRows        Need = "rows"           // Inspector
	NeedDeadLetters Need = "dead-letters"   // Administrator
	NeedStoreFaults Need = "store-faults"   // StoreFaulter
	NeedClock       Need = "clock"          // Clocked
	NeedIdentity    Need = "identity"       // Configurable
	NeedPlanting    Need = "planting"       // Planter
	NeedLookup      Need = "lookup"         // Producer is a Resolver
	NeedNack        Need = "nack"           // Delivery is a Rejecter
	NeedTTL         Need = "ttl"            // a message can expire
	NeedModes       Need = "modes"          // at-most-once and at-least-once side by side
	NeedDecline     Need = "decline"        // says no when nobody is there to receive
	NeedMessageID   Need = "message-id"     // the publisher may choose the message ID
	NeedDedup       Need = "deduplication"  // a publish under a known message ID is recognised as the same message
	NeedAnswer      Need = "answer"         // a publish is answered, so that it can be tried until it is accepted
	NeedAcks        Need = "acks"           // acknowledgements go over the wire
	NeedRedelivery  Need = "redelivery"     // an unsettled message comes again
	NeedCompeting   Need = "competing"      // the consumers of one logical subscriber share its messages
	NeedHeaders     Need = "headers"        // a message carries a key and headers beside its payload
	NeedFanOut      Need = "fan-out"        // each logical subscriber of a destination gets all of its messages
	NeedWildcards   Need = "wildcards"      // a subscription may hold "+" and "#" for levels of a destination, as in MQTT
	NeedWindow      Need = "window"         // a consumer is handed no more than its window at once
	NeedRewind      Need = "rewind"         // Rewinder
	NeedConnector   Need = "child-consumer" // the System is a Connector
	NeedProbes      Need = "probes"         // Prober
	NeedTimeout     Need = "timeout"        // what a consumer has held for too long is given to another, while its session lives
)

// Env is what an instance may use of the run it is part of.
type Env struct {
	Dir   string                                    // private folder, exists, removed after the run
	Log   func(name string) (io.WriteCloser, error) // a bounded file in the run's logs/
	Sink  evidence.Sink                             // for what only the system's starter sees: processes, store operations
	Adopt func(events io.Reader, actor string)      // records a child's event pipe; returns when the pipe ends
	Scale float64                                   // factor on every period and deadline
	Base  int64                                     // zero of the run's clock, for the events of child processes: see evidence.NewPipeSink
	Seed  uint64
	// Runtime is the world that the run happens in: a *tasks.Simulated for a
	// system that is Simulated.
	Runtime tasks.Runtime
	Defect  string // a seeded defect to switch on; refused by systems that have none of this name
	// Servers that earlier runs have left as they were; nil keeps none. A system
	// whose server is slow to start takes one from here and puts it back.
	Servers *process.Pool
}

// Simulated is an optional ability of a System that runs in virtual time and in
// memory: the run that it is part of does too. Its instances are Linkers.
type Simulated interface{ Simulated() }

// Linker is an optional ability of a Networked instance that is reached over no
// TCP: it gives each actor its link.
type Linker interface {
	Link(o links.Options) (links.Interruptible, error)
}

// NoDefects refuses a seeded defect: what the adapter of a server that is not
// built here has to offer.
func (e Env) NoDefects(system string) error {
	if e.Defect == "" {
		return nil
	}
	return fmt.Errorf("%s: no seeded defect %q: this adapter has none", system, e.Defect)
}

// ServerLog is the file for what the system's server prints.
func (e Env) ServerLog(system, server string) (io.WriteCloser, error) {
	log, err := e.Log(server)
	if err != nil {
		return nil, fmt.Errorf("%s: log of the server: %w", system, err)
	}
	return log, nil
}

// Installed is an optional ability of a System that needs something on the
// machine. The error says what is missing and how to get it.
type Installed interface {
	Installed() error
}

// Contained is an optional ability of a System: the same profile, with its
// server from a container image of this machine. Its profile is then named
// "PROFILE@IMAGE". The error says why this system has no server to run so.
type Contained interface {
	In(image string) (System, error)
}

// Remote is an optional ability of a System: the same profile on a server that
// somebody else has started and that goes on after the run. The system that At
// gives makes only what carries the run's name, and deletes that at its end; it
// is a Connector, and its instances are Networked and no Process.
type Remote interface {
	At(Endpoint) System
}

// Endpoint is where such a server is, and as whom it is reached. User and
// Password go to the server and nowhere else.
type Endpoint struct {
	Address        string // host and port
	User, Password string // empty: none
	TLS            *tls.Config
}

// String leaves the secrets out.
func (e Endpoint) String() string { return e.Address }

// Exclusive is an optional ability of a System whose runs strike one and the
// same server: true asks for one run at a time.
type Exclusive interface {
	Exclusive() bool
}

// Reporter is an optional ability of an Instance: its server has said what it
// is. Report puts that in the place of what was known before it ran: versions,
// what they lack, the limits that come with them. Whether a scenario applies is
// decided by it, and so is what the manifest says.
type Reporter interface {
	Report(d *Description)
}

// Describe is what is known of a system that runs.
func Describe(s System, in Instance) Description {
	d := s.Describe()
	if r, ok := in.(Reporter); ok {
		r.Report(&d)
	}
	return d
}

// Instance is a running system.
type Instance interface {
	Clients
	// Stop ends everything that Start began, whatever state it is in.
	Stop(ctx context.Context) error
}

// Clients opens sessions.
type Clients interface {
	// Producer opens a session. An error wraps ErrUnavailable when the system
	// cannot be reached now, so that trying again makes sense.
	Producer(ctx context.Context, o ProducerOptions) (Producer, error)
	// Consumer opens a session and subscribes: it has returned nil only when
	// the system confirmed the subscription.
	Consumer(ctx context.Context, o ConsumerOptions) (Consumer, error)
}

// Connector is an optional ability of a System: clients for an instance that
// another process has started, so that a consumer can run in a process of its
// own and be killed.
type Connector interface {
	// Credentials that Connect needs; they go through a pipe and nowhere else.
	Credentials(Instance) string
	// Connect gives clients for as long as they are used; if they keep anything
	// open they are an io.Closer, and are closed then.
	Connect(credentials string) (Clients, error)
}

// ProducerOptions of one session.
type ProducerOptions struct {
	Name    string // the actor
	Session string // "p1#1"
	Address string // of the actor's link; empty for an instance that is not Networked
	Mode    Mode
}

// ConsumerOptions of one session.
type ConsumerOptions struct {
	Name         string
	Session      string
	Address      string
	Destination  string // a topic or queue; may hold wildcards where the system has them
	Subscription string // the logical subscriber: all consumers of one compete
	Mode         Mode
	Window       int // most deliveries unacknowledged at once, at least 1
	// Seat in the pool of the logical subscriber, from 0: the lowest that none of
	// its running consumers has. It stays through all sessions of a consumer, and
	// whoever comes after one that has gone takes it over. A system that
	// redelivers to the one name that had the message names its sessions by it.
	Seat int
}

// ProducerOf gives what a constructor of an adapter's own type has made as a
// Producer: a nil *T in an interface would be no nil Producer.
func ProducerOf[P Producer](p P, err error) (Producer, error) {
	if err != nil {
		return nil, err
	}
	return p, nil
}

// ConsumerOf is ProducerOf of a consumer.
func ConsumerOf[C Consumer](c C, err error) (Consumer, error) {
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Mode of delivery where a system has more than one side by side.
type Mode string

const (
	DefaultMode Mode = "" // of the profile
	AtMostOnce  Mode = "at-most-once"
	AtLeastOnce Mode = "at-least-once"
)

// Producer publishes on one session, in call order. It never reconnects, never
// retries and buffers nothing behind the caller's back.
type Producer interface {
	// Send hands the message to the client library and returns without waiting
	// for the system's answer. An error is a failure to measure, never an
	// acceptance: a refused or broken connection is a Receipt.
	Send(ctx context.Context, m Message) (Pending, error)
	Close(ctx context.Context) error
}

// Pending is a publish on its way.
type Pending interface {
	// Receipt waits for the answer. When ctx ends first the answer is Unknown
	// once a byte has left, Rejected if none ever did.
	Receipt(ctx context.Context) Receipt
}

// Receipt is what one publish came to.
type Receipt struct {
	Acceptance   evidence.Acceptance
	HeldBy       evidence.HeldBy
	MessageID    string
	Duplicate    bool           // the system calls it an earlier publish, come again
	Cause        evidence.Cause // of a refusal, as far as the system says it
	ClientResult string         // what the client library told the application: OK or the error's text
	Reason       string         // in words, for people
}

// OK is what Receipt.Told says of a call that reported no error.
const OK = "ok"

// Message as it is published and as it is delivered.
type Message struct {
	Destination string
	MessageID   string // on publish: chosen by the publisher, empty for the system's choice
	Key         string
	Headers     map[string]string
	Payload     []byte        // an evidence.Envelope, encoded
	TTL         time.Duration // 0: the system's default
}

// Consumer receives on one session. It never reconnects.
type Consumer interface {
	// Receive waits for the next delivery. ErrDisconnected when the session is
	// gone; ctx's error when ctx ended.
	Receive(ctx context.Context) (Delivery, error)
	Close(ctx context.Context) error
}

// Delivery is one message in the hands of the application.
type Delivery interface {
	Message() Message
	// Attempt counts deliveries of this message from 1; known is false where
	// the system does not count.
	Attempt() (n int, known bool)
	// Mark says whether the system calls this a redelivery.
	Mark() evidence.Mark
	// Ack settles the message. The error says why the outcome is not
	// Confirmed; it is never needed to know the outcome.
	Ack(ctx context.Context) (evidence.AckOutcome, error)
}

var (
	// ErrDisconnected: the session is gone; open a new one.
	ErrDisconnected = errors.New("systems: disconnected")
	// ErrUnavailable: the system cannot be reached now.
	ErrUnavailable = errors.New("systems: unavailable")
)

// The optional abilities of an instance, found by type assertion.

// Networked instances are reached over TCP, so that each actor gets a link.
type Networked interface {
	Address() string          // of the server, on 127.0.0.1; the same after a restart
	Protocol() links.Protocol // nil: bytes only, no frame faults
}

// Process instances can be struck as a process. Each call returns when the
// effect is certain: the exit status reaped, the server ready again. An order to
// one that has ended, by itself too, wraps process.ErrNotRunning.
type Process interface {
	Running() bool                      // not while it is dead; a paused one is running
	Kill(ctx context.Context) error     // SIGKILL
	Shutdown(ctx context.Context) error // orderly
	Restart(ctx context.Context) error  // after Kill or Shutdown: same address, same data
	Pause(ctx context.Context) error    // SIGSTOP
	Continue(ctx context.Context) error
}

// Inspector shows the stored rows without changing them.
type Inspector interface {
	Rows(ctx context.Context) (evidence.Snapshot, error)
}

// Administrator handles dead letters.
type Administrator interface {
	DeadLetters(ctx context.Context) ([]evidence.StoredRow, error)
	Redrive(ctx context.Context, messageID string) error
	Discard(ctx context.Context, messageID string) error
}

// Rewinder instances keep what they have delivered, and put a subscriber back to
// an earlier point, settled or not.
type Rewinder interface {
	// Position is where the destination's log ends now, in the system's own
	// notation: whatever is published later lies behind it.
	Position(ctx context.Context, destination string) (string, error)
	// Rewind takes effect with the subscriber's next session. None of its
	// consumers may be connected.
	Rewind(ctx context.Context, destination, subscription string, to Point) error
}

// Point in a log. Exactly one of the two is set.
type Point struct {
	Time     time.Time // the first message that was stored at this time or later
	Position string    // the first one behind what Position gave
}

// StoreFaulter can strike its own storage, below or above the database.
type StoreFaulter interface {
	// ArmStore arms one fault; fired is called (once or more, from any
	// goroutine) when its effect was seen.
	ArmStore(ctx context.Context, f StoreFault, fired func(StoreFired)) (heal func(context.Context) error, err error)
}

// StoreFault is a fault of the storage.
type StoreFault struct {
	Label string
	// Verb: unreachable, slow, full, fsync-error, lose-reply, hold.
	Verb string
	// Before or after an operation ("insert", "delete", "commit"…); empty
	// Operation is any.
	Operation string
	After     bool
	N         int           // the N-th such operation since arming; 0 is the first
	Every     bool          // …and every one after it
	Delay     time.Duration // slow
}

// StoreFired is one stroke of a store fault.
type StoreFired struct {
	Operation string
	Items     []evidence.FrameItem
}

// Clocked instances can be given a wrong clock.
type Clocked interface {
	SetClock(ctx context.Context, offset time.Duration) error
}

// Configurable instances take a changed setting at their next Restart:
// "identity", "hostname", "name". At run time only where the system would.
type Configurable interface {
	Configure(ctx context.Context, setting, value string) error
}

// Planter puts a stored row of an older protocol version among the others.
type Planter interface {
	PlantOld(ctx context.Context, businessID, destination string) error
}

// Prober instances can be asked what no well-behaved client asks, and what
// stands at a limit.
type Prober interface {
	Probes() []Probe
	// Probe makes one of them, on connections of its own, past all links, and
	// returns when its outcome is known or ctx ends. An error says why it could
	// not be made: nothing is known of the system then.
	Probe(ctx context.Context, name string) (Probed, error)
}

// Probe is one thing to be tried, and what must come of it.
type Probe struct {
	Kind  string // "strangers", "limits": a script makes those of one kind
	Name  string // unique for the system
	Text  string // what is tried, in one sentence
	Wants evidence.ProbeOutcome
	Cause evidence.Cause // that a refusal must name; NoCause where the protocol names none
}

// Probed is what came of a probe.
type Probed struct {
	Outcome evidence.ProbeOutcome
	Cause   evidence.Cause // that a refusal has named
	Reason  string         // what was heard, in words for people
}

// Resolver is an optional ability of a Producer: ask what became of a publish.
type Resolver interface {
	Lookup(ctx context.Context, businessID string) (Resolution, error)
}

// Resolution of an Unknown publish. Acceptance is Accepted when stored or
// settled, Rejected when proven not stored, Unknown otherwise.
type Resolution struct {
	Acceptance evidence.Acceptance
	Standing   evidence.Standing
	MessageID  string
	Cause      evidence.Cause // why it is no more, where the system says it
	Reason     string         // in words, for people
}

// Rejecter is an optional ability of a Delivery: give the message back.
type Rejecter interface {
	Nack(ctx context.Context, reason string) (evidence.AckOutcome, error)
}
