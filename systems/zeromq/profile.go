// Package zeromq is the adapter for the reference broker: Custody's own
// protocol over ZeroMQ on SQLite, run in a child process. The binary's main (or
// TestMain) must pass Role to process.RunRole.
package zeromq

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/ncruces/go-sqlite3"

	"github.com/custodymq/custody/broker"
	"github.com/custodymq/custody/broker/core"
	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/wire"
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/process"
	"github.com/custodymq/custody/systems"
)

// Name of the system.
const Name = "zeromq"

// Profile is one configuration of the reference broker.
type Profile struct {
	name, summary string
	mode          systems.Mode
	history       bool         // settled rows are kept
	flush         store.Flush  // of a database that is no memory
	server        databaseKind // that keeps the rows; nil: a file of SQLite's
	claims        []evidence.Claim
	scale         float64
}

// Profiles of the reference broker; the first is the default.
func Profiles(scale float64) []systems.System {
	return []systems.System{
		Profile{name: "at-least-once", summary: "SQLite, WAL, synchronous FULL; Pending persisted before Accepted; explicit ACK; settled rows are deleted",
			mode: systems.AtLeastOnce, claims: atLeastOnce, scale: scale},
		Profile{name: "at-least-once-history", summary: "as at-least-once, but settled rows are kept, marked processed",
			mode: systems.AtLeastOnce, history: true, claims: atLeastOnce, scale: scale},
		Profile{name: "periodic", summary: "as at-least-once, but synced once a second (synchronous NORMAL): a killed broker loses nothing, a power cut what was accepted last",
			mode: systems.AtLeastOnce, claims: periodic, scale: scale, flush: store.FlushPeriodic},
		Profile{name: "memory", summary: "as at-least-once, with the rows in the broker's memory: they end with its process",
			mode: systems.AtLeastOnce, claims: inMemory, scale: scale, server: ownMemory{}},
		Profile{name: "postgres", summary: "as at-least-once, with the rows in PostgreSQL", mode: systems.AtLeastOnce, claims: onServer, scale: scale, server: postgres},
		Profile{name: "postgres-periodic", summary: "as postgres, but with synchronous_commit off: a killed broker loses nothing, a PostgreSQL that is killed what was accepted last",
			mode: systems.AtLeastOnce, claims: asynchronous, scale: scale, server: postgres, flush: store.FlushPeriodic},
		Profile{name: "postgres-sync", summary: "as postgres, with a synchronous standby: a COMMIT waits until the standby has it", mode: systems.AtLeastOnce,
			claims: replicated(onServer), scale: scale, server: pair{postgres, true}},
		Profile{name: "postgres-async", summary: "as postgres, with an asynchronous standby: promoted, it has what it was sent in time", mode: systems.AtLeastOnce,
			claims: onServer, scale: scale, server: pair{postgres, false}},
		Profile{name: "mariadb", summary: "as at-least-once, with the rows in MariaDB", mode: systems.AtLeastOnce, claims: onServer, scale: scale, server: mariadb},
		Profile{name: "mariadb-semisync", summary: "as mariadb, with a semi-synchronous standby: a COMMIT waits, for however long, until the standby has it in its log", mode: systems.AtLeastOnce,
			claims: replicated(onServer), scale: scale, server: pair{mariadb, true}},
		Profile{name: "mariadb-async", summary: "as mariadb, with an asynchronous standby: promoted, it has what it was sent in time", mode: systems.AtLeastOnce,
			claims: onServer, scale: scale, server: pair{mariadb, false}},
		Profile{name: "redis", summary: "as at-least-once, with the rows in Redis, appendfsync always", mode: systems.AtLeastOnce, claims: onServer, scale: scale, server: redis},
		Profile{name: "redis-wait", summary: "as redis, with one replica: a write is stored when WAIT says that the replica has it", mode: systems.AtLeastOnce,
			claims: replicated(onServer), scale: scale, server: pair{redis, true}},
		Profile{name: "redis-async", summary: "as redis, with one replica that nobody waits for: promoted, it has what it was sent in time", mode: systems.AtLeastOnce,
			claims: onServer, scale: scale, server: pair{redis, false}},
		Profile{name: "at-most-once", summary: "routed once to who is visible now; never stored, never sent again",
			mode: systems.AtMostOnce, claims: atMostOnce, scale: scale},
	}
}

var (
	everywhere = []evidence.Class{evidence.ClientCrash, evidence.BrokerRestart, evidence.BrokerCrash, evidence.BrokerPause, evidence.PowerLoss, evidence.Link, evidence.Store, evidence.Clock}
	// A clock that jumps can expire messages early, which is a legitimate loss.
	butClock = everywhere[:len(everywhere)-1]
	butStore = everywhere[:len(everywhere)-2]
	// A crash or store failure between ACK and delete causes a redelivery.
	butDelete = []evidence.Class{evidence.ClientCrash, evidence.BrokerRestart, evidence.BrokerPause, evidence.Link, evidence.Clock}
)

