package guarantees

import (
	"slices"
	"testing"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees/internal/ledger"
)

const (
	o1, o2, o3 = "p1-1-1", "p1-2-1", "p1-3-1"
	retryOf1   = "p1-1-2"
)

// history is a told history and its expected judgement.
type history struct {
	guarantee, name string
	tell            func(*tale)
	outcome         Outcome
	kind            string // of a finding that must be present
}

// cases are the recorded histories: for each guarantee those that hold, those
// that violate it in every way it can name, and those that are inconclusive.
var cases = []history{
	{evidence.NoAcceptedLoss, "served and acknowledged", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).serve("c1#1", o1).drained("settled").rows("end")
	}, Held, ""},
	{evidence.NoAcceptedLoss, "a look-up that failed on an expired certificate excuses nothing", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).lookup(o1, evidence.Unknown, evidence.NoStanding)
		t.events[len(t.events)-1].Reason = "x509: certificate has expired or is not yet valid"
		t.drained("settled").rows("end")
	}, Violated, "lost-all"},
	{evidence.NoAcceptedLoss, "a dead letter whose handler spoke of expiry is no expiry", func(t *tale) {
		t.sub("c1#1", "g").call(o1, ttl(time.Minute)).answer(o1, evidence.Accepted).deliver("c1#1", o1).on(evidence.HandlerFailed, "c1#1", o1, because("the handler fails on expired-1")).
			on(evidence.DeadLettered, "admin", o1, because("expired-1 failed"), cause(evidence.CauseStated)).
			add(evidence.Event{Kind: evidence.Commanded, BusinessID: "o1", Command: evidence.CommandRedrive}).drained("settled").rows("end")
	}, Violated, "lost-all"},
	{evidence.NoAcceptedLoss, "withheld by us from a consumer that stays connected", func(t *tale) {
		t.fault("lost", evidence.Link).sub("c1#1", "g").publish(o1).fire("lost", "drop", "c1", ledger.FrameDeliver, o1).publish(o2).serve("c1#1", o2).drained("quiet")
	}, Inconclusive, ""},
	{evidence.NoAcceptedLoss, "behind one whose ACK we withheld", func(t *tale) {
		t.prof.Redelivers = evidence.RedeliverReconnect
		ackLost(t).publish(o2).drained("quiet")
	}, Inconclusive, ""},
	{evidence.NoAcceptedLoss, "behind one whose ACK we withheld, and its session ended", func(t *tale) {
		t.prof.Redelivers = evidence.RedeliverReconnect
		ackLost(t).end("c1#1").sub("c1#2", "g").publish(o2).drained("quiet")
	}, Violated, "lost-suffix"},
	{evidence.NoAcceptedLoss, "behind one whose ACK we withheld, where the system does not wait for ever", func(t *tale) {
		t.prof.Redelivers = evidence.RedeliverTimeout
		ackLost(t).publish(o2).drained("quiet")
	}, Violated, "lost-suffix"},
	{evidence.NoAcceptedLoss, "withheld once, and sent again, and gone", func(t *tale) {
		t.fault("lost", evidence.Link).sub("c1#1", "g").publish(o1).fire("lost", "drop", "c1", ledger.FrameDeliver, o1).frame(ledger.FrameDeliver, "c1", o1, "").publish(o2).serve("c1#1", o2).drained("quiet")
	}, Violated, "lost-prefix"},
	{evidence.NoAcceptedLoss, "one of two subscribers that last was left out when it came back", func(t *tale) {
		t.prof.KeepsSubscribers = true
		t.sub("c1#1", "a").sub("c2#1", "b").end("c2#1").publish(o1).sub("c2#2", "b").serve("c1#1", o1).drained("quiet").rows("end")
	}, Violated, "lost-all"},
	{evidence.NoAcceptedLoss, "one of two subscribers ended, and is owed nothing where none lasts", func(t *tale) {
		t.sub("c1#1", "a").sub("c2#1", "b").publish(o1).end("c2#1").sub("c2#2", "b").serve("c1#1", o1).drained("quiet").rows("end")
	}, Held, ""},
	{evidence.DeclinedMeansAbsent, "declined in words that sound like a repeat, and delivered", func(t *tale) {
		t.sub("c1#1", "g").call(o1).answer(o1, evidence.Declined, because("duplicate message")).deliver("c1#1", o1)
	}, Violated, "delivered"},
	{evidence.Order, "a publish that was dropped, and sent again in silence", func(t *tale) {
		t.fault("lost", evidence.Link).sub("c1#1", "g").call(o1).fire("lost", "drop", "p1", ledger.FramePublish, o1).call(o2).
			answer(o1, evidence.Accepted).answer(o2, evidence.Accepted).deliver("c1#1", o2, attempt(1)).deliver("c1#1", o1, attempt(1))
	}, Violated, "overtaken"},
	{evidence.Order, "a delivery that we kept back", func(t *tale) {
		t.fault("late", evidence.Link).sub("c1#1", "g").publish(o1, o2, o3).fire("late", "drop", "c1", ledger.FrameDeliver, o1).deliver("c1#1", o2, attempt(1)).deliver("c1#1", o1, attempt(1)).deliver("c1#1", o3, attempt(1))
	}, Held, ""},
	{evidence.RecoveryBounded, "a consumer that works through a backlog is not free", func(t *tale) {
		t.sub("c1#1", "g").publish(o1, o2, o3)
		for _, o := range []string{o1, o2, o3} {
			t.deliver("c1#1", o).after(250*ms).ack("c1#1", o)
		}
	}, Held, ""},
	{evidence.RecoveryBounded, "a consumer that is too slow for the earlier ones, until they are dead", func(t *tale) {
		t.sub("c1#1", "g").publish(o1, o2)
		for i := range 3 {
			t.deliver("c1#1", o1, attempt(i+1)).after(250*ms).on(evidence.AckCalled, "c1#1", o1).on(evidence.AckReturned, "c1#1", o1, ackOutcome(evidence.AckRefused))
		}
		t.serve("c1#1", o2).drained("settled").rows("end", row(evidence.RowDead, o1))
	}, Held, ""},
	{evidence.RecoveryBounded, "served again and again to a consumer that is too slow, and the other never", func(t *tale) {
		t.sub("c1#1", "g").publish(o1, o2)
		for i := range 3 {
			t.deliver("c1#1", o2, attempt(i+1)).after(250*ms).on(evidence.AckCalled, "c1#1", o2).on(evidence.AckReturned, "c1#1", o2, ackOutcome(evidence.AckRefused))
		}
		t.serve("c1#1", o1)
	}, Violated, "too-slow"},
	{evidence.RecoveryBounded, "the first of a backlog is left for last", func(t *tale) {
		t.sub("c1#1", "g").publish(o1, o2, o3)
		for _, o := range []string{o2, o3, o1} {
			t.deliver("c1#1", o).after(150*ms).ack("c1#1", o)
		}
	}, Violated, "too-slow"},
	{evidence.RecoveryBounded, "expired by a clock that was wrong when it came", func(t *tale) {
		t.sub("c1#1", "g").clock(-time.Hour).call(o1, ttl(time.Minute)).answer(o1, evidence.Accepted).clock(0).publish(o2).serve("c1#1", o2).after(time.Second).drained("deadline").rows("end")
	}, Held, ""},
	{evidence.RecoveryBounded, "its effect was committed, its row waits, and a ready consumer is never served", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1).effect("c1#1", o1).on(evidence.AckCalled, "c1#1", o1).on(evidence.AckReturned, "c1#1", o1, ackOutcome(evidence.AckUnknown)).
			after(time.Second).drained("deadline").rows("end", row(evidence.RowPending, o1)).business(row(evidence.RowEffect, o1))
	}, Violated, "never-settled"},
	{evidence.PersistedBeforeAccepted, "accepted though its write had failed", func(t *tale) {
		t.fault("down", evidence.Store).call(o1).fire("down", "unreachable", "", "insert", o1).answer(o1, evidence.Accepted)
	}, Violated, "accepted-though-failed"},
	{evidence.PersistedBeforeAccepted, "accepted when a later write was done", func(t *tale) {
		t.fault("down", evidence.Store).call(o1).fire("down", "unreachable", "", "insert", o1).
			add(evidence.Event{Kind: evidence.StoreReturned, Actor: ledger.Broker, Frame: "insert", Items: item(o1), OK: true}).answer(o1, evidence.Accepted)
	}, Held, ""},
	{evidence.BoundedRetry, "used up, and expired before it was buried", func(t *tale) {
		t.sub("c1#1", "g").call(o1, ttl(50*ms)).answer(o1, evidence.Accepted)
		for range 3 {
			t.deliver("c1#1", o1, again).on(evidence.NackReturned, "c1#1", o1)
		}
		t.after(time.Second).rows("end")
	}, Held, ""},
	{evidence.BoundedRetry, "redriving one dead letter gives another no attempts", func(t *tale) {
		poison(t, 3).publish(o2)
		for range 3 {
			t.deliver("c1#1", o2, again).on(evidence.NackReturned, "c1#1", o2)
		}
		t.on(evidence.DeadLettered, "admin", o1, cause(evidence.CauseStated)).on(evidence.DeadLettered, "admin", o2, cause(evidence.CauseStated)).
			add(evidence.Event{Kind: evidence.Commanded, BusinessID: "o1", Command: evidence.CommandRedrive}).deliver("c1#1", o2, again).deliver("c1#1", o1, again).ack("c1#1", o1).rows("end", row(evidence.RowDead, o2, poisoned))
	}, Violated, "too-many"},
	{evidence.NoAcceptedLoss, "effects in rows", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1).effect("c1#1", o1).ack("c1#1", o1).drained("settled").rows("end").business(row(evidence.RowEffect, o1))
	}, Held, ""},
	{evidence.NoAcceptedLoss, "a delivery of an alias serves both", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).call(retryOf1).answer(retryOf1, evidence.Accepted).serve("c1#1", o1).drained("settled").rows("end")
	}, Held, ""},
	{evidence.NoAcceptedLoss, "answered as a duplicate is an alias", func(t *tale) {
		t.sub("c1#1", "g").call(o1).answer(o1, evidence.Unknown).call(retryOf1).answer(retryOf1, evidence.Accepted, repeated).serve("c1#1", o1).drained("settled").rows("end")
	}, Held, ""},
	{evidence.NoAcceptedLoss, "the system's name counts, not the one asked for", func(t *tale) {
		t.sub("c1#1", "g").call(o1, called("asked")).answer(o1, evidence.Unknown, called("")).call(retryOf1, called("asked")).
			answer(retryOf1, evidence.Accepted, called("s:1"), repeated).deliver("c1#1", o1, called("s:1")).
			ack("c1#1", o1).drained("settled").rows("end")
	}, Held, ""},
	{evidence.NoAcceptedLoss, "kept for nobody", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).end("c1#1").drained("no-consumer").rows("end", row(evidence.RowPending, o1))
	}, Held, ""},
	{evidence.NoAcceptedLoss, "dead-lettered with its reason", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).drained("settled").rows("end", row(evidence.RowDead, o1, poisoned))
	}, Held, ""},
	{evidence.NoAcceptedLoss, "dropped by design after its last delivery", func(t *tale) {
		t.prof.Limits.MaxAttempts, t.prof.Limits.DropsAfter = 0, 2
		t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1).deliver("c1#1", o1).drained("settled").rows("end")
	}, Held, "dropped-by-design"},
	{evidence.NoAcceptedLoss, "dropped before its last delivery", func(t *tale) {
		t.prof.Limits.MaxAttempts, t.prof.Limits.DropsAfter = 0, 3
		t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1).deliver("c1#1", o1).drained("settled").rows("end")
	}, Violated, "lost-all"},
	{evidence.NoAcceptedLoss, "used up where nobody can read the dead letters", func(t *tale) {
		t.sub("c1#1", "g").publish(o1)
		for range 3 {
			t.deliver("c1#1", o1).on(evidence.NackReturned, "c1#1", o1)
		}
		t.drained("quiet")
	}, Inconclusive, ""},
	{evidence.NoAcceptedLoss, "not used up, and nobody can read the dead letters", func(t *tale) {
		t.sub("c1#1", "g").publish(o1)
		for range 2 {
			t.deliver("c1#1", o1).on(evidence.NackReturned, "c1#1", o1)
		}
		t.drained("quiet")
	}, Violated, "lost-all"},
	{evidence.NoAcceptedLoss, "purged by command", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).on(evidence.Purged, "admin", o1).drained("settled").rows("end")
	}, Held, ""},
	{evidence.NoAcceptedLoss, "expired with nobody free", func(t *tale) {
		t.call(o1, ttl(50*ms)).answer(o1, evidence.Accepted).after(100 * ms).drained("no-consumer").rows("end")
	}, Held, ""},
	{evidence.NoAcceptedLoss, "expired while the broker ran under another partition", func(t *tale) {
		t.boots("a").sub("c1#1", "g").call(o1, ttl(50*ms)).answer(o1, evidence.Accepted).
			boots("b").after(100 * ms).boots("a").drained("settled").rows("end")
	}, Held, ""},
	{evidence.NoAcceptedLoss, "expired by when it was called, its answer being late", func(t *tale) {
		t.sub("c1#1", "g").call(o1, ttl(50*ms)).after(40*ms).answer(o1, evidence.Accepted).after(20 * ms).drained("settled").rows("end")
	}, Held, ""},
	{evidence.NoAcceptedLoss, "its row lingers, expired", func(t *tale) {
		t.call(o1, ttl(50*ms)).answer(o1, evidence.Accepted).sub("c1#1", "g").after(100*ms).drained("quiet").
			rows("end", row(evidence.RowPending, o1, func(r *evidence.StoredRow) { r.Expired = true }))
	}, Held, ""},
	{evidence.NoAcceptedLoss, "a subscriber that overlaps may be left out", func(t *tale) {
		t.sub("c1#1", "a").call(o1).sub("c2#1", "b").answer(o1, evidence.Accepted).serve("c1#1", o1).drained("settled").rows("end")
	}, Held, ""},
	{evidence.NoAcceptedLoss, "an ended subscriber is owed nothing", func(t *tale) {
		t.sub("c1#1", "a").sub("c2#1", "b").publish(o1).end("c2#1").serve("c1#1", o1).drained("settled").rows("end")
	}, Held, ""},
	{evidence.NoAcceptedLoss, "put back, and it came again", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).serve("c1#1", o1).rows("back").publish(o2).serve("c1#1", o2).end("c1#1").rewind("g", "back").
			sub("c1#2", "g").serve("c1#2", o2).drained("settled").rows("end")
	}, Held, ""},
	{evidence.NoAcceptedLoss, "put back, and it did not come again", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).serve("c1#1", o1).rows("back").publish(o2).serve("c1#1", o2).end("c1#1").rewind("g", "back").
			sub("c1#2", "g").drained("settled").rows("end")
	}, Violated, "lost-suffix"},
	{evidence.NoAcceptedLoss, "put back to where it had been already", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).serve("c1#1", o1).end("c1#1").rows("back").rewind("g", "back").sub("c1#2", "g").drained("settled").rows("end")
	}, Held, ""},
	{evidence.NoAcceptedLoss, "another subscriber was put back", func(t *tale) {
		t.sub("c1#1", "g").rows("back").publish(o1).serve("c1#1", o1).rewind("h", "back").drained("settled").rows("end")
	}, Held, ""},
	{evidence.AckIsFinal, "delivered again after its subscriber was put back", func(t *tale) {
		t.sub("c1#1", "g").rows("back").publish(o1).serve("c1#1", o1).end("c1#1").rewind("g", "back").sub("c1#2", "g").serve("c1#2", o1)
	}, Held, ""},
	{evidence.AckIsFinal, "delivered again though another was put back", func(t *tale) {
		t.sub("c1#1", "g").rows("back").publish(o1).serve("c1#1", o1).end("c1#1").rewind("h", "back").sub("c1#2", "g").deliver("c1#2", o1)
	}, Violated, "new-session"},
	{evidence.AckIsFinal, "acknowledged again after it was put back, and delivered a third time", func(t *tale) {
		t.sub("c1#1", "g").rows("back").publish(o1).serve("c1#1", o1).end("c1#1").rewind("g", "back").sub("c1#2", "g").serve("c1#2", o1).
			end("c1#2").sub("c1#3", "g").deliver("c1#3", o1)
	}, Violated, "new-session"},
	{evidence.RecoveryBounded, "put back, and slow to come again", func(t *tale) {
		t.sub("c1#1", "g").rows("back").publish(o1).serve("c1#1", o1).end("c1#1").rewind("g", "back").sub("c1#2", "g").after(400*ms).serve("c1#2", o1)
	}, Violated, "too-slow"},
	{evidence.Order, "put back, and served anew from there", func(t *tale) {
		t.sub("c1#1", "g").rows("back").publish(o1, o2, o3).serve("c1#1", o1, o2, o3).end("c1#1").rewind("g", "back").after(100*ms).sub("c1#2", "g").serve("c1#2", o1, o2, o3)
	}, Held, ""},
	{evidence.Order, "put back, and overtaken", func(t *tale) {
		t.sub("c1#1", "g").rows("back").publish(o1, o2, o3).serve("c1#1", o1, o2, o3).end("c1#1").rewind("g", "back").after(100*ms).sub("c1#2", "g").serve("c1#2", o2, o1, o3)
	}, Violated, "overtaken"},
	{evidence.NoAcceptedLoss, "a wildcard subscriber left out", func(t *tale) {
		t.sub("c1#1", "a").sub("c2#1", "b")
		t.events[4].Destination = "#"
		t.publish(o1).serve("c1#1", o1).drained("quiet").rows("end")
	}, Violated, "lost-all"},
	{evidence.NoAcceptedLoss, "one of two subscribers left out", func(t *tale) {
		t.sub("c1#1", "a").sub("c2#1", "b").publish(o1).serve("c1#1", o1).drained("quiet").rows("end")
	}, Violated, "lost-all"},
	{evidence.NoAcceptedLoss, "a durable subscriber that was away left out", func(t *tale) {
		t.durable("c2#1", "b").end("c2#1").sub("c1#1", "a").publish(o1).serve("c1#1", o1).drained("quiet").rows("end")
	}, Violated, "lost-all"},
	{evidence.NoAcceptedLoss, "prefix", func(t *tale) {
		t.sub("c1#1", "g").publish(o1, o2, o3).serve("c1#1", o2, o3).drained("quiet").rows("end")
	}, Violated, "lost-prefix"},
	{evidence.NoAcceptedLoss, "middle", func(t *tale) {
		t.sub("c1#1", "g").publish(o1, o2, o3).serve("c1#1", o1, o3).drained("quiet").rows("end")
	}, Violated, "lost-middle"},
	{evidence.NoAcceptedLoss, "suffix", func(t *tale) {
		t.sub("c1#1", "g").publish(o1, o2, o3).serve("c1#1", o1, o2).drained("quiet").rows("end")
	}, Violated, "lost-suffix"},
	{evidence.NoAcceptedLoss, "accepted with nobody there and no row (a broker that drops the unroutable)", func(t *tale) {
		t.publish(o1).sub("c1#1", "g").drained("quiet").rows("end")
	}, Violated, "lost-all"},
	{evidence.NoAcceptedLoss, "acknowledged without its effect", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1).on(evidence.HandlerFailed, "c1#1", o1).ack("c1#1", o1).drained("settled").rows("end").business()
	}, Violated, "lost-all"},
	{evidence.NoAcceptedLoss, "dead-lettered without a reason", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).drained("quiet").rows("end", row(evidence.RowDead, o1))
	}, Violated, "lost-all"},
	{evidence.NoAcceptedLoss, "expired though a consumer was free", func(t *tale) {
		t.sub("c1#1", "g").call(o1, ttl(50*ms)).answer(o1, evidence.Accepted).after(100 * ms).drained("quiet").rows("end")
	}, Violated, "lost-all"},
	{evidence.NoAcceptedLoss, "still stored with a consumer ready", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).drained("deadline").rows("end", row(evidence.RowPending, o1))
	}, Inconclusive, ""},
	{evidence.NoAcceptedLoss, "nothing proves the absence", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).drained("deadline")
	}, Inconclusive, ""},
	{evidence.NoAcceptedLoss, "quiet while a consumer that settles nothing holds one", func(t *tale) {
		t.sub("c1#1", "g").publish(o1, o2).deliver("c1#1", o1).drained("quiet")
	}, Inconclusive, ""},
	{evidence.NoAcceptedLoss, "quiet while rows are only counted", func(t *tale) {
		t.sub("c1#1", "g").publish(o1, o2).serve("c1#1", o1).drained("quiet").
			snapshot(evidence.Snapshot{Source: evidence.SourceBroker, Checkpoint: "end", Trust: evidence.CountsOnly, Count: 1})
	}, Inconclusive, ""},
	{evidence.NoAcceptedLoss, "quiet, and nobody holds anything", func(t *tale) {
		t.sub("c1#1", "g").publish(o1, o2).serve("c1#1", o1).drained("quiet")
	}, Violated, "lost-suffix"},
	{evidence.NoAcceptedLoss, "memory shows no rows", func(t *tale) {
		t.sub("c1#1", "g").call(o1).answer(o1, evidence.Accepted, inMemory).drained("deadline").rows("end")
	}, Inconclusive, ""},
	{evidence.NoAcceptedLoss, "the harness failed, and absence proves nothing", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).drained("quiet").rows("end").failed()
	}, Inconclusive, ""},
	{evidence.NoAcceptedLoss, "effects without business rows", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1).effect("c1#1", o1).ack("c1#1", o1).drained("settled").rows("end")
	}, Inconclusive, ""},
	{evidence.NoAcceptedLoss, "a fire-and-forget loss is shown and breaks nothing", func(t *tale) {
		t.sub("c1#1", "g").call(o1).answer(o1, evidence.Unknown, toldOK).publish(o2).serve("c1#1", o2).drained("quiet")
	}, Held, "unconfirmed-loss"},

	{evidence.NoDuplicateDelivery, "each once, and fan-out", func(t *tale) {
		t.sub("c1#1", "a").sub("c2#1", "b").publish(o1).serve("c1#1", o1).serve("c2#1", o1)
	}, Held, ""},
	{evidence.NoDuplicateDelivery, "a forged copy is ours", func(t *tale) {
		t.fault("dup", evidence.Link).sub("c1#1", "g").publish(o1).frame(ledger.FrameDeliver, "c1", o1, "").
			frame(ledger.FrameDeliver, "c1", o1, "duplicate").fire("dup", "duplicate", "c1", ledger.FrameDeliver, o1).deliver("c1#1", o1).deliver("c1#1", o1)
	}, Held, ""},
	{evidence.NoDuplicateDelivery, "a forged publish is ours", func(t *tale) {
		t.fault("dup", evidence.Link).sub("c1#1", "g").fire("dup", "duplicate", "p1", ledger.FramePublish, o1).publish(o1).deliver("c1#1", o1).deliver("c1#1", o1)
	}, Held, ""},
	{evidence.NoDuplicateDelivery, "one more than we forged", func(t *tale) {
		t.fault("dup", evidence.Link).sub("c1#1", "g").publish(o1).
			frame(ledger.FrameDeliver, "c1", o1, "duplicate").fire("dup", "duplicate", "c1", ledger.FrameDeliver, o1).
			deliver("c1#1", o1).deliver("c1#1", o1).deliver("c1#1", o1)
	}, Violated, "handed-twice"},
	{evidence.NoDuplicateDelivery, "handed twice", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1).deliver("c1#1", o1, again)
	}, Violated, "handed-twice"},
	{evidence.NoDuplicateDelivery, "both of two publishes that the system called one", func(t *tale) {
		t.sub("c1#1", "g").publish(o1, retryOf1).deliver("c1#1", o1).deliver("c1#1", retryOf1)
	}, Violated, "alias-handed-too"},
	{evidence.NoDuplicateDelivery, "nothing delivered", func(t *tale) { t.sub("c1#1", "g").publish(o1) }, Inconclusive, ""},

	{evidence.SingleEffect, "one effect, the repeat absorbed", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1).effect("c1#1", o1).deliver("c1#1", o1, again).on(evidence.EffectAbsorbed, "c1#1", o1).business(row(evidence.RowEffect, o1), row(evidence.RowLog, o1))
	}, Held, ""},
	{evidence.SingleEffect, "an effect for each subscriber", func(t *tale) {
		t.sub("c1#1", "a").sub("c2#1", "b").publish(o1).business(
			row(evidence.RowEffect, o1, func(r *evidence.StoredRow) { r.Subscription = "a" }),
			row(evidence.RowEffect, o1, func(r *evidence.StoredRow) { r.Subscription = "b" }))
	}, Held, ""},
	{evidence.SingleEffect, "a second effect", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1).effect("c1#1", o1).deliver("c1#1", o1, again).effect("c1#1", o1).business(row(evidence.RowEffect, o1), row(evidence.RowEffect, o1))
	}, Violated, "second-effect"},
	{evidence.SingleEffect, "a forged publish is ours", func(t *tale) {
		t.fault("dup", evidence.Link).sub("c1#1", "g").fire("dup", "duplicate", "p1", ledger.FramePublish, o1).publish(o1).business(row(evidence.RowEffect, o1), row(evidence.RowEffect, o1))
	}, Held, ""},
	{evidence.SingleEffect, "one effect more than we forged", func(t *tale) {
		t.fault("dup", evidence.Link).sub("c1#1", "g").fire("dup", "duplicate", "p1", ledger.FramePublish, o1).publish(o1).
			business(row(evidence.RowEffect, o1), row(evidence.RowEffect, o1), row(evidence.RowEffect, o1))
	}, Violated, "second-effect"},
	{evidence.SingleEffect, "a retry makes a second effect of one business ID", func(t *tale) {
		t.sub("c1#1", "g").publish(o1, retryOf1).business(row(evidence.RowEffect, o1), row(evidence.RowEffect, retryOf1))
	}, Violated, "second-effect"},
	{evidence.SingleEffect, "an effect of what was refused", func(t *tale) {
		t.sub("c1#1", "g").call(o1).answer(o1, evidence.Declined).business(row(evidence.RowEffect, o1))
	}, Violated, "effect-of-refused"},
	{evidence.SingleEffect, "events are no rows", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1).effect("c1#1", o1).effect("c1#1", o1)
	}, Inconclusive, ""},

	{evidence.NoPhantom, "what was sent came", func(t *tale) { t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1) }, Held, ""},
	{evidence.NoPhantom, "recorded before its call by another process", func(t *tale) { t.sub("c1#1", "g").deliver("c1#1", o1).publish(o1) }, Held, ""},
	{evidence.NoPhantom, "we corrupted it", func(t *tale) {
		t.fault("rot", evidence.Link).sub("c1#1", "g").publish(o1, o2).fire("rot", "corrupt", "c1", ledger.FrameDeliver, o1).
			deliver("c1#1", o1, digest("other")).fire("rot", "corrupt", "c1", ledger.FrameDeliver, o2).deliver("c1#1", "")
	}, Held, ""},
	{evidence.NoPhantom, "never published", func(t *tale) { t.sub("c1#1", "g").deliver("c1#1", "p9-1-1") }, Violated, "never-published"},
	{evidence.NoPhantom, "altered", func(t *tale) { t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1, digest("other")) }, Violated, "altered"},
	{evidence.NoPhantom, "altered, recorded before its call", func(t *tale) { t.sub("c1#1", "g").deliver("c1#1", o1, digest("other")).publish(o1) }, Violated, "altered"},
	{evidence.NoPhantom, "another business ID", func(t *tale) { t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1, business("o7")) }, Violated, "mixed-up"},
	{evidence.NoPhantom, "no envelope", func(t *tale) { t.sub("c1#1", "g").publish(o1).deliver("c1#1", "") }, Violated, "no-envelope"},
	{evidence.NoPhantom, "an effect of nothing", func(t *tale) { t.publish(o1).business(row(evidence.RowEffect, "p9-9-1")) }, Violated, "effect-of-nothing"},
	{evidence.NoPhantom, "nothing delivered", func(t *tale) { t.publish(o1) }, Inconclusive, ""},

	{evidence.DeclinedMeansAbsent, "declined and absent", func(t *tale) { t.call(o1).answer(o1, evidence.Declined).rows("end") }, Held, ""},
	{evidence.DeclinedMeansAbsent, "its retry was accepted", func(t *tale) {
		t.sub("c1#1", "g").call(o1).answer(o1, evidence.Declined).publish(retryOf1).serve("c1#1", retryOf1).
			rows("end", row(evidence.RowPending, retryOf1, func(r *evidence.StoredRow) { r.PublishID, r.MessageID = "", "" }))
	}, Held, ""},
	{evidence.DeclinedMeansAbsent, "declined as a duplicate of what is stored", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).call(retryOf1).answer(retryOf1, evidence.Declined, repeated).call(o2).answer(o2, evidence.Rejected).rows("end", row(evidence.RowPending, retryOf1))
	}, Held, ""},
	{evidence.DeclinedMeansAbsent, "the retry chose the same message ID", func(t *tale) {
		t.call(o1, answeredWith("m1")).answer(o1, evidence.Rejected).call(retryOf1, answeredWith("m1")).answer(retryOf1, evidence.Accepted).
			rows("end", evidence.StoredRow{State: evidence.RowPending, BusinessID: "o1", MessageID: "m1"})
	}, Held, ""},
	{evidence.DeclinedMeansAbsent, "delivered", func(t *tale) { t.sub("c1#1", "g").call(o1).answer(o1, evidence.Declined).deliver("c1#1", o1) }, Violated, "delivered"},
	{evidence.DeclinedMeansAbsent, "delivered before the answer", func(t *tale) { t.sub("c1#1", "g").call(o1).deliver("c1#1", o1).answer(o1, evidence.Rejected) }, Violated, "delivered"},
	{evidence.DeclinedMeansAbsent, "left a row", func(t *tale) {
		t.call(o1).answer(o1, evidence.Rejected).rows("end", row(evidence.RowPending, o1))
	}, Violated, "left-a-row"},
	{evidence.DeclinedMeansAbsent, "left a row by business ID", func(t *tale) {
		t.call(o1).answer(o1, evidence.Rejected).rows("end", evidence.StoredRow{State: evidence.RowPending, BusinessID: "o1"})
	}, Violated, "left-a-row"},
	{evidence.DeclinedMeansAbsent, "nothing was refused", func(t *tale) { t.publish(o1) }, Inconclusive, ""},

	{evidence.StableRedeliveryID, "same ID, marked", func(t *tale) { t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1).deliver("c1#1", o1, again) }, Held, ""},
	{evidence.StableRedeliveryID, "the marked one recorded first", func(t *tale) {
		t.sub("c1#1", "g").sub("c2#1", "g").publish(o1).deliver("c2#1", o1, again).deliver("c1#1", o1)
	}, Held, ""},
	{evidence.StableRedeliveryID, "marked by its attempt", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1, attempt(1)).deliver("c1#1", o1, attempt(2))
	}, Held, ""},
	{evidence.StableRedeliveryID, "another ID", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1).deliver("c1#1", o1, again, answeredWith("m77"))
	}, Violated, "changed-id"},
	{evidence.StableRedeliveryID, "unmarked", func(t *tale) { t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1).deliver("c1#1", o1) }, Violated, "unmarked"},
	{evidence.StableRedeliveryID, "nothing came again", func(t *tale) { t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1) }, Inconclusive, ""},

	{evidence.Order, "in order", func(t *tale) { t.sub("c1#1", "g").publish(o1, o2).serve("c1#1", o1, o2) }, Held, ""},
	{evidence.Order, "a retry is no pair", func(t *tale) {
		t.sub("c1#1", "g").call(o1).answer(o1, evidence.Unknown).publish(o2, retryOf1, o3).deliver("c1#1", o2).deliver("c1#1", retryOf1).deliver("c1#1", o3)
	}, Held, ""},
	{evidence.Order, "its first delivery was struck", func(t *tale) {
		t.fault("f", evidence.Link).sub("c1#1", "g").publish(o1, o2, o3).fire("f", "drop", "c1", ledger.FrameDeliver, o1).deliver("c1#1", o2).deliver("c1#1", o1).deliver("c1#1", o3)
	}, Held, ""},
	{evidence.Order, "two producers", func(t *tale) {
		t.sub("c1#1", "g").publish(o1, "p2-5-1", o2).deliver("c1#1", "p2-5-1").deliver("c1#1", o1).deliver("c1#1", o2)
	}, Held, ""},
	{evidence.Order, "its first delivery never arrived", func(t *tale) {
		t.sub("c1#1", "g").publish(o1, o2, o3).deliver("c1#1", o2).deliver("c1#1", o1, again).deliver("c1#1", o3)
	}, Held, ""},
	{evidence.Order, "overtaken", func(t *tale) { t.sub("c1#1", "g").publish(o1, o2).deliver("c1#1", o2).deliver("c1#1", o1) }, Violated, "overtaken"},
	{evidence.Order, "replayed out of order on a new session", func(t *tale) {
		first := attempt(1)
		t.durable("c1#1", "g").end("c1#1").after(60*ms).publish(o1, o2).sub("c1#2", "g").deliver("c1#2", o2, first).deliver("c1#2", o1, first)
	}, Violated, "overtaken"},
	{evidence.Order, "its session's predecessor may still compete", func(t *tale) {
		t.sub("c1#1", "g").publish(o1, o2).end("c1#1").sub("c1#2", "g").deliver("c1#2", o2).deliver("c1#2", o1)
	}, Inconclusive, ""},
	{evidence.Order, "its session's predecessor ended with the broker", func(t *tale) {
		t.sub("c1#1", "g").publish(o1, o2).end("c1#1").broker(evidence.ProcessExited, "", &evidence.ExitInfo{Ordered: true}).sub("c1#2", "g").deliver("c1#2", o2).deliver("c1#2", o1)
	}, Violated, "overtaken"},
	{evidence.Order, "consumers compete", func(t *tale) {
		t.sub("c1#1", "g").sub("c2#1", "g").publish(o1, o2).deliver("c1#1", o2).deliver("c2#1", o1)
	}, Inconclusive, ""},
	{evidence.Order, "no scope", func(t *tale) { t.prof.Limits.OrderScope = ""; t.publish(o1) }, NotApplicable, ""},

	{evidence.ExpiryHonoured, "in time", func(t *tale) {
		t.sub("c1#1", "g").call(o1, ttl(50*ms)).answer(o1, evidence.Accepted).frame(ledger.FrameDeliver, "c1", o1, "").deliver("c1#1", o1)
	}, Held, ""},
	{evidence.ExpiryHonoured, "an Unknown publish is never late", func(t *tale) {
		t.sub("c1#1", "g").call(o1, ttl(5*ms)).answer(o1, evidence.Unknown).after(500*ms).frame(ledger.FrameDeliver, "c1", o1, "").deliver("c1#1", o1).
			call(o2, ttl(time.Minute)).answer(o2, evidence.Accepted).frame(ledger.FrameDeliver, "c1", o2, "")
	}, Held, ""},
	{evidence.ExpiryHonoured, "we delayed it", func(t *tale) {
		t.fault("f", evidence.Link).sub("c1#1", "g").call(o1, ttl(50*ms)).answer(o1, evidence.Accepted).fire("f", "hold", "c1", ledger.FrameDeliver, o2).
			after(200*ms).heal("f").frame(ledger.FrameDeliver, "c1", o1, "").deliver("c1#1", o1)
	}, Held, ""},
	{evidence.ExpiryHonoured, "the broker's clock went back", func(t *tale) {
		t.sub("c1#1", "g").call(o1, ttl(50*ms)).answer(o1, evidence.Accepted).clock(-time.Hour).
			after(200*ms).frame(ledger.FrameDeliver, "c1", o1, "")
	}, Held, ""},
	{evidence.ExpiryHonoured, "late", func(t *tale) {
		t.sub("c1#1", "g").call(o1, ttl(50*ms)).answer(o1, evidence.Accepted).after(100*ms).frame(ledger.FrameDeliver, "c1", o1, "")
	}, Violated, "late"},
	{evidence.ExpiryHonoured, "late, without a link", func(t *tale) {
		t.sub("c1#1", "g").call(o1, ttl(50*ms)).answer(o1, evidence.Accepted).after(200*ms).deliver("c1#1", o1)
	}, Violated, "late"},
	{evidence.ExpiryHonoured, "late by the broker's own clock", func(t *tale) {
		t.sub("c1#1", "g").call(o1, ttl(time.Minute)).answer(o1, evidence.Accepted).clock(time.Hour).after(2*time.Second).frame(ledger.FrameDeliver, "c1", o1, "")
	}, Violated, "late"},
	{evidence.ExpiryHonoured, "on its way when the clock was set", func(t *tale) {
		t.sub("c1#1", "g").call(o1, ttl(time.Minute)).answer(o1, evidence.Accepted).clock(time.Hour).frame(ledger.FrameDeliver, "c1", o1, "").rows("end")
	}, Held, ""},
	{evidence.ExpiryHonoured, "on its way when the clock was set twice", func(t *tale) {
		t.sub("c1#1", "g").clock(-time.Hour).after(time.Second).call(o1, ttl(time.Minute)).answer(o1, evidence.Accepted).
			clock(0).clock(0).frame(ledger.FrameDeliver, "c1", o1, "").rows("end")
	}, Held, ""},
	{evidence.ExpiryHonoured, "an alias of what was delivered has no row", func(t *tale) {
		t.sub("c1#1", "g").call(o1, ttl(time.Minute)).answer(o1, evidence.Accepted).serve("c1#1", o1).
			call(retryOf1, ttl(time.Minute)).answer(retryOf1, evidence.Accepted).rows("end")
	}, Held, ""},
	{evidence.ExpiryHonoured, "its row was gone too early", func(t *tale) {
		t.call(o1, ttl(500*ms)).answer(o1, evidence.Accepted).rows("early").after(time.Second).rows("end")
	}, Violated, "early"},
	{evidence.ExpiryHonoured, "said to be expired too early", func(t *tale) {
		t.call(o1, ttl(500*ms)).answer(o1, evidence.Accepted).on(evidence.DeadLettered, "admin", o1, because("too old"), cause(evidence.CauseExpired)).after(time.Second).rows("end")
	}, Violated, "early"},
	{evidence.ExpiryHonoured, "nothing has a time to live", func(t *tale) { t.publish(o1) }, Inconclusive, ""},

	{evidence.AckIsFinal, "acknowledged and gone", func(t *tale) { t.sub("c1#1", "g").publish(o1).serve("c1#1", o1).after(100 * ms).rows("end") }, Held, ""},
	{evidence.AckIsFinal, "kept as history", func(t *tale) {
		t.prof.KeepsRows = true
		t.sub("c1#1", "g").publish(o1).serve("c1#1", o1).after(100*ms).rows("end", row(evidence.RowProcessed, o1))
	}, Held, ""},
	{evidence.AckIsFinal, "the broker stood still before it could delete", func(t *tale) {
		t.fault("f", evidence.BrokerPause).sub("c1#1", "g").publish(o1).serve("c1#1", o1).fire("f", "pause", "", "").after(100*ms).rows("paused", row(evidence.RowPending, o1)).heal("f").rows("end")
	}, Held, ""},
	{evidence.AckIsFinal, "the broker was killed between acknowledgement and delete", func(t *tale) {
		t.fault("kill", evidence.BrokerCrash).sub("c1#1", "g").publish(o1).serve("c1#1", o1).fire("kill", "kill", "", "").end("c1#1").sub("c1#2", "g").deliver("c1#2", o1, again)
	}, Violated, "new-session"}, // the claim says whether this is promised across a crash
	{evidence.AckIsFinal, "all that was confirmed came again after an orderly restart", func(t *tale) {
		t.sub("c1#1", "g").publish(o1, o2).serve("c1#1", o1, o2).add(evidence.Event{Kind: evidence.Commanded, Actor: ledger.Broker, Command: evidence.CommandRestart}).
			broker(evidence.ProcessExited, "", &evidence.ExitInfo{Ordered: true}).end("c1#1").sub("c1#2", "g").serve("c1#2", o1, o2)
	}, Violated, "new-session"},
	{evidence.AckIsFinal, "the broker ended by itself between acknowledgement and delete", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).serve("c1#1", o1).broker(evidence.ProcessExited, "", &evidence.ExitInfo{Code: 2}).end("c1#1").sub("c1#2", "g").deliver("c1#2", o1, again)
	}, Held, ""},
	{evidence.AckIsFinal, "the broker ended by itself long after the delete was due", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).serve("c1#1", o1).after(time.Second).broker(evidence.ProcessExited, "", &evidence.ExitInfo{Code: 2}).end("c1#1").sub("c1#2", "g").deliver("c1#2", o1, again)
	}, Violated, "new-session"},
	{evidence.AckIsFinal, "concurrent on a session already open", func(t *tale) {
		t.sub("c1#1", "g").sub("c2#1", "g").publish(o1).deliver("c1#1", o1).ack("c1#1", o1).deliver("c2#1", o1, again)
	}, Held, ""},
	{evidence.AckIsFinal, "the client library sent it twice, and the second copy was delivered later", func(t *tale) {
		t.sub("c1#1", "g").call(o1).frame(ledger.FramePublish, "p1", o1, "").deliver("c1#1", o1).ack("c1#1", o1).after(100*ms).
			frame(ledger.FramePublish, "p1", o1, "").answer(o1, evidence.Accepted).deliver("c1#1", o1)
	}, Held, ""},
	{evidence.AckIsFinal, "the client library sent it once", func(t *tale) {
		t.sub("c1#1", "g").call(o1).frame(ledger.FramePublish, "p1", o1, "").deliver("c1#1", o1).ack("c1#1", o1).after(100*ms).
			answer(o1, evidence.Accepted).deliver("c1#1", o1)
	}, Violated, "after-bound"},
	{evidence.AckIsFinal, "the broker was killed, and the confirm was durable", func(t *tale) {
		t.prof.ConfirmIsDurable = true
		t.fault("kill", evidence.BrokerCrash).sub("c1#1", "g").publish(o1).serve("c1#1", o1).fire("kill", "kill", "", "").end("c1#1").sub("c1#2", "g").deliver("c1#2", o1, again)
	}, Violated, "new-session"},
	{evidence.AckIsFinal, "delivered on a new session", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).serve("c1#1", o1).end("c1#1").sub("c1#2", "g").deliver("c1#2", o1, again)
	}, Violated, "new-session"},
	{evidence.AckIsFinal, "past the in-flight bound", func(t *tale) {
		t.sub("c1#1", "g").sub("c2#1", "g").publish(o1).serve("c1#1", o1).after(100*ms).deliver("c2#1", o1, again)
	}, Violated, "after-bound"},
	{evidence.AckIsFinal, "a frame behind the confirm's", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).frame(ledger.FrameDeliver, "c1", o1, "").deliver("c1#1", o1).frame("ack", "c1", o1, "").frame(ledger.FrameAckConfirm, "c1", o1, "").
			on(evidence.AckCalled, "c1#1", o1).on(evidence.AckReturned, "c1#1", o1, ackOutcome(evidence.AckConfirmed)).frame(ledger.FrameDeliver, "c1", o1, "")
	}, Violated, "frame-after-confirm"},
	{evidence.AckIsFinal, "its row is kept", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).serve("c1#1", o1).after(100*ms).rows("end", row(evidence.RowPending, o1))
	}, Violated, "row-kept"},
	{evidence.AckIsFinal, "its row is kept, and the bench stopped the broker", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).serve("c1#1", o1).after(100*ms).rows("end", row(evidence.RowPending, o1)).
			add(evidence.Event{Kind: evidence.PhaseBegan, Phase: evidence.Ended}).
			add(evidence.Event{Kind: evidence.ProcessExited, Actor: ledger.Broker, Exit: &evidence.ExitInfo{Ordered: true}})
	}, Violated, "row-kept"},
	{evidence.AckIsFinal, "the answer to the late ACK was a refusal", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).frame(ledger.FrameDeliver, "c1", o1, "").deliver("c1#1", o1).frame("ack", "c1", o1, "")
		t.frame(ledger.FrameAckConfirm, "c1", o1, "")
		t.events[len(t.events)-1].Negative = true
		t.on(evidence.AckCalled, "c1#1", o1).on(evidence.AckReturned, "c1#1", o1, ackOutcome(evidence.AckRefused)).frame(ledger.FrameDeliver, "c1", o1, "").serve("c1#1", o1)
	}, Held, ""},
	{evidence.AckIsFinal, "nothing confirmed", func(t *tale) { t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1) }, Inconclusive, ""},
	{evidence.AckIsFinal, "never confirmed here", func(t *tale) { t.prof.AckConfirms = false; t.publish(o1) }, NotApplicable, ""},

	{evidence.PersistedBeforeAccepted, "answered after the hold", func(t *tale) {
		t.fault("h", evidence.Store).fire("h", "hold", "", "commit", o1).call(o1).frame(ledger.FramePublish, "p1", o1, "").heal("h").frame(ledger.FrameAccept, "p1", o1, "").answer(o1, evidence.Accepted)
	}, Held, ""},
	{evidence.PersistedBeforeAccepted, "accepted before the store could answer", func(t *tale) {
		t.fault("h", evidence.Store).call(o1).frame(ledger.FramePublish, "p1", o1, "").frame(ledger.FrameAccept, "p1", o1, "").answer(o1, evidence.Accepted).fire("h", "hold", "", "insert", o1).heal("h")
	}, Violated, "accepted-before-persisted"},
	{evidence.PersistedBeforeAccepted, "answered again during the hold as before it", func(t *tale) {
		t.fault("h", evidence.Store).publish(o1).fire("h", "hold", "", "insert", o2).call(retryOf1).frame(ledger.FramePublish, "p1", retryOf1, "").
			frame(ledger.FrameAccept, "p1", retryOf1, "").answer(retryOf1, evidence.Accepted).heal("h")
	}, Held, ""},
	{evidence.PersistedBeforeAccepted, "the broker that was held has ended", func(t *tale) {
		t.fault("h", evidence.Store).fire("h", "hold", "", "insert", o1).broker(evidence.ProcessExited, "", &evidence.ExitInfo{Ordered: true}).
			call(o2).frame(ledger.FramePublish, "p1", o2, "").frame(ledger.FrameAccept, "p1", o2, "").answer(o2, evidence.Accepted)
	}, Held, ""},
	{evidence.PersistedBeforeAccepted, "declined during the hold", func(t *tale) {
		t.fault("h", evidence.Store).fire("h", "hold", "", "commit").call(o1).frame(ledger.FramePublish, "p1", o1, "").frame(ledger.FrameAccept, "p1", o1, "").answer(o1, evidence.Declined).heal("h")
	}, Held, ""},
	{evidence.PersistedBeforeAccepted, "accepted during the hold, by its frame", func(t *tale) {
		t.fault("h", evidence.Store).fire("h", "hold", "", "sync").call(o1).frame(ledger.FramePublish, "p1", o1, "").frame(ledger.FrameAccept, "p1", o1, "").heal("h").answer(o1, evidence.Accepted)
	}, Violated, "accepted-before-persisted"},
	{evidence.PersistedBeforeAccepted, "accepted during the hold, by its answer", func(t *tale) {
		t.fault("h", evidence.Store).fire("h", "hold", "", "commit", o1).call(o1).answer(o1, evidence.Accepted).heal("h")
	}, Violated, "accepted-before-persisted"},
	{evidence.PersistedBeforeAccepted, "nothing was held", func(t *tale) { t.publish(o1) }, Inconclusive, ""},

	{evidence.UnknownResolved, "it was delivered", func(t *tale) { t.sub("c1#1", "g").call(o1).answer(o1, evidence.Unknown).deliver("c1#1", o1) }, Held, ""},
	{evidence.UnknownResolved, "a lookup settled it", func(t *tale) {
		t.call(o1).answer(o1, evidence.Unknown).lookup(o1, evidence.Accepted, evidence.Stored).rows("x", row(evidence.RowPending, o1))
	}, Held, ""},
	{evidence.UnknownResolved, "an effect proves it", func(t *tale) { t.call(o1).answer(o1, evidence.Unknown).business(row(evidence.RowEffect, o1)) }, Held, ""},
	{evidence.UnknownResolved, "absent after its connection's end", func(t *tale) { t.call(o1).answer(o1, evidence.Unknown).end("p1#1").rows("end") }, Held, ""},
	{evidence.UnknownResolved, "not seen after its connection's end", func(t *tale) {
		t.call(o1).answer(o1, evidence.Unknown).end("p1#1").lookup(o1, evidence.Rejected, evidence.Absent)
	}, Held, ""},
	{evidence.UnknownResolved, "forgotten is no denial", func(t *tale) {
		t.sub("c1#1", "g").call(o1).answer(o1, evidence.Unknown).deliver("c1#1", o1).lookup(o1, evidence.Unknown, evidence.Forgotten)
	}, Held, ""},
	{evidence.UnknownResolved, "denied though accepted", func(t *tale) { t.publish(o1).lookup(o1, evidence.Rejected, evidence.Absent) }, Violated, "lookup-denied"},
	{evidence.UnknownResolved, "denied though delivered before", func(t *tale) {
		t.sub("c1#1", "g").call(o1).answer(o1, evidence.Unknown).deliver("c1#1", o1).lookup(o1, evidence.Rejected, evidence.Absent)
	}, Violated, "lookup-denied"},
	{evidence.UnknownResolved, "denied, and delivered later though its connection was dead", func(t *tale) {
		t.sub("c1#1", "g").call(o1).answer(o1, evidence.Unknown).end("p1#1").after(60*ms).lookup(o1, evidence.Rejected, evidence.Absent).deliver("c1#1", o1)
	}, Violated, "lookup-denied"},
	{evidence.UnknownResolved, "denied while what its connection sent may be under way", func(t *tale) {
		t.sub("c1#1", "g").call(o1).answer(o1, evidence.Unknown).end("p1#1").lookup(o1, evidence.Rejected, evidence.Absent).deliver("c1#1", o1)
	}, Held, ""},
	{evidence.UnknownResolved, "found, and expired since", func(t *tale) {
		t.call(o1, ttl(50*ms)).answer(o1, evidence.Unknown).lookup(o1, evidence.Accepted, evidence.Stored).after(time.Second).rows("end")
	}, Held, ""},
	{evidence.UnknownResolved, "invented", func(t *tale) { t.call(o1).answer(o1, evidence.Rejected).lookup(o1, evidence.Accepted, evidence.Stored) }, Violated, "lookup-invented"},
	{evidence.UnknownResolved, "denied while its connection lived", func(t *tale) {
		t.sub("c1#1", "g").call(o1).answer(o1, evidence.Unknown).lookup(o1, evidence.Rejected, evidence.Absent)
	}, Inconclusive, ""},
	{evidence.UnknownResolved, "absent while its connection lived", func(t *tale) { t.call(o1).answer(o1, evidence.Unknown).rows("end") }, Inconclusive, ""},
	{evidence.UnknownResolved, "nothing unknown", func(t *tale) { t.publish(o1) }, Inconclusive, ""},

	{evidence.BoundedRetry, "three attempts, then dead with its reason", func(t *tale) {
		poison(t, 3).rows("end", row(evidence.RowDead, o1, poisoned))
	}, Held, ""},
	{evidence.BoundedRetry, "a redrive gives new attempts", func(t *tale) {
		poison(t, 3).on(evidence.DeadLettered, "admin", o1, because("poison"), cause(evidence.CauseStated)).add(evidence.Event{Kind: evidence.Commanded, BusinessID: "o1", Command: evidence.CommandRedrive})
		t.deliver("c1#1", o1, again).on(evidence.NackReturned, "c1#1", o1).deliver("c1#1", o1, again).deliver("c1#1", o1, again).on(evidence.NackReturned, "c1#1", o1).
			rows("end", row(evidence.RowDead, o1, poisoned))
	}, Held, ""},
	{evidence.BoundedRetry, "discarded by command", func(t *tale) {
		poison(t, 3).on(evidence.Purged, "admin", o1, command(evidence.CommandDiscard)).after(10 * time.Second).rows("end")
	}, Held, ""},
	{evidence.BoundedRetry, "the broker left its partition before its last attempt ended", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1).deliver("c1#1", o1, again).deliver("c1#1", o1, again).after(10 * time.Second).
			snapshot(evidence.Snapshot{Checkpoint: "end", Source: evidence.SourceBroker, Trust: evidence.Exact, Partition: "b", Rows: []evidence.StoredRow{in("a", o1)}})
	}, Inconclusive, ""},
	{evidence.BoundedRetry, "a fourth attempt", func(t *tale) { poison(t, 4) }, Violated, "too-many"},
	{evidence.BoundedRetry, "a fourth attempt by the system's count", func(t *tale) { t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1, attempt(4)) }, Violated, "too-many"},
	{evidence.BoundedRetry, "nowhere (a limit without a dead-letter queue)", func(t *tale) { poison(t, 3).rows("end") }, Violated, "not-dead-lettered"},
	{evidence.BoundedRetry, "stays pending", func(t *tale) { poison(t, 3).rows("end", row(evidence.RowPending, o1)) }, Violated, "not-dead-lettered"},
	{evidence.BoundedRetry, "without its reason", func(t *tale) { poison(t, 3).rows("end", row(evidence.RowDead, o1)) }, Violated, "no-reason"},
	{evidence.BoundedRetry, "dead and pending", func(t *tale) {
		poison(t, 3).rows("end", row(evidence.RowPending, o1), row(evidence.RowDead, o1, poisoned))
	}, Violated, "also-pending"},
	{evidence.BoundedRetry, "no look at the queue", func(t *tale) { poison(t, 3) }, Inconclusive, ""},
	{evidence.BoundedRetry, "never used up", func(t *tale) { t.sub("c1#1", "g").publish(o1).serve("c1#1", o1) }, Inconclusive, ""},
	{evidence.BoundedRetry, "no limit", func(t *tale) { t.prof.Limits.MaxAttempts = 0; t.publish(o1) }, NotApplicable, ""},

	{evidence.RecoveryBounded, "settled at once", func(t *tale) { t.sub("c1#1", "g").publish(o1).serve("c1#1", o1).drained("settled") }, Held, ""},
	{evidence.RecoveryBounded, "settled before its publisher had the answer", func(t *tale) {
		t.sub("c1#1", "g").after(time.Second).call(o1).serve("c1#1", o1).answer(o1, evidence.Accepted).drained("settled")
	}, Held, ""},
	{evidence.RecoveryBounded, "the time does not run under a fault", func(t *tale) {
		t.fault("f", evidence.Link).sub("c1#1", "g").publish(o1).fire("f", "drop", "c1", ledger.FrameDeliver, o1).after(time.Second).heal("f").serve("c1#1", o1).drained("settled")
	}, Held, ""},
	{evidence.RecoveryBounded, "expired by a clock that was wrong", func(t *tale) {
		t.sub("c1#1", "g").clock(-time.Hour).call(o1, ttl(50*ms)).answer(o1, evidence.Accepted).clock(0).
			publish(o2).serve("c1#1", o2).after(time.Second).drained("deadline").rows("end")
	}, Held, ""},
	{evidence.RecoveryBounded, "the handler failed", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1).after(250*ms).on(evidence.HandlerFailed, "c1#1", o1).after(250*ms).serve("c1#1", o1).drained("settled")
	}, Held, ""},
	{evidence.RecoveryBounded, "too slow", func(t *tale) { t.sub("c1#1", "g").publish(o1).after(time.Second).serve("c1#1", o1).drained("settled") }, Violated, "too-slow"},
	{evidence.RecoveryBounded, "too slow after the heal", func(t *tale) {
		t.fault("f", evidence.Link).sub("c1#1", "g").publish(o1).fire("f", "drop", "c1", ledger.FrameDeliver, o1).heal("f").after(time.Second).serve("c1#1", o1).drained("settled")
	}, Violated, "too-slow"},
	{evidence.RecoveryBounded, "never", func(t *tale) { t.sub("c1#1", "g").publish(o1).after(time.Second).drained("deadline") }, Violated, "never-settled"},
	{evidence.RecoveryBounded, "the drain ended too soon", func(t *tale) { t.sub("c1#1", "g").publish(o1).drained("deadline") }, Inconclusive, ""},
	{evidence.RecoveryBounded, "no consumer ready", func(t *tale) { t.publish(o1).after(time.Second).drained("no-consumer") }, Inconclusive, ""},
	{evidence.RecoveryBounded, "no bound", func(t *tale) { t.prof.Limits.RecoveryBound = 0; t.publish(o1) }, NotApplicable, ""},

	{evidence.RowsMatchClients, "killed before the delete, and long after restarted under another partition", func(t *tale) {
		t.fault("kill", evidence.BrokerCrash).boots("a").sub("c1#1", "g").publish(o1).serve("c1#1", o1).fire("kill", "kill", "", "").end("c1#1").
			after(time.Second).add(evidence.Event{Kind: evidence.Commanded, Actor: ledger.Broker, Command: evidence.CommandRestart}).
			broker(evidence.ProcessExited, "", &evidence.ExitInfo{Ordered: true}).boots("b").drained("no-consumer").after(time.Second).rows("end", in("a", o1))
	}, Held, ""},
	{evidence.RowsMatchClients, "both say the same", func(t *tale) {
		t.sub("c1#1", "g").publish(o1, o2).serve("c1#1", o1).end("c1#1").after(100*ms).rows("end", row(evidence.RowPending, o2))
	}, Held, ""},
	{evidence.RowsMatchClients, "the count is right", func(t *tale) {
		t.publish(o1).call(o2).answer(o2, evidence.Unknown).snapshot(evidence.Snapshot{Checkpoint: "end", Source: evidence.SourceBroker, Trust: evidence.CountsOnly, Count: 2})
	}, Held, ""},
	{evidence.RowsMatchClients, "expired by a clock that is wrong", func(t *tale) {
		t.sub("c1#1", "g").call(o1, ttl(time.Minute)).answer(o1, evidence.Accepted).clock(time.Hour).end("c1#1").after(100 * ms).rows("end")
	}, Held, ""},
	{evidence.RowsMatchClients, "published again under another partition", func(t *tale) {
		t.publish(o1, retryOf1).rows("end", in("a", o1), in("b", retryOf1))
	}, Held, ""},
	{evidence.RowsMatchClients, "what was there before is not ours", func(t *tale) {
		old := row(evidence.RowPending, "p9-9-1")
		t.rows("start", old).sub("c1#1", "g").publish(o1).serve("c1#1", o1).rows("end", old)
	}, Held, ""},
	{evidence.RowsMatchClients, "a refused row stays", func(t *tale) {
		t.publish(o1).rows("planted", row(evidence.RowRefused, "p9-9-1")).rows("end", row(evidence.RowPending, o1), row(evidence.RowRefused, "p9-9-1"))
	}, Held, ""},
	{evidence.RowsMatchClients, "a refused row is gone", func(t *tale) {
		t.publish(o1).rows("planted", row(evidence.RowRefused, "p9-9-1")).rows("end", row(evidence.RowPending, o1))
	}, Violated, "refused-row-gone"},
	{evidence.RowsMatchClients, "a refused row was altered", func(t *tale) {
		t.publish(o1).rows("planted", row(evidence.RowRefused, "p9-9-1")).
			rows("end", row(evidence.RowPending, o1), row(evidence.RowRefused, "p9-9-1", func(r *evidence.StoredRow) { r.Digest = "other" }))
	}, Violated, "refused-row-altered"},
	{evidence.RowsMatchClients, "a refused row, and rows that lag", func(t *tale) {
		t.publish(o1).rows("planted", row(evidence.RowRefused, "p9-9-1")).
			snapshot(evidence.Snapshot{Checkpoint: "end", Source: evidence.SourceBroker, Trust: evidence.Lagging, Rows: []evidence.StoredRow{row(evidence.RowPending, o1)}})
	}, Inconclusive, ""},
	{evidence.RowsMatchClients, "a row of nobody", func(t *tale) {
		t.publish(o1).rows("end", row(evidence.RowPending, o1), row(evidence.RowPending, "p9-9-1"))
	}, Violated, "unknown-row"},
	{evidence.RowsMatchClients, "altered in the store", func(t *tale) {
		t.publish(o1).rows("end", row(evidence.RowPending, o1, func(r *evidence.StoredRow) { r.Digest = "other" }))
	}, Violated, "row-altered"},
	{evidence.RowsMatchClients, "two rows for one publish", func(t *tale) { t.publish(o1).rows("end", row(evidence.RowPending, o1), row(evidence.RowPending, o1)) }, Violated, "double-row"},
	{evidence.RowsMatchClients, "a second row for a repeated message ID", func(t *tale) {
		t.publish(o1, retryOf1).rows("end", row(evidence.RowPending, o1), row(evidence.RowPending, retryOf1))
	}, Violated, "double-row"},
	{evidence.RowsMatchClients, "acknowledged and pending", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).serve("c1#1", o1).after(100*ms).rows("end", row(evidence.RowPending, o1))
	}, Violated, "acked-but-pending"},
	{evidence.RowsMatchClients, "acknowledged and pending long after the store was repaired", func(t *tale) {
		t.fault("f", evidence.Store).sub("c1#1", "g").publish(o1).deliver("c1#1", o1).on(evidence.AckCalled, "c1#1", o1).fire("f", "unreachable", "", "delete", o1).
			on(evidence.AckReturned, "c1#1", o1, ackOutcome(evidence.AckConfirmed)).heal("f").after(time.Second).rows("end", row(evidence.RowPending, o1))
	}, Violated, "acked-but-pending"},
	{evidence.RowsMatchClients, "acknowledged and pending as the store has just been repaired", func(t *tale) {
		t.fault("f", evidence.Store).sub("c1#1", "g").publish(o1).deliver("c1#1", o1).on(evidence.AckCalled, "c1#1", o1).fire("f", "unreachable", "", "delete", o1).
			on(evidence.AckReturned, "c1#1", o1, ackOutcome(evidence.AckConfirmed)).after(100*ms).heal("f").after(100*ms).rows("end", row(evidence.RowPending, o1))
	}, Held, ""},
	{evidence.RowsMatchClients, "acknowledged and pending, for the broker died; it ended in order once more, long after", func(t *tale) {
		killed, ordered := &evidence.ExitInfo{Code: -1, Signal: "killed", Ordered: true}, &evidence.ExitInfo{Ordered: true}
		t.sub("c1#1", "g").publish(o1).serve("c1#1", o1).broker(evidence.ProcessExited, "", killed).after(100*ms).
			broker(evidence.ProcessStarted, "", nil).broker(evidence.ProcessExited, "", ordered).after(100*ms).
			rows("end", row(evidence.RowPending, o1))
	}, Held, ""},
	{evidence.RowsMatchClients, "processed by nobody", func(t *tale) { t.prof.KeepsRows = true; t.publish(o1).rows("end", row(evidence.RowProcessed, o1)) }, Violated, "processed-unseen"},
	{evidence.RowsMatchClients, "no row of what was stored", func(t *tale) { t.publish(o1).rows("end") }, Violated, "missing-row"},
	{evidence.RowsMatchClients, "the count is wrong", func(t *tale) {
		t.publish(o1).snapshot(evidence.Snapshot{Checkpoint: "end", Source: evidence.SourceBroker, Trust: evidence.CountsOnly, Count: 2})
	}, Violated, "count-differs"},
	{evidence.RowsMatchClients, "rows that lag prove no difference", func(t *tale) {
		t.publish(o1).snapshot(evidence.Snapshot{Checkpoint: "end", Source: evidence.SourceBroker, Trust: evidence.Lagging, Rows: []evidence.StoredRow{row(evidence.RowPending, "p9-9-1")}})
	}, Inconclusive, ""},
	{evidence.RowsMatchClients, "no snapshot", func(t *tale) { t.publish(o1) }, Inconclusive, ""},

	{evidence.PartitionIsolation, "a stranger's row stays", func(t *tale) { t.rows("a", in("B", o2)).rows("end", in("B", o2)) }, Held, ""},
	{evidence.PartitionIsolation, "its own row goes after a change of identity", func(t *tale) {
		t.boots("A").rows("a", in("A", o1), in("Z", o2)).
			boots("B").rows("end", in("Z", o2))
	}, Held, ""},
	{evidence.PartitionIsolation, "taken over by migration", func(t *tale) {
		t.boots("A").publish(o1).boots("B", "A").sub("c1#1", "g").deliver("c1#1", o1)
	}, Held, ""},
	{evidence.PartitionIsolation, "gone", func(t *tale) { t.rows("a", in("B", o2)).rows("end") }, Violated, "row-gone"},
	{evidence.PartitionIsolation, "changed", func(t *tale) {
		changed := in("B", o2)
		changed.Attempts = 7
		t.rows("a", in("B", o2)).rows("end", changed)
	}, Violated, "row-changed"},
	{evidence.PartitionIsolation, "delivered across", func(t *tale) {
		t.boots("A").publish(o1).boots("B").sub("c1#1", "g").deliver("c1#1", o1)
	}, Violated, "delivered-across"},
	{evidence.PartitionIsolation, "no stranger", func(t *tale) { t.publish(o1).rows("a").rows("end") }, Inconclusive, ""},

	{evidence.Survives, "lives", func(t *tale) { t.broker(evidence.ProcessStarted, "", nil).publish(o1) }, Held, ""},
	{evidence.Survives, "we ordered it", func(t *tale) {
		t.broker(evidence.ProcessStarted, "", nil).broker(evidence.ProcessExited, "", &evidence.ExitInfo{Code: -1, Signal: "killed", Ordered: true})
	}, Held, ""},
	{evidence.Survives, "crashed", func(t *tale) {
		t.broker(evidence.ProcessStarted, "", nil).broker(evidence.ProcessExited, "panic: nil map", &evidence.ExitInfo{Code: 2})
	}, Violated, "ended-by-itself"},
	{evidence.Survives, "crashed by a signal", func(t *tale) {
		t.broker(evidence.ProcessStarted, "", nil).broker(evidence.ProcessExited, "", &evidence.ExitInfo{Code: -1, Signal: "segmentation fault"})
	}, Violated, "ended-by-itself"},
	{evidence.Survives, "killed from outside", func(t *tale) {
		t.broker(evidence.ProcessStarted, "", nil).broker(evidence.ProcessExited, "", &evidence.ExitInfo{Code: -1, Signal: "killed"})
	}, Inconclusive, ""},
	{evidence.Survives, "never became ready, and ended by itself", func(t *tale) {
		t.broker(evidence.ProcessExited, "it did not become ready", &evidence.ExitInfo{Code: 1}).failed()
	}, Violated, "ended-by-itself"},
	{evidence.Survives, "no process seen", func(t *tale) { t.publish(o1) }, Inconclusive, ""},
}

