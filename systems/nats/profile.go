// Package nats puts NATS JetStream under test: the real nats-server, run by
// this binary in a process of its own (see Role), reached with nats.go.
package nats

import (
	"time"

	"github.com/nats-io/nats-server/v2/server"
	client "github.com/nats-io/nats.go"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// Profile is one configuration of JetStream. Start its instances from a binary
// whose main (or TestMain) gives Role to containers.RunRole.
type Profile struct {
	name, summary string
	syncInterval  string  // of the server's file store, as its configuration writes it
	scale         float64 // factor on every period and bound
	claims        []evidence.Claim
}

// Profiles lists the configurations of this adapter. scale is the factor on
// every period and deadline of the run: 1 on an ordinary machine.
func Profiles(scale float64) []systems.System {
	return []systems.System{FileExplicit(scale)}
}

// FileExplicit is the safest of a single server: every message and every
// deletion is synced to the file before it is answered, and every message is
// acknowledged by itself, with the server's confirmation.
//
// The stream is a work queue: an acknowledged message is deleted, so that a
// drained stream is exactly empty, and one that nobody consumed yet is kept.
// The price is JetStream's rule of one consumer for each subject: a second
// logical subscriber of one destination is refused.
func FileExplicit(scale float64) systems.System {
	return Profile{
		name:         "file-explicit-ack",
		summary:      "one server, file storage synced on every write, work queue, explicit acknowledgements with confirmation",
		syncInterval: "always",
		scale:        scale,
		claims:       fileExplicitClaims,
	}
}

// The periods of a profile at scale 1. They are short, so that a run sees
// redelivery within seconds.
const (
	ackWait      = time.Second            // JetStream's AckWait: then an unacknowledged message comes again
	nakDelay     = 100 * time.Millisecond // a handler that always fails must not spin
	pullExpires  = 2 * time.Second        // the server forgets a pull request after this
	pullGrace    = time.Second            // …and the client believes it lost after this much more
	pingInterval = 5 * time.Second        // two unanswered pings end a half-open connection
	writeTimeout = 2 * time.Second        // a write that a stopped server does not take ends the connection
	dialTimeout  = 2 * time.Second        // connection and handshake
)

func (p Profile) scaled(d time.Duration) time.Duration {
	return time.Duration(float64(d) * p.scale)
}

// anyFault is every class that a child process on a link can be struck with.
var anyFault = []evidence.Class{
	evidence.ClientCrash, evidence.BrokerRestart, evidence.BrokerCrash, evidence.BrokerPause, evidence.Link,
}

// whileRunning leaves out what ends the server.
var whileRunning = under(evidence.ClientCrash, evidence.BrokerPause, evidence.Link)

func under(classes ...evidence.Class) []evidence.Class { return classes }

var fileExplicitClaims = claims{
	{evidence.NoAcceptedLoss, anyFault, "JetStream Model Deep Dive: Acknowledgement Models; configuration reference: jetstream.sync_interval"},
	{evidence.NoPhantom, anyFault, "JetStream: Publishing (what the PubAck means)"},
	{evidence.DeclinedMeansAbsent, anyFault, "JetStream API reference: Publishing to Streams, error responses"},
	{evidence.UnknownResolved, anyFault, "JetStream API reference: Fetching From a Stream By Sequence"},
	// Over a restart the row of a message whose acknowledgement was confirmed
	// just before can be back, and stay, though it is not delivered again: see
	// docs/findings.md.
	{evidence.AckIsFinal, whileRunning, "JetStream Model Deep Dive: Exactly Once Semantics (acknowledging the acknowledgement)"},
	{evidence.RecoveryBounded, anyFault, "JetStream Consumers: AckWait"},
	{evidence.RowsMatchClients, whileRunning, "JetStream Model Deep Dive: Stream Limits, Retention, and Policy (WorkQueuePolicy)"},
	{evidence.Survives, anyFault, "Running a NATS service: configuration"},
	// The delivery counter is written behind the acknowledgements, so that a
	// crash can set it back and a redelivery then calls itself the first.
	{evidence.StableRedeliveryID, under(evidence.ClientCrash, evidence.BrokerRestart, evidence.BrokerPause, evidence.Link), "JetStream Model Deep Dive: Acknowledgement Models (delivery count in the reply subject)"},
	// A message lost on its way to a consumer comes again only after AckWait,
	// behind those that followed it: order is promised where nothing is lost.
	{evidence.Order, nil, "JetStream Consumers: DeliverPolicy All, ReplayPolicy Instant"},
	// Expiry is a sweep with a tick of a second that a stopped server misses.
	{evidence.ExpiryHonoured, under(evidence.ClientCrash), "ADR-43: JetStream Per-Message TTL"},
}.bySystem()

// claims is a table of promises, each with the section of the NATS
// documentation that makes it.
type claims []struct {
	guarantee string
	under     []evidence.Class
	source    string
}

func (table claims) bySystem() []evidence.Claim {
	made := make([]evidence.Claim, 0, len(table))
	for _, c := range table {
		made = append(made, evidence.Claim{Guarantee: c.guarantee, Under: c.under, Owner: evidence.OwnerSystem, Source: "NATS, " + c.source})
	}
	return made
}

// Describe says what this profile promises and lacks.
func (p Profile) Describe() systems.Description {
	return systems.Description{
		System: "nats",
		Profile: evidence.Profile{
			Name:    p.name,
			Summary: p.summary,
			Settings: []evidence.Setting{
				{Name: "sync_interval", Value: p.syncInterval},
				{Name: "storage", Value: "file"},
				{Name: "retention", Value: "workqueue"},
				{Name: "ack_policy", Value: "explicit"},
				{Name: "ack_wait", Value: p.scaled(ackWait).String()},
				// A message past its last attempt would stay in the work queue,
				// offered to nobody: JetStream has no dead-letter queue.
				{Name: "max_deliver", Value: "-1"},
				{Name: "allow_msg_ttl", Value: "true"},
			},
			Redelivers:  evidence.RedeliverTimeout,
			AckCounting: "per-message",
			MarksAgain:  true,
			AckConfirms: true,
			Limits: evidence.Limits{
				RedeliveryPeriod: p.scaled(ackWait),
				RecoveryBound:    p.scaled(15 * time.Second),
				InFlightBound:    p.scaled(time.Second),
				// The server keeps whole seconds, rounded down, and sweeps
				// once a second: neither grows smaller with the scale.
				ExpiryTolerance: max(p.scaled(3*time.Second), 3*time.Second),
				DeleteBound:     p.scaled(time.Second),
				DrainDeadline:   p.scaled(25 * time.Second),
				OrderScope:      "connection",
			},
		},
		Claims:   p.claims,
		Versions: map[string]string{"nats-server": server.VERSION, "nats.go": client.Version},
		Lacks: map[systems.Need]string{
			systems.NeedModes:       "at-most-once is core NATS beside JetStream: a publish to a stream is always stored",
			systems.NeedDecline:     "JetStream stores a message whether or not a consumer is online",
			systems.NeedLookup:      "JetStream finds messages by sequence or subject, not by business ID: an unknown publish is settled from the stored rows",
			systems.NeedStoreFaults: "the file store is inside nats-server, with no seam to strike it",
			systems.NeedClock:       "nats-server reads the machine's clock",
			systems.NeedIdentity:    "the data does not depend on the server's name or host",
			systems.NeedPlanting:    "NATS payloads have no protocol version that the server would refuse",
			systems.NeedDeadLetters: "JetStream only publishes an advisory after the last delivery attempt: it has no dead-letter queue",
		},
	}
}