// The claims of a store that keeps less than SQLite synced at every commit.
var (
	periodic = notUnder(without(atLeastOnce, evidence.PersistedBeforeAccepted), surviving, evidence.PowerLoss)
	// That the machine of a database server may lose its power is not shown here.
	onServer     = notUnder(atLeastOnce, nil, evidence.PowerLoss)
	asynchronous = notUnder(without(onServer, evidence.PersistedBeforeAccepted), surviving, evidence.Store)
	// Nothing of it survives the process.
	inMemory = notUnder(notUnder(without(without(atLeastOnce, evidence.PersistedBeforeAccepted), evidence.RestoreComplete), surviving, evidence.BrokerRestart, evidence.BrokerCrash, evidence.PowerLoss),
		nil, evidence.Rollback)
)

// surviving are the guarantees that rest on rows which survive.
var surviving = []string{
	evidence.NoAcceptedLoss, evidence.StableRedeliveryID, evidence.Order, evidence.RedeliveryOrder, evidence.ExpiryHonoured, evidence.AckIsFinal,
	evidence.BoundedRetry, evidence.AttemptsUsed, evidence.UnknownResolved, evidence.LookupsTrue, evidence.RecoveryBounded, evidence.Progress,
	evidence.RowsMatchClients,
}

// without gives the claims but for one guarantee.
func without(claims []evidence.Claim, guarantee string) []evidence.Claim {
	return slices.DeleteFunc(slices.Clone(claims), func(c evidence.Claim) bool { return c.Guarantee == guarantee })
}

// notUnder gives the claims with those of the guarantees (all, if none is named)
// no longer made under these classes.
func notUnder(claims []evidence.Claim, guarantees []string, classes ...evidence.Class) []evidence.Claim {
	less := slices.Clone(claims)
	for i, c := range less {
		if guarantees == nil || slices.Contains(guarantees, c.Guarantee) {
			less[i].Under = slices.DeleteFunc(slices.Clone(c.Under), func(class evidence.Class) bool { return slices.Contains(classes, class) })
		}
	}
	return less
}

const source = "broker/PROTOCOL.md"

func claim(guarantee string, under []evidence.Class) evidence.Claim {
	return evidence.Claim{Guarantee: guarantee, Under: under, Owner: evidence.OwnerSystem, Source: source}
}

// section is a claim that names its section of PROTOCOL.md.
func section(guarantee string, under []evidence.Class, where string) evidence.Claim {
	c := claim(guarantee, under)
	c.Source += ", " + where
	return c
}

var atLeastOnce = restorable([]evidence.Claim{
	claim(evidence.NoAcceptedLoss, butClock),
	claim(evidence.NoPhantom, everywhere),
	claim(evidence.DeclinedMeansAbsent, everywhere),
	claim(evidence.StableRedeliveryID, everywhere),
	// A delivery whose attempt count cannot be stored waits, and later ones
	// overtake it.
	claim(evidence.Order, butStore),
	claim(evidence.ExpiryHonoured, everywhere),
	claim(evidence.AckIsFinal, butDelete),
	claim(evidence.PersistedBeforeAccepted, everywhere),
	claim(evidence.PartitionIsolation, everywhere),
	claim(evidence.BoundedRetry, everywhere),
	// A "never stored" answer relies on the wall clock: after a jump ahead, IDs
	// are forgotten early.
	claim(evidence.UnknownResolved, butClock),
	claim(evidence.RecoveryBounded, everywhere),
	claim(evidence.Survives, everywhere),
	claim(evidence.RowsMatchClients, everywhere),
	section(evidence.Routing, everywhere, "Subscribe and deliver: topic filters"),
	section(evidence.MessageIdentity, everywhere, "Publish: message ID; Subscribe and deliver: same message ID"),
	section(evidence.ExclusiveDelivery, everywhere, "Publish: delivered to one of all that match; Subscribe and deliver: redelivered"),
	section(evidence.SettledByHolder, everywhere, "Subscribe and deliver: Refused"),
	section(evidence.AttemptsUsed, everywhere, "Subscribe and deliver: after the last attempt"),
	section(evidence.Availability, everywhere, "Publish: the table of answers"),
	section(evidence.Answered, everywhere, "Publish: the table of answers"),
	section(evidence.AnswerDelivered, everywhere, "Kinds: answered by"),
	section(evidence.CreditKept, everywhere, "Subscribe and deliver: Credit"),
	section(evidence.FairService, everywhere, "Subscribe and deliver: served in turn"),
	section(evidence.SessionStability, everywhere, "Session"),
	section(evidence.Progress, everywhere, "Subscribe and deliver: redelivered"),
	// As for Order.
	section(evidence.RedeliveryOrder, butStore, "Subscribe and deliver: pending messages are served in the order in which they were stored"),
	section(evidence.StrangersRefused, everywhere, "Connection; Head; Kinds; Session; the tables of answers"),
	section(evidence.RedeliveryPaced, everywhere, "Subscribe and deliver: redelivered, after a Nack with backoff"),
	section(evidence.LookupsTrue, everywhere, "Lookup"),
	section(evidence.RestoreComplete, everywhere, "Admin: backup"),
})

