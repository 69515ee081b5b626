// Package systems is the contract of a system under test. An adapter
// (systems/<name>, or a user's own) implements these few interfaces.
//
// The contract needs no shared memory, so that an adapter in another language
// can stand behind a pipe.
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

// System is one profile of a system under test.
type System interface {
	Describe() Description
	// Start starts an instance in env.Dir, ready for use. The caller stops it.
	Start(ctx context.Context, env Env) (Instance, error)
}

// Description is what is known of a system before it starts.
type Description struct {
	System   string // "zeromq"
	Profile  evidence.Profile
	Claims   []evidence.Claim
	Versions map[string]string // of server and client
	// Known are the profile's known findings.
	Known []evidence.Known
	// Forgets are the fault classes over which the system forgets message IDs,
	// so that it no longer recognises a repeated publish. A consumption log
	// keyed by message ID then promises nothing.
	Forgets []evidence.Class
	// CutsPower says that whoever kills the system cuts its power: what it has
	// not synced may be gone.
	CutsPower bool
	// WaitsForAbsent says that a departed consumer of a competing set is still
	// assigned its share of new messages, which waits for it alone.
	WaitsForAbsent bool
	// StoreFaults are the store operations that a StoreFaulter can strike, by
	// verb; an empty list is all. "block" also applies to striking a process at
	// an operation. Nil means every verb. Scenarios that ask for more do not
	// apply.
	StoreFaults map[string][]string
	// Settings are what a Configurable may be set to, by name: one of the values,
	// or anything where there are none.
	Settings map[string][]string
	// VirtualProbes are the kinds of probes that are made in virtual time only,
	// where moments are exact.
	VirtualProbes []string
	// Oldest are the oldest server versions the adapter can drive, keyed as
	// Versions. Start refuses older ones.
	Oldest map[string]string
	// Lacks maps what this system does not have to the reason reports show: "no
	// per-message time to live".
	Lacks map[Need]string
}

// Need is something a scenario requires of a system. Those with an optional
// interface are found by type assertion; the others are met unless
// Description.Lacks names them.
type Need string

const (
	NeedLinks       Need = "links"          // Networked
	NeedFrames      Need = "frames"         // Networked with a Protocol
	NeedBytes       Need = "bytes"          // …whose bytes can be delayed or throttled
	NeedProcess     Need = "process"        // Process
	NeedPause       Need = "pause"          // …which can be paused
	NeedRows        Need = "rows"           // Inspector
	NeedDeadLetters Need = "dead-letters"   // Administrator
	NeedStoreFaults Need = "store-faults"   // StoreFaulter
	NeedStoreLink   Need = "store-link"     // StoreLinked
	NeedStandby     Need = "standby"        // …whose process is Replicated
	NeedVolume      Need = "volume"         // its store can have a file system of its own: Env.Volume
	NeedClock       Need = "clock"          // Clocked
	NeedIdentity    Need = "identity"       // Configurable
	NeedPlanting    Need = "planting"       // Planter
	NeedDamage      Need = "damage"         // …which can damage a row
	NeedMoves       Need = "moves"          // StoreMover
	NeedStoreBackup Need = "store-backup"   // StoreBackup
	NeedLookup      Need = "lookup"         // Producer is a Resolver
	NeedNack        Need = "nack"           // Delivery is a Rejecter
	NeedTTL         Need = "ttl"            // a message can expire
	NeedModes       Need = "modes"          // at-most-once and at-least-once side by side
	NeedDecline     Need = "decline"        // declines a publish if no consumer is online
	NeedMessageID   Need = "message-id"     // the publisher may choose the message ID
	NeedDedup       Need = "deduplication"  // a repeated message ID is recognised as the same message
	NeedAnswer      Need = "answer"         // a publish is answered, so that it can be retried until accepted
	NeedAcks        Need = "acks"           // acknowledgements are sent over the wire
	NeedRedelivery  Need = "redelivery"     // an unsettled message is redelivered
	NeedCompeting   Need = "competing"      // the consumers of a logical subscriber share its messages
	NeedHeaders     Need = "headers"        // a message carries a key and headers
	NeedFanOut      Need = "fan-out"        // each logical subscriber of a destination receives every message
	NeedWildcards   Need = "wildcards"      // a subscription may use the MQTT wildcards "+" and "#"
	NeedWindow      Need = "window"         // a consumer holds at most its window
	NeedSurvival    Need = "survival"       // what was accepted survives the end of the system's process
	NeedRewind      Need = "rewind"         // Rewinder
	NeedConnector   Need = "child-consumer" // the System is a Connector
	NeedProbes      Need = "probes"         // Prober
	NeedRelease     Need = "release"        // what a lost connection held is given to another consumer at once
	NeedTimeout     Need = "timeout"        // a message unacknowledged for too long is redelivered while its session lives
)

