// Package redis is the adapter for Redis and Valkey: streams with consumer
// groups, and pub/sub for contrast. It runs the installed redis-server, one of
// an image or uses an external one, and connects with go-redis.
package redis

import (
	"maps"
	"strings"
	"sync"
	"time"

	client "github.com/redis/go-redis/v9"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// Profile is one configuration of the server and its applications.
type Profile struct {
	name, summary string
	persistence   string // lines of the configuration
	reads         reads
	heldBy        evidence.HeldBy // who holds an accepted message
	scale         float64         // factor on every period and bound
	claims        []evidence.Claim
	image         string // container image of the server; empty: the installed one
	release       func() release
	at            systems.Endpoint // of an external server; zero: start one
}

// reads is what a consumer reads. Redis does not redeliver by itself: reading
// pending entries is up to the application.
type reads uint8

const (
	claim   reads = iota // own pending entries, then idle ones of others, then new ones
	own                  // own pending entries, then new ones
	newOnly              // new entries only
	channel              // pub/sub instead of a stream
)

// What the server stores and when.
const (
	aofAlways   = "appendonly yes\nappendfsync always"
	aofEverySec = "appendonly yes\nappendfsync everysec"
	noAOF       = "appendonly no"
)

// Profiles lists the configurations of this adapter, the safest first. scale is
// the factor on every period and deadline of the run: 1 on an ordinary machine.
func Profiles(scale float64) []systems.System {
	installed := sync.OnceValue(installedRelease)
	profile := func(p Profile) systems.System { p.scale, p.release = scale, installed; return p }
	return []systems.System{
		profile(Profile{
			name: "aof-always-claim", persistence: aofAlways, reads: claim, heldBy: evidence.HeldByStore, claims: claimingClaims(anyFault),
			summary: "streams, synced before every answer; consumers read what is pending for them, claim what others left, then read what is new",
		}),
		profile(Profile{
			name: "aof-everysec", persistence: aofEverySec, reads: claim, heldBy: evidence.HeldByBrokerMemory, claims: claimingClaims(butCrash),
			summary: "as aof-always-claim, but synced once a second (the server's default for its append-only file)",
		}),
		profile(Profile{
			name: "no-aof", persistence: noAOF, reads: claim, heldBy: evidence.HeldByBrokerMemory, claims: claimingClaims(whileRunning),
			summary: "as aof-always-claim, but nothing is stored: the end of the server is the end of all",
		}),
		profile(Profile{
			name: "own-pending", persistence: aofAlways, reads: own, heldBy: evidence.HeldByStore, claims: unclaimedClaims,
			summary: "as aof-always-claim, but nobody claims: what a consumer leaves waits until one of the same name is back",
		}),
		profile(Profile{
			name: "new-only", persistence: aofAlways, reads: newOnly, heldBy: evidence.HeldByStore, claims: unclaimedClaims,
			summary: "as aof-always-claim, but consumers read new entries only: what was not acknowledged stays pending for ever",
		}),
		profile(Profile{
			name: "pubsub", persistence: noAOF, reads: channel, heldBy: evidence.HeldByBrokerMemory, claims: pubsubClaims,
			summary: "PUBLISH to whoever is subscribed: at most once, never stored",
		}),
	}
}

// Periods at scale 1, short enough for a run to see redelivery within seconds.
const (
	claimIdle   = time.Second            // XAUTOCLAIM's min-idle-time
	claimEvery  = 200 * time.Millisecond // how often a consumer claims
	blockFor    = 100 * time.Millisecond // of a blocking read, behind which acknowledgements wait
	replyWithin = 2 * time.Second        // after which the connection counts as lost
	openWithin  = 2 * time.Second        // connection and first exchange
)

func (p Profile) scaled(d time.Duration) time.Duration {
	return time.Duration(float64(d) * p.scale)
}

// anyFault is every fault class that applies to a child process behind a link.
var anyFault = under(evidence.ClientCrash, evidence.BrokerRestart, evidence.BrokerCrash, evidence.BrokerPause, evidence.Link)

var (
	butCrash     = under(evidence.ClientCrash, evidence.BrokerRestart, evidence.BrokerPause, evidence.Link)
	whileRunning = under(evidence.ClientCrash, evidence.BrokerPause, evidence.Link)
)

func under(classes ...evidence.Class) []evidence.Class { return classes }

// claims lists guarantees, each with the section of the Redis documentation
// that promises it.
type claims []struct {
	guarantee string
	under     []evidence.Class
	source    string
}

func (table claims) bySystem() []evidence.Claim {
	made := make([]evidence.Claim, 0, len(table))
	for _, c := range table {
		made = append(made, evidence.Claim{Guarantee: c.guarantee, Under: c.under, Owner: evidence.OwnerSystem, Source: c.source})
	}
	return made
}

const (
	ofGroups     = "Redis Streams: Consumer groups"
	ofClaiming   = "Redis Streams: Recovering from permanent failures; Automatic claiming"
	ofCounter    = "Redis Streams: Claiming and the delivery counter"
	ofSafety     = "Redis Streams: Persistence, replication and message safety"
	ofIDs        = "Redis Streams: Entry IDs"
	ofObserving  = "Redis Streams: Streams observability"
	ofDurability = "Redis persistence: How durable is the append only file?"
	ofPubSub     = "Redis Pub/sub"
)

// streamClaims holds for a stream as long as its data is kept.
func streamClaims(kept []evidence.Class) claims {
	return claims{
		{evidence.NoPhantom, anyFault, ofGroups},
		{evidence.DeclinedMeansAbsent, anyFault, "XADD: Return information"},
		{evidence.UnknownResolved, kept, ofObserving},
		{evidence.AckIsFinal, kept, ofSafety},
		{evidence.RowsMatchClients, kept, ofObserving},
		{evidence.Survives, anyFault, "Redis administration"},
		// A redelivered entry follows later ones: order holds where nothing is
		// lost.
		{evidence.Order, nil, ofIDs},
	}
}

// claimingClaims adds what holds for consumers that claim idle entries.
func claimingClaims(kept []evidence.Class) []evidence.Claim {
	return append(streamClaims(kept), claims{
		{evidence.NoAcceptedLoss, kept, ofSafety + "; " + ofDurability},
		{evidence.RecoveryBounded, kept, ofClaiming},
		{evidence.StableRedeliveryID, kept, ofCounter},
	}...).bySystem()
}

var (
	// unclaimedClaims promises no redelivery: an entry stays pending if its
	// consumer neither settles it nor returns.
	unclaimedClaims = streamClaims(anyFault).bySystem()

	pubsubClaims = claims{
		{evidence.NoPhantom, anyFault, ofPubSub},
		{evidence.DeclinedMeansAbsent, anyFault, "PUBLISH: Return information"},
		{evidence.Order, anyFault, ofPubSub},
		{evidence.Survives, anyFault, "Redis administration"},
	}.bySystem()
)

// Describe says what this profile promises and lacks.
func (p Profile) Describe() systems.Description {
	server := p.release()
	d := systems.Description{
		System: "redis",
		Profile: evidence.Profile{
			Name:        p.name,
			Summary:     p.summary,
			Settings:    p.settings(),
			Redelivers:  redelivers[p.reads],
			AckCounting: "per-message",
			KeepsRows:   true,
			MarksAgain:  true,
			AckConfirms: true,
			// XACK is a write: with appendfsync always it is synced before it
			// is answered.
			ConfirmIsDurable: p.persistence == aofAlways,
			KeepsSubscribers: p.reads != channel, // a consumer group
			Limits: evidence.Limits{
				RedeliveryPeriod: p.scaled(claimIdle + 2*claimEvery),
				RecoveryBound:    p.scaled(8 * time.Second),
				InFlightBound:    p.scaled(time.Second),
				ExpiryTolerance:  p.scaled(time.Second),
				DeleteBound:      p.scaled(time.Second),
				DrainDeadline:    p.scaled(12 * time.Second),
				OrderScope:       "connection",
			},
		},
		Claims:   p.claims,
		Versions: map[string]string{"go-redis": client.Version()},
		Oldest:   map[string]string{program: oldest},
		Lacks:    maps.Clone(lacks),
	}
	if p.at.Address == "" { // otherwise reported by the server
		d.Versions[server.program] = server.version
	}
	if p.image != "" {
		d.Profile.Name += "@" + p.image
	}
	if p.reads == channel {
		const none = "pub/sub keeps nothing and asks for no acknowledgement"
		d.Profile.AckCounting, d.Profile.KeepsRows, d.Profile.MarksAgain, d.Profile.AckConfirms = "automatic", false, false, false
		d.Lacks[systems.NeedRedelivery], d.Lacks[systems.NeedAcks], d.Lacks[systems.NeedRewind], d.Lacks[systems.NeedWindow] = none, none, none, none
		delete(d.Lacks, systems.NeedDecline)
	}
	return d
}

var redelivers = map[reads]evidence.Redelivery{
	claim: evidence.RedeliverClaim, own: evidence.RedeliverReconnect, newOnly: evidence.RedeliverNever, channel: evidence.RedeliverNever,
}

func (p Profile) settings() []evidence.Setting {
	var list []evidence.Setting
	for line := range strings.Lines(p.persistence) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		list = append(list, evidence.Setting{Name: name, Value: value})
	}
	list = append(list, evidence.Setting{Name: "reads", Value: readsText[p.reads]})
	if p.reads == claim {
		list = append(list, evidence.Setting{Name: "min-idle-time", Value: p.scaled(claimIdle).String()})
	}
	return list
}