// restorable claims what holds for all that a backup has, and for what no store has
// a part in, also when the store is put back to a backup. That nothing accepted is
// lost then, and nothing settled comes again, nobody can claim.
func restorable(claims []evidence.Claim) (list []evidence.Claim) {
	for _, c := range claims {
		if slices.Contains(rolledBack, c.Guarantee) {
			c.Under = append(slices.Clone(c.Under), evidence.Rollback)
		}
		list = append(list, c)
	}
	return list
}

var rolledBack = []string{
	evidence.NoPhantom, evidence.DeclinedMeansAbsent, evidence.ExpiryHonoured, evidence.PartitionIsolation, evidence.Survives, evidence.Routing,
	evidence.Availability, evidence.Answered, evidence.AnswerDelivered, evidence.StrangersRefused, evidence.RestoreComplete,
}

// replicated claims under the loss of the store's server what is claimed under
// other failures of the store.
func replicated(claims []evidence.Claim) (list []evidence.Claim) {
	for _, c := range claims {
		if slices.Contains(c.Under, evidence.Store) {
			c.Under = append(slices.Clone(c.Under), evidence.NodeLoss)
		}
		list = append(list, c)
	}
	return list
}

var atMostOnce = []evidence.Claim{
	claim(evidence.NoDuplicateDelivery, everywhere),
	claim(evidence.NoPhantom, everywhere),
	claim(evidence.DeclinedMeansAbsent, everywhere),
	claim(evidence.Order, everywhere),
	claim(evidence.Survives, everywhere),
	// Neither stored nor resent, so the claim covers fault-free runs only.
	section(evidence.NoAcceptedLoss, nil, "Publish: one local send to each"),
	section(evidence.Routing, everywhere, "Subscribe and deliver: topic filters"),
	section(evidence.MessageIdentity, everywhere, "Publish: message ID"),
	section(evidence.Availability, everywhere, "Publish: the table of answers"),
	section(evidence.Answered, everywhere, "Publish: the table of answers"),
	section(evidence.AnswerDelivered, everywhere, "Kinds: answered by"),
	section(evidence.SessionStability, everywhere, "Session"),
	section(evidence.StrangersRefused, everywhere, "Connection; Head; Kinds; Session; the tables of answers"),
}

// The broker's periods before scaling, short for tests.
const (
	visibility    = 500 * time.Millisecond
	heartbeat     = 500 * time.Millisecond
	backoffBase   = 50 * time.Millisecond
	backoffMax    = 200 * time.Millisecond
	expiryEvery   = 200 * time.Millisecond
	maxAttempts   = 5
	settledWindow = 10 * time.Minute
	connections   = 64
)

func (p Profile) period(d time.Duration) time.Duration { return time.Duration(float64(d) * p.scale) }

// Broker is the profile's broker configuration without name, network, store and
// log.
func (p Profile) Broker() broker.Config {
	return broker.Config{
		MaxAttempts: maxAttempts, VisibilityTimeout: p.period(visibility),
		Backoff: core.Backoff{Base: p.period(backoffBase), Max: p.period(backoffMax)}, ExpiryInterval: p.period(expiryEvery), SettledWindow: settledWindow,
		StoreRetry: p.period(100 * time.Millisecond), KeepHistory: p.history, Heartbeat: p.period(heartbeat),
		// Low, so that what is not given back is missed soon.
		Memory: 64 << 20, Connections: connections, WriteTimeout: p.period(2 * time.Second),
		Limits: core.Limits{PublishWindow: publishWindow, Topics: maxTopics},
	}
}