// ackLost is a delivery whose acknowledgement never reaches the system.
func ackLost(t *tale) *tale {
	return t.fault("lost", evidence.Link).sub("c1#1", "g").publish(o1).deliver("c1#1", o1).on(evidence.AckCalled, "c1#1", o1).
		fire("lost", "drop", "c1", ledger.FrameAck, o1).on(evidence.AckReturned, "c1#1", o1, ackOutcome(evidence.AckSent))
}

// poison is a message whose handler fails n times.
func poison(t *tale, n int) *tale {
	t.sub("c1#1", "g").publish(o1)
	for range n {
		t.deliver("c1#1", o1, again).on(evidence.HandlerFailed, "c1#1", o1).on(evidence.NackReturned, "c1#1", o1)
	}
	return t
}

func in(partition, publish string) evidence.StoredRow {
	return row(evidence.RowPending, publish, func(r *evidence.StoredRow) { r.Partition = partition })
}

func TestGuarantees(t *testing.T) { testHistories(t, cases) }

func testHistories(t *testing.T, cases []history) {
	for _, c := range cases {
		t.Run(c.guarantee+"/"+c.name, func(t *testing.T) {
			tale := newTale()
			c.tell(tale)
			v := verdictOn(tale.judge(t, c.guarantee), c.guarantee)
			if v.Outcome != c.outcome {
				t.Fatalf("outcome %v, want %v: %s %+v", v.Outcome, c.outcome, v.Why, v.Findings)
			}
			if v.Why == "" {
				t.Error("no why")
			}
			if c.kind == "" {
				if len(v.Findings) > 0 {
					t.Errorf("unexpected findings %+v", v.Findings)
				}
				return
			}
			if !slices.ContainsFunc(v.Findings, func(f Finding) bool { return f.Kind == c.kind && f.Text != "" && f.Guarantee == c.guarantee }) {
				t.Errorf("no finding of kind %q in %+v", c.kind, v.Findings)
			}
		})
	}
}