// Env is what the run provides to an instance.
type Env struct {
	Dir   string                                    // private directory, removed after the run
	Log   func(name string) (io.WriteCloser, error) // opens a size-limited file in the run's logs/
	Sink  evidence.Sink                             // for what only the adapter sees: processes, store operations
	Adopt func(events io.Reader, actor string)      // records a child's event pipe until it ends
	Scale float64                                   // factor on every period and deadline
	Base  int64                                     // zero of the run's clock in child processes: see evidence.NewPipeSink
	Seed  uint64
	// Runtime is the run's time and concurrency: a *tasks.Simulated for a
	// Simulated system.
	Runtime tasks.Runtime
	Defect  string // a seeded defect; Start refuses unknown ones
	// Link opens a link of the system's own, such as a broker's to its database
	// server, and returns its address. It is closed after the instance has
	// stopped.
	Link func(ctx context.Context, name, upstream string, p links.Protocol) (address string, err error)
	// Volume asks for the store to lie in a small file system of its own, which can
	// be filled.
	Volume bool
	// Servers pools servers between runs; nil for none. A system whose server
	// starts slowly takes one from here and puts it back.
	Servers *process.Pool
}

// Simulated is an optional interface of a System that runs in virtual time and
// memory, as then does the whole run. Its instances are Linkers.
type Simulated interface{ Simulated() }

// Linker is an optional interface of a Networked instance that is not reached
// over TCP: it provides each actor's link.
type Linker interface {
	Link(o links.Options) (links.Interruptible, error)
}

// NoDefects rejects any seeded defect, for adapters of servers that are not
// built here.
func (e Env) NoDefects(system string) error {
	if e.Defect == "" {
		return nil
	}
	return fmt.Errorf("%s: no seeded defect %q: this adapter has none", system, e.Defect)
}

// ServerLog opens the log file of the system's server.
func (e Env) ServerLog(system, server string) (io.WriteCloser, error) {
	log, err := e.Log(server)
	if err != nil {
		return nil, fmt.Errorf("%s: log of the server: %w", system, err)
	}
	return log, nil
}

// Installed is an optional interface of a System that needs something on the
// machine. The error says what is missing and how to get it.
type Installed interface {
	Installed() error
}

// Contained is an optional interface of a System whose server can run from a
// local container image. The profile is then named "PROFILE@IMAGE". The error
// says why it cannot.
type Contained interface {
	In(image string) (System, error)
}

// Remote is an optional interface of a System that can use a server somebody
// else started. The System returned by At creates only objects with the run's
// name and deletes them at the end; it is a Connector, and its instances are
// Networked and no Process.
type Remote interface {
	At(Endpoint) System
}

// Endpoint is the address of such a server, and the credentials. User and
// Password go to the server only.
type Endpoint struct {
	Address        string // host:port
	User, Password string // empty for none
	TLS            *tls.Config
}

// String omits the secrets.
func (e Endpoint) String() string { return e.Address }

