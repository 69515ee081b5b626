// Package kafka is the adapter for Apache Kafka. It runs a broker with Java
// from where install.sh put it, one of an image, or uses an external one, and
// connects with franz-go.
package kafka

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/systems"
)

// Profile is one configuration of broker and client.
type Profile struct {
	name, summary string
	scale         float64 // factor on every period and bound

	acks       string // of the producer: all, 1, 0
	idempotent bool
	retries    bool // by the client, within its delivery timeout
	flush      bool // sync the log at every message
	// transactional puts each publish into a transaction of its own; consumers
	// read committed messages only.
	transactional bool
	heldBy        evidence.HeldBy
	partitions    int32
	commit        commitMode
	share         bool // a share group instead of a consumer group

	claims []evidence.Claim

	image     string           // container image of the server; empty: the installed one
	at        systems.Endpoint // of an external broker; zero: start one
	mechanism string           // SASL mechanism; empty: none
}

const (
	acksAll    = "all"
	acksLeader = "1"
	acksNone   = "0"
)

// commitMode is what a consumer group's member commits and when.
type commitMode string

const (
	commitPrefix commitMode = "the processed prefix" // at each acknowledgement, up to the first unsettled message
	commitEach   commitMode = "each success"         // its own offset, whatever is unsettled before it
	commitPolled commitMode = "what was polled"      // by the client, at intervals
	commitMarked commitMode = "what was processed"   // by the client, at intervals
)

// Profiles lists the configurations of this adapter, the safest first. scale is
// the factor on every period and deadline of the run: 1 on an ordinary machine.
func Profiles(scale float64) []systems.System {
	all := []Profile{
		{
			name: "acks-all", summary: "acks=all, every message synced, no retries; a consumer group of three partitions commits what it has processed, in order",
			acks: acksAll, flush: true, heldBy: evidence.HeldByStore, commit: commitPrefix, claims: atLeastOnce,
		},
		{
			name: "share-group", summary: "acks=all, every message synced; a share group accepts or releases each message by itself",
			acks: acksAll, flush: true, partitions: 1, heldBy: evidence.HeldByStore, share: true, claims: shareClaims,
		},
		{
			name: "acks-1", summary: "acks=1: the leader answers from its page cache; on one node this is all replicas",
			acks: acksLeader, heldBy: evidence.HeldByBrokerMemory, commit: commitPrefix, claims: leaderClaims,
		},
		{
			name: "acks-0", summary: "acks=0: the producer is told ok as soon as it has written; the broker never answers",
			acks: acksNone, heldBy: evidence.HeldByClient, commit: commitPrefix, claims: consumingClaims,
		},
		{
			name: "idempotent-retries", summary: "acks=all, and the client tries again with sequence numbers by which the broker knows a repetition; one partition, in which order is kept",
			acks: acksAll, flush: true, idempotent: true, retries: true, partitions: 1, heldBy: evidence.HeldByStore, commit: commitPrefix, claims: ordered,
		},
		{
			name: "transactions", summary: "each publish is a transaction of its own, answered once it is committed; one partition; consumers read what is committed, and no aborted message",
			acks: acksAll, flush: true, idempotent: true, transactional: true, partitions: 1, heldBy: evidence.HeldByStore, commit: commitPrefix, claims: transactionClaims,
		},
		{
			name: "retries", summary: "acks=all, and the client tries again without sequence numbers: a lost answer makes a second message",
			acks: acksAll, flush: true, retries: true, heldBy: evidence.HeldByStore, commit: commitPrefix, claims: atLeastOnce,
		},
		{
			name: "auto-commit", summary: "the client commits at intervals what the application has polled, processed or not",
			acks: acksAll, flush: true, heldBy: evidence.HeldByStore, commit: commitPolled, claims: producingClaims,
		},
		{
			name: "auto-commit-marked", summary: "the client commits at intervals up to what the application has marked as processed",
			acks: acksAll, flush: true, heldBy: evidence.HeldByStore, commit: commitMarked, claims: producingClaims,
		},
		{
			name: "commit-skips-failed", summary: "each success commits its own offset, and with it every failed message before it",
			acks: acksAll, flush: true, heldBy: evidence.HeldByStore, commit: commitEach, claims: producingClaims,
		},
	}
	list := make([]systems.System, len(all))
	for i, p := range all {
		p.scale, p.partitions = scale, cmp.Or(p.partitions, 3)
		list[i] = p
	}
	return list
}

