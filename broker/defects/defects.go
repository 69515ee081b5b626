// Package defects lists the reference broker's seeded defects. Each is one small,
// named change made through a seam (the store, the state machine, a setting) that
// first breaks one guarantee. A harness that fails to detect any of them cannot
// be trusted when it reports that all is well.
package defects

import (
	"fmt"
	"strings"

	"github.com/custodymq/custody/broker"
	"github.com/custodymq/custody/broker/core"
	"github.com/custodymq/custody/broker/store"
)

// Defect is one seeded defect. Exactly one of its three seams is set.
type Defect struct {
	Name    string
	Text    string   // what the broken broker does
	Breaks  string   // the guarantee that must be seen violated first
	Follows []string // guarantees that may be violated along with it
	SeenIn  string   // the kind of scenario that shows it
	// Shown names the scenario to try first, where those that exercise the
	// guarantee do not show it.
	Shown string

	Store    func(inner store.Store, o Options) store.Store
	Machine  func(inner core.Machine) core.Machine
	Settings func(*broker.Config)
	// NeedsNeighbour says that Options.Neighbour must be set.
	NeedsNeighbour bool
	// Connected says that only real connections reveal the defect, not a
	// simulation.
	Connected bool
}

// Options holds what a defect needs besides the broker.
type Options struct {
	// Neighbour is the store of another partition of the same database.
	Neighbour store.Store
	// Go runs a function concurrently with its caller; nil starts a goroutine.
	Go func(func())
}

// Unbuilt is a defect of a feature that the broker lacks. It never counts as
// detected.
type Unbuilt struct {
	Name string
	Text string // what the broken broker would do
	Why  string // the feature it would need
}

// NotBuilt lists the defects that cannot be built.
func NotBuilt() []Unbuilt {
	return []Unbuilt{
		{"paused-node-settles-after-takeover", "a node that was paused settles messages that another has taken over", "the broker has one node"},
	}
}

// All returns the defects in the order of a message's life.
func All() []Defect { return append([]Defect(nil), all...) }

// Find returns the defect of that name.
func Find(name string) (Defect, error) {
	for _, d := range all {
		if d.Name == name {
			return d, nil
		}
	}
	names := make([]string, len(all))
	for i, d := range all {
		names[i] = d.Name
	}
	return Defect{}, fmt.Errorf("defects: no defect is called %q; there are %s", name, strings.Join(names, ", "))
}

// Apply seeds the defect of that name into a broker's configuration. Several may
// be applied to one Config; the last is the outermost.
func Apply(name string, cfg *broker.Config, o Options) error {
	d, err := Find(name)
	if err != nil {
		return err
	}
	if d.NeedsNeighbour && o.Neighbour == nil {
		return fmt.Errorf("defects: %s needs the store of a neighbouring partition", name)
	}
	switch {
	case d.Store != nil:
		inner := cfg.Seams.Store
		cfg.Seams.Store = func(s store.Store) store.Store {
			if inner != nil {
				s = inner(s)
			}
			return d.Store(s, o)
		}
	case d.Machine != nil:
		inner := cfg.Seams.Machine
		cfg.Seams.Machine = func(m core.Machine) core.Machine {
			if inner != nil {
				m = inner(m)
			}
			return d.Machine(m)
		}
	case d.Settings != nil:
		d.Settings(cfg)
	}
	return nil
}

// The guarantees, by the names used by the harness.
const (
	noAcceptedLoss          = "no-accepted-loss"
	noDuplicateDelivery     = "no-duplicate-delivery"
	singleEffect            = "single-effect"
	noPhantom               = "no-phantom"
	declinedMeansAbsent     = "declined-means-absent"
	stableRedeliveryID      = "stable-redelivery-id"
	order                   = "order"
	expiryHonoured          = "expiry-honoured"
	ackIsFinal              = "ack-is-final"
	persistedBeforeAccepted = "persisted-before-accepted"
	partitionIsolation      = "partition-isolation"
	boundedRetry            = "bounded-retry"
	unknownResolved         = "unknown-resolved"
	recoveryBounded         = "recovery-bounded"
	rowsMatchClients        = "rows-match-clients"
	routing                 = "routing"
	messageIdentity         = "message-identity"
	settledByHolder         = "settled-by-holder"
	attemptsUsed            = "attempts-used"
	availability            = "availability"
	answered                = "answered"
	creditKept              = "credit-kept"
	sessionStability        = "session-stability"
	fairService             = "fair-service"
	redeliveryOrder         = "redelivery-order"
	exclusiveDelivery       = "exclusive-delivery"
	answerDelivered         = "answer-delivered"
	progress                = "progress"
	strangersRefused        = "strangers-refused"
	redeliveryPaced         = "redelivery-paced"
	lookupsTrue             = "lookups-true"
	restoreComplete         = "restore-complete"
	survives                = "survives"
)