// Exclusive is an optional interface of a System whose runs share one server:
// true allows one run at a time.
type Exclusive interface {
	Exclusive() bool
}

// Reporter is an optional interface of an Instance whose server says what it
// is. Report updates the description: versions, what they lack, the limits that
// come with them. The manifest and the check whether a scenario applies use the
// result.
type Reporter interface {
	Report(d *Description)
}

// Describe returns the description of a running system.
func Describe(s System, in Instance) Description {
	d := s.Describe()
	if r, ok := As[Reporter](in); ok {
		r.Report(&d)
	}
	return d
}

// Instance is a running system.
type Instance interface {
	Clients
	// Stop releases everything that Start created, in any state.
	Stop(ctx context.Context) error
}

// Clients opens sessions.
type Clients interface {
	// Producer opens a session. An error wraps ErrUnavailable if the system
	// cannot be reached, so that a retry makes sense.
	Producer(ctx context.Context, o ProducerOptions) (Producer, error)
	// Consumer opens a session and subscribes. It returns once the system has
	// confirmed the subscription.
	Consumer(ctx context.Context, o ConsumerOptions) (Consumer, error)
}

// Connector is an optional interface of a System: clients for an instance
// started by another process, so that a consumer can run in its own process and
// be killed.
type Connector interface {
	// Credentials returns what Connect needs. They are sent over a pipe and
	// nowhere else.
	Credentials(Instance) string
	// Connect returns clients. If they are an io.Closer they are closed after
	// use.
	Connect(credentials string) (Clients, error)
}

// ProducerOptions configure a session.
type ProducerOptions struct {
	Name    string // the actor
	Session string // "p1#1"
	Address string // of the actor's link; empty unless the instance is Networked
	Mode    Mode
}

// ConsumerOptions configure a session.
type ConsumerOptions struct {
	Name         string
	Session      string
	Address      string
	Destination  string // a topic or queue, or a filter with the system's wildcards
	Subscription string // the logical subscriber: its consumers compete
	Mode         Mode
	Window       int // most unacknowledged deliveries, at least 1
	// Seat is the consumer's place among its logical subscriber's, from 0: the
	// lowest that no running one has. A consumer keeps it through all its
	// sessions, and a successor takes it over. For systems that redeliver to a
	// named client only: derive the client's name from it.
	Seat int
}

// ProducerOf converts a constructor's result, turning a nil P into a nil
// Producer.
func ProducerOf[P Producer](p P, err error) (Producer, error) {
	if err != nil {
		return nil, err
	}
	return p, nil
}