var readsText = map[reads]string{
	claim: "XREADGROUP 0, XAUTOCLAIM, XREADGROUP >", own: "XREADGROUP 0, XREADGROUP >", newOnly: "XREADGROUP >", channel: "SUBSCRIBE",
}

const (
	noTTL       = "Redis has no time to live for an entry of a stream, nor for a message of a channel"
	noMessageID = "an entry's ID is a number that only grows, and naming one a second time is an error, not a repetition"
)

var lacks = map[systems.Need]string{
	systems.NeedWildcards:   "a stream is read by its name",
	systems.NeedModes:       "a stream stores every entry: at most once is pub/sub, a profile of its own",
	systems.NeedDecline:     "XADD stores an entry whether or not a consumer is online",
	systems.NeedLookup:      "Redis finds entries by ID, not by business ID: an unknown publish is settled from the stored rows",
	systems.NeedNack:        "Redis has no negative acknowledgement: an entry that is not acknowledged can be claimed in time",
	systems.NeedTTL:         noTTL,
	systems.NeedMessageID:   noMessageID,
	systems.NeedStoreFaults: "the append-only file is inside redis-server, with no seam to strike it",
	systems.NeedClock:       "redis-server reads the machine's clock",
	systems.NeedIdentity:    "the data does not depend on the server's name or host",
	systems.NeedPlanting:    "entries have no protocol version that the server would refuse",
	systems.NeedDeadLetters: "Redis counts an entry's deliveries and leaves it to the application to give up: it has no dead-letter queue",
}