var all = []Defect{
	{
		Name: "accept-before-persist", Text: "a publish is answered Accepted while its commit is still under way",
		Breaks: persistedBeforeAccepted, Follows: []string{noAcceptedLoss, rowsMatchClients},
		SeenIn: "the store's sync or COMMIT reply is held", Store: writeBehind,
	},
	{
		Name: "persist-fails-but-accepted", Text: "a publish that the store refused is answered Accepted and stays in memory only",
		Breaks: noAcceptedLoss, Follows: []string{rowsMatchClients, persistedBeforeAccepted, recoveryBounded, boundedRetry},
		SeenIn: "the store fails, then the broker restarts before delivery", Store: ignoreFailures,
	},
	{
		Name: "duplicate-id-second-row", Text: "a message ID that is published again is stored a second time, under another ID than the one answered",
		Breaks: rowsMatchClients, Follows: []string{singleEffect, noDuplicateDelivery, stableRedeliveryID, declinedMeansAbsent, messageIdentity},
		SeenIn: "the publisher repeats a publish with the message ID that it chose", Machine: secondRow,
	},
	{
		Name: "declined-but-stored", Text: "a publish that is declined leaves a pending row, served after a restart",
		Breaks: declinedMeansAbsent, Follows: []string{rowsMatchClients, singleEffect, noPhantom},
		SeenIn: "no online consumer; mode mismatch", Machine: storeDeclined,
	},
	{
		Name: "declined-but-delivered", Text: "a publish that is declined is delivered to a subscription of the other mode, at once or when one comes",
		Breaks: declinedMeansAbsent, Follows: []string{singleEffect, rowsMatchClients},
		SeenIn: "mode mismatch; late consumer", Machine: deliverDeclined,
	},
	{
		Name: "payload-truncated", Text: "a payload over 1 KiB is delivered without its end",
		Breaks: noPhantom,
		SeenIn: "baseline with sizes over 1 KiB", Machine: truncate,
	},
	{
		Name: "ttl-wrong-unit", Text: "a time to live is read as a thousandth of what it says",
		Breaks: expiryHonoured, Follows: []string{noAcceptedLoss, rowsMatchClients, recoveryBounded, progress, lookupsTrue},
		SeenIn: "expiry: a message is consumed shortly before its deadline", Machine: shortenTTL,
	},
	{
		Name: "expired-delivered", Text: "the time to live of a message is ignored: it is delivered after its deadline",
		Breaks: expiryHonoured,
		SeenIn: "expiry: a consumer comes after the deadline", Machine: ignoreTTL,
	},
	{
		Name: "delivery-to-all-competitors", Text: "a message is handed to every competitor at once, each time as a first delivery",
		// At-least-once allows duplicates, and the consumption log absorbs them.
		// What it does not allow is a second delivery that is not marked as such.
		Breaks: stableRedeliveryID, Follows: []string{noDuplicateDelivery, singleEffect, ackIsFinal, order, exclusiveDelivery, settledByHolder, creditKept},
		SeenIn: "competing consumers", Machine: deliverToAll,
	},
	{
		Name: "ack-before-processed-deletes", Text: "a message is settled when it is delivered, before its consumer has processed it",
		Breaks: noAcceptedLoss, Follows: []string{rowsMatchClients, recoveryBounded, boundedRetry, creditKept},
		SeenIn: "the consumer crashes or loses its connection before the ACK; processing failure", Machine: settleOnDelivery,
	},
	{
		Name: "redelivery-with-new-id", Text: "a redelivery carries another message ID than the first delivery",
		Breaks: stableRedeliveryID, Follows: []string{singleEffect, noPhantom, rowsMatchClients, messageIdentity},
		SeenIn: "any redelivery", Machine: renameRedelivery,
	},
	{
		Name: "redelivery-without-mark", Text: "a redelivery says that it is a first delivery",
		Breaks: stableRedeliveryID, Follows: []string{settledByHolder}, // which relies on the attempt that this defect hides
		SeenIn: "any redelivery", Machine: unmarkRedelivery,
	},
	{
		Name: "no-redelivery-after-disconnect", Text: "what a lost consumer held is kept for it, and nobody else gets it",
		Breaks: recoveryBounded, Follows: []string{noAcceptedLoss, progress},
		SeenIn: "disconnect before the ACK; consumer crash", Machine: ignoreDisconnect,
	},
	{
		Name: "attempts-unbounded", Text: "a message that always fails is attempted for ever",
		Breaks: boundedRetry, Follows: []string{recoveryBounded},
		SeenIn: "poison message", Settings: func(c *broker.Config) { c.MaxAttempts = 1 << 30 },
	},
	{
		Name: "dead-letter-lost", Text: "a message whose attempts are used up is deleted instead of kept as a dead letter",
		Breaks: boundedRetry, Follows: []string{noAcceptedLoss, rowsMatchClients},
		SeenIn: "poison message", Store: loseDeadLetters,
	},
	{
		Name: "ack-never-deletes", Text: "the row of an acknowledged message is never deleted or marked",
		Breaks: ackIsFinal, Follows: []string{rowsMatchClients, singleEffect, noDuplicateDelivery},
		SeenIn: "baseline; restart after an ACK", Store: keepSettled,
	},
	{
		Name: "lookup-absent-for-stored", Text: "a lookup answers not seen for a message that is stored",
		Breaks: unknownResolved, Follows: []string{noAcceptedLoss, singleEffect},
		SeenIn: "the answer to a publish is lost, and the publisher looks it up", Machine: denyStored,
	},
	{
		Name: "lookup-settled-for-stored", Text: "a lookup answers settled for a message that waits",
		Breaks: lookupsTrue,
		SeenIn: "a message that waits, or of several that have one business ID, is looked up", Machine: settleStored,
	},
	{
		Name: "nack-served-at-once", Text: "a message that a consumer gives back comes again at once, without back-off",
		Breaks: redeliveryPaced,
		SeenIn: "processing failure; poison message", Machine: ignoreDelay,
	},
	{
		Name: "malformed-endured", Text: "a session that says nothing but what is malformed is never closed",
		Breaks: strangersRefused, Connected: true,
		SeenIn: "strangers: sixteen malformed messages on one connection", Settings: func(c *broker.Config) { c.Limits.Errors = 1 << 30 },
	},
	{
		Name: "unexpired-purged", Text: "a purge deletes pending rows whose deadline is an hour or more away",
		Breaks: expiryHonoured, Follows: []string{noAcceptedLoss, rowsMatchClients, recoveryBounded},
		SeenIn: "expiry: a pending message with a long time to live, over a purge", Store: purgeAll,
	},
	{
		Name: "expiry-purges-other-partition", Text: "a purge deletes the expired rows of a neighbouring partition too",
		Breaks: partitionIsolation, Follows: []string{rowsMatchClients},
		SeenIn: "two partitions of one database", Store: purgeNeighbour, NeedsNeighbour: true,
	},
	{
		Name: "pending-forgotten-on-restart", Text: "pending rows are not read at the start",
		// The rows still exist, so nothing is lost yet, but no one is served.
		Breaks: recoveryBounded, Follows: []string{noAcceptedLoss, rowsMatchClients, unknownResolved, progress},
		SeenIn: "broker restart; broker killed", Store: forgetPending,
	},
	{
		Name: "store-swap-loses-pending", Text: "pending messages are left behind when the store is exchanged for another",
		// What is in memory is delivered all the same, and its row cannot be marked.
		Breaks: noAcceptedLoss, Follows: []string{rowsMatchClients, recoveryBounded, boundedRetry, attemptsUsed, ackIsFinal, unknownResolved, lookupsTrue, progress},
		SeenIn: "a kill after the store was swapped", Shown: "swap-store", Store: swapForgets, Connected: true,
	},
	{
		Name: "backup-lacks-rows", Text: "pending messages are left out of a backup",
		Breaks: restoreComplete, Follows: []string{noAcceptedLoss, rowsMatchClients, recoveryBounded, ackIsFinal, stableRedeliveryID},
		SeenIn: "a start after the store was restored from a backup", Shown: "store-restored", Store: swapForgets, Connected: true,
	},
	{
		Name: "migration-forgets-rows", Text: "rows are left behind when they are migrated to another storage identity",
		Breaks: noAcceptedLoss, Follows: []string{rowsMatchClients, recoveryBounded, unknownResolved, lookupsTrue, progress},
		SeenIn: "a start after a migration", Shown: "identity-migrated", Store: migrationForgets, Connected: true,
	},
	{
		Name: "replay-out-of-order", Text: "pending rows are served after a restart with the latest first",
		Breaks: order, Follows: []string{redeliveryOrder},
		SeenIn: "restart with several pending messages and one consumer", Store: loadBackwards,
	},
	{
		Name: "headers-lost-on-restart", Text: "a pending message is served without its headers after a restart",
		Breaks: noPhantom,
		SeenIn: "a backlog with headers over a restart", Store: loadWithoutHeaders,
	},
	{
		Name: "ttl-begins-again-on-restart", Text: "the time to live of a pending message begins again with a restart",
		Breaks: expiryHonoured,
		SeenIn: "a restart in the middle of a time to live", Store: restartTTL,
	},
	{
		Name: "one-of-a-batch-forgotten", Text: "of a commit that holds several messages the last is not written, though it is answered Accepted",
		Breaks: noAcceptedLoss, Follows: []string{rowsMatchClients, recoveryBounded, persistedBeforeAccepted},
		SeenIn: "a load under which commits hold more than one message, and a restart", Store: forgetLastOfBatch,
	},
	{
		Name: "misrouted", Text: "a message is delivered to a subscription of another topic too",
		Breaks: routing, Follows: []string{singleEffect, ackIsFinal, noDuplicateDelivery, exclusiveDelivery, settledByHolder, creditKept, order, stableRedeliveryID, rowsMatchClients},
		SeenIn: "several topics", Machine: misroute,
	},
	{
		Name: "message-id-shared", Text: "some publishes are answered with the message ID of the one before",
		Breaks: messageIdentity, Follows: []string{rowsMatchClients, stableRedeliveryID, unknownResolved},
		SeenIn: "any with several messages", Machine: shareIDs,
	},
	{
		Name: "declined-though-ready", Text: "some publishes are declined for want of a consumer though one is ready",
		Breaks: availability,
		SeenIn: "a load with a ready consumer", Machine: declineSome,
	},
	{
		Name: "publish-unanswered", Text: "some publishes are never answered",
		Breaks: answered, Follows: []string{unknownResolved, answerDelivered},
		SeenIn: "any with several messages", Machine: forgetAnswers,
	},
	{
		Name: "credit-ignored", Text: "a consumer is sent more than the window that it asked for",
		Breaks: creditKept,
		SeenIn: "a consumer that holds what it is given", Machine: ignoreCredit,
	},
	{
		Name: "one-competitor-gets-all", Text: "the first subscription is given everything, the others nothing",
		Breaks: fairService, Follows: []string{recoveryBounded, availability, progress},
		SeenIn: "competing consumers under load", Machine: starveLatecomers,
	},
	{
		Name: "session-dropped", Text: "a session is ended after thirty deliveries",
		Breaks: sessionStability, Follows: []string{answered, availability, recoveryBounded, redeliveryOrder},
		SeenIn: "a load of more than a few messages", Machine: dropSessions,
	},
	{
		Name: "redelivery-backwards", Text: "what a lost consumer held is delivered again with the latest first",
		Breaks: redeliveryOrder, Follows: []string{order, boundedRetry, recoveryBounded, exclusiveDelivery, progress},
		SeenIn: "a consumer dies with several messages in its hands", Machine: redeliverBackwards,
	},
	{
		Name: "anybody-settles", Text: "an acknowledgement counts whoever sends it, also when the message has been given to another",
		Breaks: settledByHolder, Follows: []string{ackIsFinal, exclusiveDelivery},
		SeenIn: "a consumer that stands still until another has been given its message", Machine: anybodySettles,
	},
	{
		Name: "dead-lettered-early", Text: "a message is dead-lettered after two attempts, and not after as many as are promised",
		Breaks: attemptsUsed, Follows: []string{boundedRetry},
		SeenIn: "a message that fails a few times", Settings: func(c *broker.Config) { c.MaxAttempts = 2 },
	},
	{
		Name: "backlog-unreadable", Text: "a broker that finds messages waiting in its store does not start",
		Breaks: survives, Follows: []string{noAcceptedLoss, recoveryBounded, progress},
		SeenIn: "the broker is started again while messages wait", Store: unreadableBacklog, Connected: true,
	},
	{
		Name: "uncertain-commit-called-absent", Text: "a COMMIT whose answer was lost is taken for one that was not done, and the publish is rejected",
		Breaks: declinedMeansAbsent, Follows: []string{rowsMatchClients, singleEffect, ackIsFinal, unknownResolved, lookupsTrue, messageIdentity, noAcceptedLoss, recoveryBounded, progress},
		SeenIn: "the reply of a COMMIT is lost", Shown: "storage-reply-lost", Store: callAbsent,
	},
	{
		Name: "settled-ids-forgotten", Text: "nothing is kept of a settled message, so that after a restart the broker knows neither its message ID nor its business ID",
		Breaks: lookupsTrue, Follows: []string{unknownResolved, singleEffect, noDuplicateDelivery, stableRedeliveryID, ackIsFinal, rowsMatchClients, noAcceptedLoss, boundedRetry},
		SeenIn: "a look-up or a retry after a restart", Store: forgetMarkers,
	},
	{
		Name: "expiry-read-as-settled", Text: "it is not kept what ended a message: after a restart one that has expired or was discarded is called settled",
		Breaks: lookupsTrue,
		SeenIn: "a look-up of an expired message after a restart", Store: forgetEndings,
	},
	{
		Name: "attempts-not-stored", Text: "the attempts of a message are not stored: after a restart it is delivered as if for the first time",
		Breaks: stableRedeliveryID, Follows: []string{boundedRetry, attemptsUsed, settledByHolder, rowsMatchClients},
		SeenIn: "a restart while a consumer holds messages", Shown: "kill-in-flight", Store: forgetAttempts,
	},
	{
		Name: "history-replayed-as-pending", Text: "settled rows are kept, and served again after a restart",
		Breaks: ackIsFinal, Follows: []string{rowsMatchClients, noDuplicateDelivery, singleEffect, stableRedeliveryID, lookupsTrue, recoveryBounded, expiryHonoured, order, redeliveryOrder, boundedRetry},
		SeenIn: "a restart after acknowledgements", Shown: "lookups", Store: replayHistory,
	},
	{
		Name: "upgrade-forgets-rows", Text: "rows are carried over to a new layout at the start, and some pending ones are left behind",
		Breaks: noAcceptedLoss, Follows: []string{rowsMatchClients, recoveryBounded, unknownResolved, lookupsTrue, progress, boundedRetry, expiryHonoured},
		SeenIn: "a restart with messages that wait", Store: leaveBehind,
	},
	{
		Name: "old-payload-misread", Text: "a row whose payload is of an older version is served as one of this version",
		Breaks: noPhantom, Follows: []string{rowsMatchClients},
		SeenIn: "a row of an older version among newer ones", Store: misreadVersion, Connected: true, // rows of older versions are not simulated
	},
	{
		Name: "falls-back-to-another-partition", Text: "a broker that finds no rows under its own storage identity serves those of another",
		Breaks: partitionIsolation, Follows: []string{rowsMatchClients, ackIsFinal, singleEffect, noAcceptedLoss, noPhantom, messageIdentity, recoveryBounded, stableRedeliveryID},
		SeenIn: "a start under another storage identity", Store: fallBack, NeedsNeighbour: true,
	},
	{
		Name: "memory-taken-for-durable", Text: "rows are kept in memory, and called durable: they end with the broker",
		Breaks: noAcceptedLoss, Follows: []string{rowsMatchClients, recoveryBounded, unknownResolved, lookupsTrue, persistedBeforeAccepted, boundedRetry, progress, ackIsFinal, declinedMeansAbsent, expiryHonoured, partitionIsolation, stableRedeliveryID, singleEffect},
		SeenIn: "the broker is restarted or killed while messages wait", Store: keepInMemory,
	},
}