// ConsumerOf converts a constructor's result, turning a nil C into a nil
// Consumer.
func ConsumerOf[C Consumer](c C, err error) (Consumer, error) {
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Mode is a delivery mode, where a profile has more than one.
type Mode string

const (
	DefaultMode Mode = "" // the profile's
	AtMostOnce  Mode = "at-most-once"
	AtLeastOnce Mode = "at-least-once"
)

// Producer publishes on one session, in call order. It never reconnects,
// retries or buffers.
type Producer interface {
	// Send passes the message to the client library without waiting for the
	// system's answer. An error is a failure to measure, never an acceptance: a
	// refused or broken connection is a Receipt.
	Send(ctx context.Context, m Message) (Pending, error)
	Close(ctx context.Context) error
}

// Pending is a publish in progress.
type Pending interface {
	// Receipt waits for the answer. If ctx ends first it is Unknown once a byte
	// was sent, Rejected if none was.
	Receipt(ctx context.Context) Receipt
}

// Receipt is the result of one publish.
type Receipt struct {
	Acceptance   evidence.Acceptance
	HeldBy       evidence.HeldBy
	MessageID    string
	Duplicate    bool           // the system deduplicated it against an earlier publish
	Cause        evidence.Cause // of a refusal, if the system gives it
	ClientResult string         // what the client library reported: OK or the error's text
	Reason       string         // free text
}

// OK is the Receipt.ClientResult of a call without error.
const OK = "ok"

// Message is a message as published or delivered.
type Message struct {
	Destination string
	MessageID   string // on publish: chosen by the publisher, or empty
	Key         string
	Headers     map[string]string
	Payload     []byte        // an encoded evidence.Envelope
	TTL         time.Duration // 0 for the system's default
}

// Consumer receives on one session. It never reconnects.
type Consumer interface {
	// Receive waits for the next delivery. It returns ErrDisconnected if the
	// session is gone, or ctx's error.
	Receive(ctx context.Context) (Delivery, error)
	Close(ctx context.Context) error
}

// Delivery is a message held by the application.
type Delivery interface {
	Message() Message
	// Attempt counts deliveries of this message from 1. known is false if the
	// system does not count.
	Attempt() (n int, known bool)
	// Mark is the system's redelivery flag.
	Mark() evidence.Mark
	// Ack settles the message. The outcome alone is decisive; the error only
	// explains why it is not Confirmed.
	Ack(ctx context.Context) (evidence.AckOutcome, error)
}

var (
	// ErrDisconnected: the session is gone; open a new one.
	ErrDisconnected = errors.New("systems: disconnected")
	// ErrUnavailable: the system cannot be reached.
	ErrUnavailable = errors.New("systems: unavailable")
)

// Networked is an optional interface of an Instance reached over TCP, so that
// each actor gets a link.
type Networked interface {
	Address() string          // of the server, on 127.0.0.1; stable across restarts
	Protocol() links.Protocol // nil for bytes only, without frame faults
}

// Process is an optional interface of an Instance that can be struck as a
// process. Each call returns when its effect is certain: exit status reaped,
// server ready. A call that finds it exited wraps process.ErrNotRunning.
type Process interface {
	Running() bool                      // false once it exited; true while paused
	Kill(ctx context.Context) error     // SIGKILL
	Shutdown(ctx context.Context) error // in order
	Restart(ctx context.Context) error  // after Kill or Shutdown: same address, same data
	Pause(ctx context.Context) error    // SIGSTOP
	Continue(ctx context.Context) error
}

// Inspector is an optional interface of an Instance: it reads the stored rows
// without side effects.
type Inspector interface {
	Rows(ctx context.Context) (evidence.Snapshot, error)
}

// Administrator is an optional interface of an Instance: it manages dead
// letters.
type Administrator interface {
	DeadLetters(ctx context.Context) ([]evidence.StoredRow, error)
	Redrive(ctx context.Context, messageID string) error
	Discard(ctx context.Context, messageID string) error
}

// Rewinder is an optional interface of an Instance that retains delivered
// messages and can move a subscriber back.
type Rewinder interface {
	// Position returns the end of the destination's log, in the system's
	// notation.
	Position(ctx context.Context, destination string) (string, error)
	// Rewind takes effect with the subscriber's next session. None of its
	// consumers may be connected.
	Rewind(ctx context.Context, destination, subscription string, to Point) error
}

// Point is a position in a log. Exactly one field is set.
type Point struct {
	Time     time.Time // the first message stored at this time or later
	Position string    // the first message behind it
}

// StoreFaulter is an optional interface of an Instance that can strike its own
// storage.
type StoreFaulter interface {
	// ArmStore arms one fault. fired is called, once or more and from any
	// goroutine, when its effect is seen.
	ArmStore(ctx context.Context, f StoreFault, fired func(StoreFired)) (heal func(context.Context) error, err error)
}

// StoreLinked is an optional interface of an Instance whose store is a server of
// its own. It is reached over a link named "store": see Env.Link. Both are nil where
// this profile's store is no server.
type StoreLinked interface {
	StoreProtocol() links.Protocol
	StoreProcess() Process // whose starts and exits are recorded under the same name
}

// Replicated is an optional interface of a store's process. Its standby follows it
// over a link named "standby".
type Replicated interface {
	// FailOver kills the server, promotes the standby and gives it the server's
	// address. It returns when that takes writes.
	FailOver(ctx context.Context) error
}

// StoreFault is a fault of the store.
type StoreFault struct {
	Label string
	// Verb is unreachable, slow, full, fsync-error, lose-reply or hold; of a server
	// as a whole fill, exhaust or read-only, in force when ArmStore returns.
	Verb string
	// Operation that triggers it ("insert", "delete", "commit"…); empty for
	// any.
	Operation string
	After     bool
	// Of and By strike only operations of this business ID, and of this actor: of
	// the business database.
	Of, By string
	N      int           // N-th operation since arming; 0 for the first
	Every  bool          // and every later one
	Delay  time.Duration // slow
}

// StoreFired describes one firing of a store fault.
type StoreFired struct {
	Operation string
	Items     []evidence.FrameItem
}

// Clocked is an optional interface of an Instance whose clock can be set.
type Clocked interface {
	SetClock(ctx context.Context, offset time.Duration) error
}

// Configurable is an optional interface of an Instance. Its Description lists
// the Settings. They take effect at the next Restart, or at once where the system
// does so.
type Configurable interface {
	Configure(ctx context.Context, setting, value string) error
}

// Planter is an optional interface of an Instance: it stores a row that the system
// must refuse, and leave as it is. Inspector.Rows gives it as evidence.RowRefused.
type Planter interface {
	// Plant plants what the notation calls so: see script.Plants.
	Plant(ctx context.Context, what, businessID, destination string) error
}

// StoreMover is an optional interface of an Instance: an administrator moves its
// rows.
type StoreMover interface {
	// SwapStore moves them to its other store while the broker runs. The error says
	// why it was not done.
	SwapStore(ctx context.Context) error
	// MigrateIdentity moves them to another storage identity while it is down.
	MigrateIdentity(ctx context.Context, from, to string) error
}

// StoreBackup is an optional interface of an Instance: an administrator backs its
// rows up and restores them.
type StoreBackup interface {
	// BackUpStore copies them while the system runs.
	BackUpStore(ctx context.Context, checkpoint string) error
	// RestoreStore puts those of the backup in their place while it is down.
	RestoreStore(ctx context.Context, checkpoint string) error
}

// Prober is an optional interface of an Instance that can be probed with
// malformed and extreme requests.
type Prober interface {
	Probes() []Probe
	// Probe runs one probe, on its own connections bypassing all links, and
	// returns its outcome. An error says why it could not be run: nothing is
	// known of the system then.
	Probe(ctx context.Context, name string) (Probed, error)
}

// Probe is one request and its required outcome.
type Probe struct {
	Kind  string // "strangers", "limits"
	Name  string // unique in the system
	Text  string // one sentence
	Wants evidence.ProbeOutcome
	Cause evidence.Cause // that a refusal must give, or NoCause
	// Within is how long it may take, in the run's time; 0 is as long as a probe
	// commonly may.
	Within time.Duration
}

// Probed is the outcome of a probe.
type Probed struct {
	Outcome evidence.ProbeOutcome
	Cause   evidence.Cause // given by a refusal
	Reason  string         // free text
}

// Resolver is an optional interface of a Producer: it looks up what became of a
// publish.
type Resolver interface {
	Lookup(ctx context.Context, businessID string) (Resolution, error)
}

// Resolution of an Unknown publish. Acceptance is Accepted if stored or
// settled, Rejected if proven not stored, else Unknown.
type Resolution struct {
	Acceptance evidence.Acceptance
	Standing   evidence.Standing
	MessageID  string
	Cause      evidence.Cause // why it is gone, if the system says so
	Reason     string         // free text
}

// Rejecter is an optional interface of a Delivery: it returns the message to
// the system.
type Rejecter interface {
	Nack(ctx context.Context, reason string) (evidence.AckOutcome, error)
}