// Periods at scale 1, short enough for a run to see redelivery within seconds.
const (
	sessionTimeout     = 2 * time.Second // without a heartbeat a member is removed
	heartbeat          = 250 * time.Millisecond
	assignWait         = 600 * time.Millisecond // for an assignment, before a member counts as subscribed without one
	pollInterval       = time.Second            // max.poll.interval.ms: a stuck member leaves
	lockDuration       = 2 * time.Second        // of a message held by a member of a share group
	fetchWait          = 500 * time.Millisecond
	autoCommit         = 100 * time.Millisecond
	nackDelay          = 100 * time.Millisecond
	produceTimeout     = time.Second     // the broker's, for its replicas
	requestTimeout     = 3 * time.Second // the client's, on top of that
	transactionTimeout = 3 * time.Second // aborts an abandoned one, which until then hides all later messages
	transactionCheck   = 250 * time.Millisecond
	markWait           = 500 * time.Millisecond // for a transaction's marker to appear in its topic
	deliveryTimeout    = 8 * time.Second        // of a record, including retries
	brokerSession      = 2 * time.Second        // before a killed broker may register again
	brokerHeartbeat    = 200 * time.Millisecond
	adminBound         = 10 * time.Second
	readyBound         = time.Minute // of the broker's start
)

// Not scaled.
const (
	backoff         = 50 * time.Millisecond
	metadataAge     = 50 * time.Millisecond
	leastSession    = 6 * time.Second        // group.min.session.timeout.ms by default
	leastAutoCommit = 100 * time.Millisecond // franz-go's minimum
	maxMessage      = 4 << 20
	maxAttempts     = 10 // deliveries by a share group before it drops a message; the largest possible setting
	serverVersion   = "4.4.0"
)

func (p Profile) scaled(d time.Duration) time.Duration {
	return time.Duration(float64(d) * p.scale)
}

// sessionTimeout of a group's member, as short as the broker allows.
func (p Profile) sessionTimeout() time.Duration {
	if p.at.Address != "" {
		return max(p.scaled(sessionTimeout), leastSession)
	}
	return p.scaled(sessionTimeout)
}

// producerOptions configures a producer's client.
func (p Profile) producerOptions() []kgo.Opt {
	var opts []kgo.Opt
	switch p.acks {
	case acksLeader:
		opts = append(opts, kgo.RequiredAcks(kgo.LeaderAck()))
	case acksNone:
		opts = append(opts, kgo.RequiredAcks(kgo.NoAck()))
	default:
		opts = append(opts, kgo.RequiredAcks(kgo.AllISRAcks()))
	}
	if !p.idempotent {
		opts = append(opts, kgo.DisableIdempotentWrite())
	}
	switch {
	case p.retries:
		opts = append(opts, kgo.RecordDeliveryTimeout(p.scaled(deliveryTimeout)))
	case p.transactional:
		// A broker that has not yet written the last transaction's marker
		// refuses the next transaction's records, which the client then
		// retries. It cannot duplicate stored ones: the session ends with its
		// first connection.
		opts = append(opts, kgo.RecordDeliveryTimeout(p.scaled(transactionTimeout)), kgo.UnknownTopicRetries(0))
	default:
		opts = append(opts, kgo.RecordRetries(0), kgo.UnknownTopicRetries(0))
	}
	return opts
}

func (p Profile) retrying() string {
	switch {
	case p.retries:
		return "until delivery.timeout.ms"
	case p.transactional:
		return "while the last transaction is being ended"
	}
	return "0"
}

// reading configures a consumer's client.
func (p Profile) reading() []kgo.Opt {
	if p.transactional {
		return []kgo.Opt{kgo.FetchIsolationLevel(kgo.ReadCommitted())}
	}
	return nil
}

// topicSettings of every topic of a run. Messages get the time at which they
// are appended.
func (p Profile) topicSettings() map[string]*string {
	every, stored := "1", "LogAppendTime"
	settings := map[string]*string{"message.timestamp.type": &stored}
	if p.flush {
		settings["flush.messages"] = &every
	}
	return settings
}