// Every guarantee has a history that holds, one that violates it and one that
// is inconclusive.
func TestEveryGuaranteeHasItsHistories(t *testing.T) {
	for _, g := range Guarantees() {
		for _, o := range []Outcome{Held, Violated, Inconclusive} {
			found := false
			for _, c := range slices.Concat(cases, promises, outboxes) {
				found = found || c.guarantee == g.Name && c.outcome == o
			}
			if !found {
				t.Errorf("%s has no history that is %v", g.Name, o)
			}
		}
		if g.Usual == "" || g.Text == "" || g.Rule == "" {
			t.Errorf("%s is not explained", g.Name)
		}
	}
}

// A plain good run, judged for every guarantee, violates none and holds those
// it exercises.
func TestPlainRunBreaksNothing(t *testing.T) {
	j := newTale()
	j.broker(evidence.ProcessStarted, "", nil).sub("c1#1", "g").publish(o1, o2, o3)
	for _, o := range []string{o1, o2, o3} {
		j.deliver("c1#1", o).effect("c1#1", o).ack("c1#1", o)
	}
	j.drained("settled").after(100*ms).rows("end").business(row(evidence.RowEffect, o1), row(evidence.RowEffect, o2), row(evidence.RowEffect, o3))
	got := j.judge(t, evidence.NoAcceptedLoss, evidence.SingleEffect, evidence.NoPhantom, evidence.Order, evidence.AckIsFinal,
		evidence.RowsMatchClients, evidence.RecoveryBounded, evidence.Survives, evidence.NoDuplicateDelivery)
	if got.Outcome != Held || got.Exit != ExitHeld || len(got.Anomalies) > 0 || !got.Reached {
		t.Errorf("outcome %v exit %d: %s %+v", got.Outcome, got.Exit, got.Why, got.Verdicts)
	}
	if len(got.Messages) != 3 || got.MessagesLeftOut != 0 {
		t.Fatalf("%d messages, %d left out", len(got.Messages), got.MessagesLeftOut)
	}
	parties := []string{}
	for _, i := range got.Messages[0].Custody {
		parties = append(parties, i.Party)
	}
	if want := []string{"client", "store", "consumer", "business", "settled"}; !slices.Equal(parties, want) {
		t.Errorf("custody %v, want %v", parties, want)
	}
}
