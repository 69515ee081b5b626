// Package nats is the adapter for NATS, JetStream and core. It runs the real
// nats-server in a child process (see Role), or uses one of an image or an
// external one, and connects with nats.go.
package nats

import (
	"maps"
	"strconv"
	"strings"
	"time"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// Profile is one configuration of NATS. The binary's main (or TestMain) must
// pass Role to process.RunRole.
type Profile struct {
	settings
	scale float64 // factor on every period and bound
	image string  // container image of the server; empty: the one in this binary
	// at is an external server; zero starts one.
	at systems.Endpoint
	// reported is the external server's version, once connected.
	reported string
	stream   string // its name, and the first token of every subject
}

// settings are what profiles differ in.
//
// By default there is one stream in file storage with work-queue retention: an
// acknowledged message is deleted, so that a drained stream is empty, and a
// message is kept until it is consumed. The price is JetStream's limit of one
// consumer per subject: a second logical subscriber of a destination is
// refused.
type settings struct {
	name, summary string
	core          bool                      // core NATS with queue groups, no stream
	sync          string                    // the server's sync_interval
	storage       jetstream.StorageType     // of the stream
	persist       jetstream.PersistModeType // of the stream
	acks          jetstream.AckPolicy       // of the consumers
	confirmed     bool                      // acknowledgements wait for the server ("double ack")
	keeps         bool                      // limits retention: acknowledged messages stay and can be replayed
	maxDeliver    int                       // attempts; 0: no limit
	maxAge        time.Duration             // of a stored message, at scale 1; 0: no limit
	duplicates    time.Duration             // duplicate window at scale 1, with a message ID on every publish; 0: the server's default
	claims        claims
	lacks         map[systems.Need]string // beyond lacked
}

const (
	syncAlways  = "always"
	syncDefault = "2m"
)

// profiles begins with the safest for a single server: every message and
// deletion is synced before it is answered, and every message is acknowledged
// individually and confirmed. The others each change one setting.
var profiles = []settings{
	{
		name:    "file-explicit-ack",
		summary: "one server, file storage synced on every write, work queue, explicit acknowledgements with confirmation",
		sync:    syncAlways, confirmed: true,
		claims: atLeastOnce,
	},
	{
		name:    "file-default-sync",
		summary: "as file-explicit-ack, but synced every two minutes, which is the server's default",
		sync:    syncDefault, confirmed: true,
		claims: atLeastOnce,
	},
	{
		name:    "single-ack",
		summary: "as file-explicit-ack, but acknowledgements are sent without asking for confirmation",
		sync:    syncAlways,
		claims:  atLeastOnce.without(evidence.AckIsFinal),
	},
	{
		name:    "ack-none",
		summary: "file storage synced on every write, kept while a consumer has interest; a delivery counts as its acknowledgement",
		sync:    syncAlways, acks: jetstream.AckNonePolicy,
		claims: atMostOnceStored,
		lacks:  ackNoneLacks,
	},
	{
		name:    "memory",
		summary: "memory storage: the end of the server's process is the end of the stream, which is then made anew",
		sync:    syncDefault, storage: jetstream.MemoryStorage, confirmed: true,
		claims: atLeastOnce.notUnder(endOfServer, evidence.NoAcceptedLoss, evidence.RecoveryBounded, evidence.UnknownResolved),
	},
	{
		name:    "async-persist",
		summary: "file storage, and a publish is confirmed before it is written (persist_mode async)",
		sync:    syncDefault, persist: jetstream.AsyncPersistMode, confirmed: true,
		// What a crash takes away, its sequence number is given again for.
		claims: atLeastOnce.notUnder(under(evidence.BrokerCrash), evidence.NoAcceptedLoss, evidence.RecoveryBounded, evidence.UnknownResolved, evidence.MessageIdentity),
	},
	{
		name:    "dedup-window",
		summary: "as file-explicit-ack, and every publish carries a message ID: a retry within the duplicate window is the same message",
		sync:    syncAlways, confirmed: true, duplicates: 30 * time.Second,
		claims: atLeastOnce,
	},
	{
		name:    "max-deliver",
		summary: "as file-explicit-ack, but a message is offered three times at most, and then stays in the work queue, offered to nobody",
		sync:    syncAlways, confirmed: true, maxDeliver: 3,
		claims: atLeastOnce.without(evidence.RecoveryBounded),
	},
	{
		name:    "max-age",
		summary: "as file-explicit-ack, but what is older than the stream's age limit is swept away, consumed or not",
		sync:    syncAlways, confirmed: true, maxAge: 10 * time.Second,
		claims: atLeastOnce.without(evidence.NoAcceptedLoss, evidence.RecoveryBounded, evidence.RowsMatchClients, evidence.ExpiryHonoured),
	},
	{
		name:    "replay",
		summary: "as file-explicit-ack, but the stream keeps what was acknowledged, so that a consumer can be put back to a time or a sequence",
		sync:    syncAlways, confirmed: true, keeps: true,
		claims: atLeastOnce,
	},
	{
		name:    "core",
		summary: "core NATS, no stream: published to the members of a queue group that are there, confirmed by nobody",
		core:    true, sync: syncDefault,
		claims: atMostOnce,
		lacks:  coreLacks,
	},
}

// Profiles lists the configurations of this adapter, the safest first. scale
// is the factor on every period and deadline of the run: 1 on an ordinary machine.
func Profiles(scale float64) []systems.System {
	all := make([]systems.System, len(profiles))
	for i, s := range profiles {
		all[i] = Profile{settings: s, scale: scale, stream: streamName}
	}
	return all
}

// automatic reports whether the application acknowledges nothing and nothing is
// redelivered.
func (p Profile) automatic() bool { return p.core || p.acks == jetstream.AckNonePolicy }

// retention of the stream. A work queue refuses consumers without
// acknowledgements; interest retention deletes what was delivered to them.
func (p Profile) retention() jetstream.RetentionPolicy {
	switch {
	case p.automatic():
		return jetstream.InterestPolicy
	case p.keeps:
		return jetstream.LimitsPolicy
	}
	return jetstream.WorkQueuePolicy
}

// heldBy is who holds a message once its publish is confirmed.
func (p Profile) heldBy() evidence.HeldBy {
	if p.storage == jetstream.MemoryStorage || p.persist == jetstream.AsyncPersistMode {
		return evidence.HeldByBrokerMemory
	}
	return evidence.HeldByStore
}

// Periods at scale 1, short enough for a run to see redelivery within seconds.
const (
	ackWait      = time.Second            // JetStream's AckWait, after which it redelivers
	nakDelay     = 100 * time.Millisecond // keeps a handler that always fails from spinning
	pullExpires  = 2 * time.Second        // lifetime of a pull request at the server
	pullGrace    = time.Second            // added before the client considers it lost
	pingInterval = 5 * time.Second        // two unanswered pings end a half-open connection
	writeTimeout = 2 * time.Second        // bounds a write to a stopped server
	dialTimeout  = 2 * time.Second        // connection and handshake
)

func (p Profile) scaled(d time.Duration) time.Duration {
	return time.Duration(float64(d) * p.scale)
}

// Describe says what this profile promises and lacks.
func (p Profile) Describe() systems.Description {
	lacks := maps.Clone(lacked)
	maps.Copy(lacks, p.lacks)
	claims := p.claims
	if !p.core && !p.expires() {
		lacks[systems.NeedTTL] = noTTL
		claims = claims.without(evidence.ExpiryHonoured)
	}
	if p.retention() == jetstream.WorkQueuePolicy {
		lacks[systems.NeedFanOut] = "a work queue has one logical subscriber for each subject"
	}
	if !p.keeps && !p.core {
		lacks[systems.NeedRewind] = "an acknowledged message is deleted: there is nothing to go back to"
	}
	d := systems.Description{
		System: "nats",
		Profile: evidence.Profile{
			Name:        p.name,
			Summary:     p.summary,
			Settings:    p.listed(),
			Redelivers:  evidence.RedeliverTimeout,
			AckCounting: "per-message",
			MarksAgain:  !p.automatic(),
			AckConfirms: p.confirmed,
			KeepsRows:   p.keeps,
			// Durable consumers receive for absent subscribers.
			KeepsSubscribers: !p.core,
			Limits: evidence.Limits{
				MaxAttempts:      p.maxDeliver,
				RedeliveryPeriod: p.scaled(ackWait),
				RecoveryBound:    p.scaled(15 * time.Second),
				// A redelivery for want of an acknowledgement comes later.
				InFlightBound: p.scaled(ackWait * 3 / 4),
				// The server truncates to whole seconds and sweeps once a
				// second, whatever the scale.
				ExpiryTolerance: max(p.scaled(3*time.Second), 3*time.Second),
				DeleteBound:     p.scaled(time.Second),
				DrainDeadline:   p.scaled(25 * time.Second),
				OrderScope:      "connection",
			},
		},
		Claims:   claims.bySystem(),
		Versions: map[string]string{"nats.go": client.Version},
		Forgets:  endOfServer, // rebuilt from the remaining rows only: see docs/findings.md
		Oldest:   map[string]string{program: oldest},
		Lacks:    lacks,
	}
	if release, err := p.release(); err == nil && (p.at.Address == "" || p.reported != "") { // otherwise reported by the server
		d.Versions[program] = release
	}
	if p.image != "" {
		d.Profile.Name += "@" + p.image
	}
	if p.automatic() {
		d.Profile.Redelivers, d.Profile.AckCounting = evidence.RedeliverNever, "automatic"
	}
	return d
}

const noTTL = "this nats-server knows no time to live of a message: " + ttlSince + " and later do"

// listed are the settings in NATS's terms, defaults only where a reader would
// miss them.
func (p Profile) listed() []evidence.Setting {
	if p.core {
		return []evidence.Setting{{Name: "jetstream", Value: "no stream takes the subjects"}, {Name: "queue", Value: "the logical subscriber"}}
	}
	maxDeliver := -1
	if p.maxDeliver > 0 {
		maxDeliver = p.maxDeliver
	}
	list := []evidence.Setting{
		{Name: "sync_interval", Value: p.syncInterval()},
		{Name: "storage", Value: strings.ToLower(p.storage.String())},
		{Name: "retention", Value: strings.ToLower(p.retention().String())},
		{Name: "ack_policy", Value: strings.ToLower(strings.TrimPrefix(p.acks.String(), "Ack"))},
		{Name: "ack_wait", Value: p.scaled(ackWait).String()},
		// A message past its last attempt stays in the work queue undelivered:
		// JetStream has no dead-letter queue.
		{Name: "max_deliver", Value: strconv.Itoa(maxDeliver)},
	}
	if p.expires() {
		list = append(list, evidence.Setting{Name: "allow_msg_ttl", Value: "true"})
	}
	if p.persist != jetstream.DefaultPersistMode {
		list = append(list, evidence.Setting{Name: "persist_mode", Value: strings.ToLower(p.persist.String())})
	}
	if p.maxAge > 0 {
		list = append(list, evidence.Setting{Name: "max_age", Value: p.scaled(p.maxAge).String()})
	}
	if p.duplicates > 0 {
		list = append(list, evidence.Setting{Name: "duplicate_window", Value: p.scaled(p.duplicates).String()})
	}
	return list
}

func (p Profile) syncInterval() string {
	if p.at.Address != "" {
		return "as its owner has set it"
	}
	return p.sync
}

// lacked is what every profile lacks.
var lacked = map[systems.Need]string{
	systems.NeedWildcards:   "NATS parts a subject by dots and has wildcards of its own, * and >",
	systems.NeedModes:       "a stream has one mode: at-most-once is core NATS beside it",
	systems.NeedDecline:     "JetStream stores a message whether or not a consumer is online",
	systems.NeedLookup:      "JetStream finds messages by sequence or subject, not by business ID: an unknown publish is settled from the stored rows",
	systems.NeedStoreFaults: "the file store is inside nats-server, with no seam to strike it",
	systems.NeedClock:       "nats-server reads the machine's clock",
	systems.NeedIdentity:    "the data does not depend on the server's name or host",
	systems.NeedPlanting:    "NATS payloads have no protocol version that the server would refuse",
	systems.NeedDeadLetters: "JetStream only publishes an advisory after the last delivery attempt: it has no dead-letter queue",
}

var ackNoneLacks = map[systems.Need]string{
	systems.NeedAcks:       "AckNone: a delivery counts as its acknowledgement",
	systems.NeedNack:       "AckNone: a delivery counts as its acknowledgement",
	systems.NeedRedelivery: "AckNone: a message is delivered once",
	systems.NeedWindow:     "AckNone: a delivery counts as its acknowledgement, so that none is open",
	systems.NeedDecline:    "interest retention drops what no consumer wants, and confirms the publish all the same",
}

var coreLacks = map[systems.Need]string{
	systems.NeedAcks:        "core NATS has no acknowledgements",
	systems.NeedNack:        "core NATS has no acknowledgements",
	systems.NeedRedelivery:  "core NATS sends a message once",
	systems.NeedDeadLetters: "core NATS keeps nothing",
	systems.NeedWindow:      "core NATS sends all there is: nothing tells it what was handled",
	systems.NeedLookup:      "core NATS keeps nothing",
	systems.NeedTTL:         "core NATS keeps nothing that could expire",
	systems.NeedMessageID:   "core NATS knows no message IDs",
	systems.NeedAnswer:      "core NATS answers no publish: nothing would end a retry",
	systems.NeedDecline:     "core NATS drops what nobody listens for, and does not say so",
	systems.NeedModes:       "core NATS is at-most-once only",
	systems.NeedStoreFaults: "core NATS has no store",
	systems.NeedRewind:      "core NATS keeps nothing to go back to",
}