// Describe gives the profile with its limits scaled.
func (p Profile) Describe() systems.Description {
	d := systems.Description{
		System: Name, Claims: p.claims, Versions: versions(),
		Profile: evidence.Profile{
			Name: p.name, Summary: p.summary, KeepsRows: p.history, MarksAgain: p.mode == systems.AtLeastOnce, AckConfirms: p.mode == systems.AtLeastOnce,
			Redelivers: evidence.RedeliverTimeout, AckCounting: "per-message",
			Settings: []evidence.Setting{{Name: "store", Value: "sqlite"}, {Name: "synchronous", Value: "FULL"},
				{Name: "visibilityTimeout", Value: p.period(visibility).String()}, {Name: "heartbeat", Value: p.period(heartbeat).String()},
				{Name: "maxAttempts", Value: fmt.Sprint(maxAttempts)}, {Name: "keepHistory", Value: fmt.Sprint(p.history)}},
			Limits: evidence.Limits{
				MaxAttempts: maxAttempts, RedeliveryPeriod: p.period(visibility), RecoveryBound: p.period(8 * time.Second),
				InFlightBound: p.period(time.Second), ExpiryTolerance: p.period(500 * time.Millisecond), DeleteBound: p.period(3 * time.Second),
				AnswerBound: p.period(900 * time.Millisecond), ProgressBound: p.period(8 * time.Second),
				NackDelay: p.period(backoffBase), Remembers: settledWindow,
				DrainDeadline: p.period(12 * time.Second), OrderScope: "connection",
			},
		},
	}
	d.Lacks = map[systems.Need]string{
		systems.NeedRewind: "what is settled is served to nobody again, even where the broker keeps it as history",
		systems.NeedFanOut: "in at-least-once all matching subscriptions compete for each message, whatever their group",
	}
	d.StoreFaults = storeVerbs(p.server == nil)
	d.StoreFaults["fill"] = nil
	if err := process.CanMount(); err != nil {
		d.Lacks[systems.NeedVolume] = err.Error()
	}
	d.Settings = settings
	if p.server == nil { // the simulation says nothing of another store
		d.VirtualProbes = p.virtualProbes()
	} else {
		maps.Copy(d.Lacks, p.server.lacks())
	}
	if p.history {
		d.Lacks[systems.NeedStoreBackup] = "history is never deleted, so that its rows cannot be replaced by those of a backup"
	}
	flush := p.FlushPolicy()
	switch {
	case p.server != nil:
		delete(d.Versions, "go-sqlite3")
		for _, verb := range p.server.strikes() {
			d.StoreFaults[verb] = nil
		}
		if program, version := p.server.version(); program != "" {
			d.Versions[program] = version
		}
		d.Profile.Settings[0].Value, d.Profile.Settings[1] = p.server.title(), evidence.Setting{Name: "flush", Value: flush.String()}
	case flush == store.FlushPeriodic:
		d.Profile.Settings[1].Value = "NORMAL"
		delete(d.StoreFaults, "fsync-error") // a sync is no part of a write: no message brings one about
	}
	if flush == store.FlushNever {
		d.Forgets = []evidence.Class{evidence.BrokerRestart, evidence.BrokerCrash, evidence.PowerLoss}
		const ends = "rows in memory end with the broker's process"
		for _, need := range []systems.Need{systems.NeedPlanting, systems.NeedIdentity, systems.NeedSurvival, systems.NeedMoves, systems.NeedStoreBackup, systems.NeedVolume} {
			d.Lacks[need] = ends
		}
		delete(d.StoreFaults, "fill")
	}
	if p.mode == systems.AtMostOnce {
		d.Profile.Redelivers, d.Profile.AckCounting = evidence.RedeliverNever, "automatic"
		d.Profile.Limits.MaxAttempts = 1
		d.Profile.Settings = []evidence.Setting{{Name: "mode", Value: "at-most-once"}, {Name: "heartbeat", Value: p.period(heartbeat).String()}}
		const never = "at-most-once never stores and never sends again"
		d.Lacks = map[systems.Need]string{systems.NeedRedelivery: never, systems.NeedNack: never, systems.NeedAcks: never, systems.NeedStoreFaults: never, systems.NeedDeadLetters: never,
			systems.NeedTTL: never, systems.NeedLookup: never, systems.NeedStoreBackup: never, systems.NeedPlanting: never, systems.NeedIdentity: never, systems.NeedMessageID: never, systems.NeedRewind: never,
			systems.NeedWindow: "at-most-once has nothing unacknowledged: the credit of a session comes back by itself"}
	}
	return d
}

func versions() map[string]string {
	return map[string]string{
		"protocol":   fmt.Sprint(wire.Version),
		"zmq4":       systems.LibraryVersion(zmq4.NewDealer),
		"go-sqlite3": systems.LibraryVersion(sqlite3.Open),
	}
}

// Credentials let clients in another process connect.
func (p Profile) Credentials(i systems.Instance) string {
	if in, ok := i.(*instance); ok {
		return in.clients.token
	}
	return ""
}

// tokenForm matches a token from crypto/rand.Text.
var tokenForm = regexp.MustCompile(`^[A-Z2-7]{26}$`)

// Connect returns clients of an instance that another process started.
func (p Profile) Connect(credentials string) (systems.Clients, error) {
	if !tokenForm.MatchString(credentials) {
		return nil, errors.New("zeromq: malformed credentials: want a token of 26 base32 characters, as returned by Credentials")
	}
	return clients{profile: p, token: credentials}, nil
}