// Describe says what this profile promises and lacks.
func (p Profile) Describe() systems.Description {
	settings := []evidence.Setting{
		{Name: "acks", Value: p.acks},
		{Name: "enable.idempotence", Value: strconv.FormatBool(p.idempotent)},
		{Name: "retries", Value: p.retrying()},
		{Name: "flush.messages", Value: map[bool]string{false: "never", true: "1"}[p.flush]},
		{Name: "message.timestamp.type", Value: "LogAppendTime"},
		{Name: "replication.factor", Value: "1"},
		{Name: "partitions", Value: strconv.Itoa(int(p.partitions))},
		{Name: "fetch.max.bytes", Value: "1 (one batch)"},
	}
	profile := evidence.Profile{
		Name: p.name, Summary: p.summary,
		AckConfirms: true, KeepsRows: true,
		KeepsSubscribers: true, // groups start at the earliest offset
		Limits: evidence.Limits{
			RecoveryBound: p.scaled(20 * time.Second),
			InFlightBound: p.scaled(time.Second),
			DrainDeadline: p.scaled(30 * time.Second),
		},
	}
	if p.transactional {
		if p.at.Address == "" {
			settings = append(settings, evidence.Setting{Name: "flush.messages of __transaction_state", Value: "1"})
		}
		settings = append(settings,
			evidence.Setting{Name: "transactional.id", Value: "one for each producer"},
			evidence.Setting{Name: "transaction.timeout.ms", Value: millisText(p.scaled(transactionTimeout))},
			evidence.Setting{Name: "isolation.level", Value: "read_committed"})
	}
	lacks := map[systems.Need]string{
		systems.NeedWildcards:   "a group subscribes to topics by name",
		systems.NeedModes:       "acks is a setting of the whole producer, not of a message",
		systems.NeedDecline:     "a topic stores a message whether or not a group reads it",
		systems.NeedMessageID:   "the broker numbers messages by itself",
		systems.NeedTTL:         "retention is of a topic, not of a message",
		systems.NeedLookup:      "a topic has no index by business ID: an unknown publish is settled from the stored rows",
		systems.NeedStoreFaults: "the log is inside the broker's process, with no seam to strike it",
		systems.NeedClock:       "the broker reads the machine's clock",
		systems.NeedIdentity:    "the data does not depend on the broker's name or host",
		systems.NeedPlanting:    "a message has no protocol version that the broker would refuse",
		systems.NeedDeadLetters: "a consumer group has no dead letters: what to do with a poison message is the application's",
	}
	if p.partitions == 1 && !p.share {
		profile.Limits.OrderScope = "connection"
		lacks[systems.NeedCompeting] = "one member of a group reads a partition, and the topic has one: the others wait for its end"
	}
	if p.acks == acksNone {
		lacks[systems.NeedAnswer] = "with acks=0 the broker never answers a publish"
	}
	if p.share {
		profile.Redelivers, profile.AckCounting, profile.MarksAgain = evidence.RedeliverReconnect, "per-message", true
		profile.Limits.RedeliveryPeriod, profile.Limits.DropsAfter = p.scaled(lockDuration), maxAttempts
		settings = append(settings,
			evidence.Setting{Name: "group type", Value: "share"},
			evidence.Setting{Name: "share.acknowledgement.mode", Value: "explicit"},
			evidence.Setting{Name: "share.auto.offset.reset", Value: "earliest"},
			evidence.Setting{Name: "group.share.record.lock.duration.ms", Value: millisText(p.scaled(lockDuration))},
			evidence.Setting{Name: "group.share.delivery.count.limit", Value: strconv.Itoa(maxAttempts)})
		lacks[systems.NeedDeadLetters] = "a share group drops what it has delivered too often, unless a topic for it is configured, which is not done here"
	} else {
		profile.Redelivers, profile.AckCounting = evidence.RedeliverRebalance, "cumulative"
		profile.Limits.RedeliveryPeriod = max(p.sessionTimeout(), p.scaled(pollInterval))
		settings = append(settings,
			evidence.Setting{Name: "group type", Value: "classic"},
			evidence.Setting{Name: "commits", Value: string(p.commit)},
			evidence.Setting{Name: "session.timeout.ms", Value: millisText(p.sessionTimeout())},
			evidence.Setting{Name: "max.poll.interval.ms", Value: millisText(p.scaled(pollInterval))})
	}
	if p.commit == commitPolled || p.commit == commitMarked {
		profile.AckConfirms, profile.AckCounting = false, "automatic"
		lacks[systems.NeedWindow] = "the client commits at intervals, whatever the application still has in hand"
		lacks[systems.NeedAcks] = "the client commits at intervals: no acknowledgement of a message goes over the wire"
		settings = append(settings, evidence.Setting{Name: "auto.commit.interval.ms", Value: millisText(max(p.scaled(autoCommit), leastAutoCommit))})
	}
	if !p.share && p.commit != commitPrefix {
		lacks[systems.NeedNack] = "nothing is given back: the member's position has moved on"
	}
	if p.commit == commitPolled || p.commit == commitEach {
		lacks[systems.NeedRedelivery] = "an unsettled message is committed with those behind it"
	}
	profile.Settings = settings
	d := systems.Description{
		System: "kafka", Profile: profile, Claims: p.claims, Lacks: lacks,
		Oldest:   map[string]string{"kafka": oldest},
		Versions: map[string]string{"franz-go": strings.TrimPrefix(systems.LibraryVersion(kgo.NewClient), "v")},
	}
	if release, err := p.release(); err == nil && p.at.Address == "" { // otherwise reported by the server
		d.Versions["kafka"] = release
	}
	if p.image != "" {
		d.Profile.Name += "@" + p.image
	}
	return d
}

func millisText(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
