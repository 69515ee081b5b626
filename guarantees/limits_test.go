package guarantees

import (
	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees/internal/ledger"
)

func (t *tale) probed(name string, wanted, got evidence.ProbeOutcome, causes ...evidence.Cause) *tale {
	e := evidence.Event{Kind: evidence.Probed, Actor: "harness", Probe: name, Wanted: wanted, Got: got}
	if len(causes) == 2 {
		e.WantedCause, e.Cause = causes[0], causes[1]
	}
	return t.add(e)
}

func (t *tale) exits(ordered bool) *tale {
	return t.broker(evidence.ProcessExited, "", &evidence.ExitInfo{Code: 2, Ordered: ordered})
}

// givesBack NACKs a message that the session holds.
func (t *tale) givesBack(session, publish string, o evidence.AckOutcome) *tale {
	return t.on(evidence.NackCalled, session, publish).on(evidence.NackReturned, session, publish, ackOutcome(o))
}

func paced(t *tale) *tale {
	t.prof.Limits.NackDelay = 30 * ms
	return t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1)
}

const order1 = "o1" // the business ID of o1

func sameOrder(e *evidence.Event) { e.BusinessID = order1 }

// handed makes a link show a deliver frame before the delivery.
func handed(t *tale) *tale {
	return t.frame(ledger.FrameDeliver, "c1", o1, "").deliver("c1#1", o1)
}

// limitCases are histories of probes, redelivery pacing and look-ups.
var limitCases = []history{
	{evidence.StrangersRefused, "each as the protocol says", func(t *tale) {
		t.probed("wrong-token", evidence.ProbeEnded, evidence.ProbeEnded).probed("topic", evidence.ProbeAccepted, evidence.ProbeAccepted).
			probed("topic-over", evidence.ProbeRefused, evidence.ProbeRefused, evidence.CauseInvalid, evidence.CauseInvalid)
	}, Held, ""},
	{evidence.StrangersRefused, "a stranger is let in", func(t *tale) {
		t.probed("wrong-token", evidence.ProbeEnded, evidence.ProbeAccepted)
	}, Violated, "probe-accepted"},
	{evidence.StrangersRefused, "what is within the limit is refused", func(t *tale) {
		t.probed("topic", evidence.ProbeAccepted, evidence.ProbeRefused)
	}, Violated, "probe-refused"},
	{evidence.StrangersRefused, "an answer that is due does not come", func(t *tale) {
		t.probed("redrive-of-nothing", evidence.ProbeRefused, evidence.ProbeUnanswered)
	}, Violated, "probe-unanswered"},
	{evidence.StrangersRefused, "refused for another cause than is stated", func(t *tale) {
		t.probed("window", evidence.ProbeRefused, evidence.ProbeRefused, evidence.CauseLimit, evidence.CauseNoConsumer)
	}, Violated, "probe-cause"},
	{evidence.StrangersRefused, "let in while a fault is at work is let in all the same", func(t *tale) {
		t.fault("slow", evidence.Store).fire("slow", "slow", "", "").probed("wrong-token", evidence.ProbeEnded, evidence.ProbeAccepted)
	}, Violated, "probe-accepted"},
	{evidence.StrangersRefused, "unanswered while a fault is at work", func(t *tale) {
		t.fault("stop", evidence.BrokerPause).fire("stop", "pause", "", "").probed("ping", evidence.ProbeAnswered, evidence.ProbeUnanswered)
	}, Inconclusive, ""},
	{evidence.StrangersRefused, "unanswered as the machine stood still", func(t *tale) {
		t.stood().probed("ping", evidence.ProbeAnswered, evidence.ProbeUnanswered)
	}, Inconclusive, ""},
	{evidence.StrangersRefused, "let in as the machine stood still", func(t *tale) {
		t.stood().probed("wrong-token", evidence.ProbeEnded, evidence.ProbeAccepted)
	}, Violated, "probe-accepted"},
	{evidence.StrangersRefused, "ended with its broker, which we ended", func(t *tale) {
		t.exits(true).probed("ping", evidence.ProbeAnswered, evidence.ProbeEnded)
	}, Inconclusive, ""},
	{evidence.StrangersRefused, "ended with its broker, which fell", func(t *tale) {
		t.exits(false).probed("request-cut", evidence.ProbeRefused, evidence.ProbeEnded)
	}, Violated, "probe-ended"},
	{evidence.StrangersRefused, "a probe that could not be made", func(t *tale) {
		t.probed("wrong-token", evidence.ProbeEnded, evidence.NoProbeOutcome)
	}, Inconclusive, ""},
	{evidence.StrangersRefused, "no probe", func(t *tale) { t.sub("c1#1", "g").publish(o1) }, Inconclusive, ""},

	{evidence.PersistedBeforeAccepted, "answered when the write was done, before the end of the hold was recorded", func(t *tale) {
		t.fault("held", evidence.Store).call(o1).fire("held", "hold", "", "insert", o1).frame(ledger.FrameAccept, "p1", o1, "").answer(o1, evidence.Accepted).
			add(evidence.Event{Kind: evidence.StoreReturned, Actor: ledger.Broker, Frame: "insert", Items: item(o1), OK: true})
		t.events[len(t.events)-1].At -= 3 * ms
		t.heal("held")
	}, Held, ""},
	{evidence.PersistedBeforeAccepted, "answered before the write was done", func(t *tale) {
		t.fault("held", evidence.Store).call(o1).fire("held", "hold", "", "insert", o1).frame(ledger.FrameAccept, "p1", o1, "").answer(o1, evidence.Accepted).
			add(evidence.Event{Kind: evidence.StoreReturned, Actor: ledger.Broker, Frame: "insert", Items: item(o1), OK: true}).heal("held")
	}, Violated, "accepted-before-persisted"},
	{evidence.RedeliveryPaced, "after its time", func(t *tale) {
		paced(t).givesBack("c1#1", o1, evidence.AckConfirmed).after(29*ms).deliver("c1#1", o1, again)
	}, Held, ""},
	{evidence.RedeliveryPaced, "too soon", func(t *tale) {
		paced(t).givesBack("c1#1", o1, evidence.AckConfirmed).after(10*ms).deliver("c1#1", o1, again)
	}, Violated, "too-soon"},
	{evidence.RedeliveryPaced, "too soon to a competitor, and before the NACK was answered", func(t *tale) {
		paced(t).sub("c2#1", "g").on(evidence.NackCalled, "c1#1", o1).deliver("c2#1", o1, again).on(evidence.NackReturned, "c1#1", o1, ackOutcome(evidence.AckConfirmed))
	}, Violated, "too-soon"},
	{evidence.RedeliveryPaced, "a NACK of what was given to another already", func(t *tale) {
		paced(t).sub("c2#1", "g").on(evidence.NackCalled, "c1#1", o1).deliver("c2#1", o1, again).on(evidence.NackReturned, "c1#1", o1, ackOutcome(evidence.AckRefused))
	}, Inconclusive, ""},
	{evidence.RedeliveryPaced, "a broker that was started anew serves at once", func(t *tale) {
		paced(t).givesBack("c1#1", o1, evidence.AckConfirmed).exits(true).boots("a").deliver("c1#1", o1, again)
	}, Inconclusive, ""},
	{evidence.RedeliveryPaced, "sent back by command", func(t *tale) {
		paced(t).givesBack("c1#1", o1, evidence.AckConfirmed).
			on(evidence.DeadLettered, "admin", o1, cause(evidence.CauseAttempts)).deliver("c1#1", o1, again)
	}, Inconclusive, ""},
	{evidence.RedeliveryPaced, "nobody knows whether the NACK arrived", func(t *tale) {
		paced(t).givesBack("c1#1", o1, evidence.AckUnknown).deliver("c1#1", o1, again)
	}, Inconclusive, ""},
	{evidence.RedeliveryPaced, "nothing is stated", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1).givesBack("c1#1", o1, evidence.AckConfirmed).deliver("c1#1", o1, again)
	}, NotApplicable, ""},

	{evidence.RestoreComplete, "what came after the backup is missing", func(t *tale) {
		rolledBack(t, o1, o2).serve("c1#2", o1).drained("settled").rows("end").business(row(evidence.RowEffect, o1))
	}, Held, ""},
	{evidence.RestoreComplete, "what came before the backup is missing", func(t *tale) {
		rolledBack(t, o1, o2).drained("settled").rows("end").business()
	}, Violated, "not-restored"},
	{evidence.RestoreComplete, "what came before the backup waits, and nobody is there", func(t *tale) {
		rolledBack(t, o1, o2).end("c1#2").drained("no-consumer").rows("end", row(evidence.RowPending, o1)).business()
	}, Held, ""},
	{evidence.RestoreComplete, "what came before the backup was settled before it", func(t *tale) {
		rolledBack(t.sub("c0#1", "g").publish(o3).serve("c0#1", o3).end("c0#1"), o1, o2).serve("c1#2", o1).drained("settled").rows("end").
			business(row(evidence.RowEffect, o1), row(evidence.RowEffect, o3))
	}, Held, ""},
	{evidence.RestoreComplete, "nothing was restored", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).drained("settled").rows("end")
	}, Inconclusive, ""},

	{evidence.LookupsTrue, "stored, then settled", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).lookup(o1, evidence.Accepted, evidence.Stored).serve("c1#1", o1).lookup(o1, evidence.Accepted, evidence.Settled)
	}, Held, ""},
	{evidence.LookupsTrue, "settled, and nobody has acknowledged it", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1).lookup(o1, evidence.Accepted, evidence.Settled)
	}, Violated, "lookup-settled"},
	{evidence.LookupsTrue, "settled while its acknowledgement is under way", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1).on(evidence.AckCalled, "c1#1", o1).lookup(o1, evidence.Accepted, evidence.Settled)
	}, Held, ""},
	{evidence.LookupsTrue, "dead, and it was never handed out", func(t *tale) {
		handed(t.sub("c1#1", "g").publish(o1)).publish(o2).lookup(o2, evidence.Accepted, evidence.Dead)
	}, Violated, "lookup-dead"},
	{evidence.LookupsTrue, "dead, and it was handed out: it may have been", func(t *tale) {
		handed(t.sub("c1#1", "g").publish(o1)).lookup(o1, evidence.Accepted, evidence.Dead)
	}, Held, ""},
	{evidence.LookupsTrue, "dead, and it was acknowledged", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).serve("c1#1", o1).lookup(o1, evidence.Accepted, evidence.Dead)
	}, Violated, "lookup-dead"},
	{evidence.LookupsTrue, "stored, and it is a dead letter", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1).rows("dead", row(evidence.RowDead, o1, poisoned)).lookup(o1, evidence.Accepted, evidence.Stored)
	}, Violated, "lookup-stored"},
	{evidence.LookupsTrue, "never stored, and it was accepted", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).lookup(o1, evidence.Rejected, evidence.Absent)
	}, Violated, "lookup-absent"},
	{evidence.LookupsTrue, "forgotten while it waits", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).lookup(o1, evidence.Unknown, evidence.Forgotten)
	}, Violated, "lookup-forgotten"},
	{evidence.LookupsTrue, "forgotten within the time that IDs are kept", func(t *tale) {
		t.prof.Limits.Remembers = remembered
		t.sub("c1#1", "g").publish(o1).serve("c1#1", o1).lookup(o1, evidence.Unknown, evidence.Forgotten)
	}, Violated, "lookup-forgotten"},
	{evidence.LookupsTrue, "settled, and its time to live has passed", func(t *tale) {
		t.sub("c1#1", "g").call(o1, ttl(50*ms)).answer(o1, evidence.Accepted).after(10000*ms).lookup(o1, evidence.Accepted, evidence.Settled)
	}, Violated, "lookup-settled"},
	{evidence.LookupsTrue, "settled in time, and its time to live has passed", func(t *tale) {
		t.sub("c1#1", "g").call(o1, ttl(50*ms)).answer(o1, evidence.Accepted).serve("c1#1", o1).after(10000*ms).lookup(o1, evidence.Accepted, evidence.Settled)
	}, Held, ""},
	{evidence.LookupsTrue, "forgotten, and its time to live has passed", func(t *tale) {
		t.sub("c1#1", "g").call(o1, ttl(50*ms)).answer(o1, evidence.Accepted).after(10000*ms).lookup(o1, evidence.Unknown, evidence.Forgotten)
	}, Held, ""},
	{evidence.LookupsTrue, "settled, and it was discarded", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1).on(evidence.Purged, "admin", o1).lookup(o1, evidence.Accepted, evidence.Settled)
	}, Violated, "lookup-settled"},
	{evidence.LookupsTrue, "forgotten after the time that IDs are kept", func(t *tale) {
		t.prof.Limits.Remembers = remembered
		t.sub("c1#1", "g").publish(o1).serve("c1#1", o1).after(2*remembered).lookup(o1, evidence.Unknown, evidence.Forgotten)
	}, Held, ""},
	{evidence.LookupsTrue, "of several the one that says most: one waits", func(t *tale) {
		handed(t.sub("c1#1", "g").publish(o1)).ack("c1#1", o1).call(retryOf1, sameOrder).answer(retryOf1, evidence.Accepted, sameOrder, answeredWith("m9")).
			lookup(o1, evidence.Accepted, evidence.Settled)
	}, Violated, "lookup-settled"},
	{evidence.LookupsTrue, "of several the one that says most: the older waits", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).call(retryOf1, sameOrder).answer(retryOf1, evidence.Accepted, sameOrder, answeredWith("m9")).frame(ledger.FrameDeliver, "c1", o2, "").
			deliver("c1#1", retryOf1, called("m9"), sameOrder).on(evidence.AckCalled, "c1#1", retryOf1, called("m9")).on(evidence.AckReturned, "c1#1", retryOf1, called("m9"), ackOutcome(evidence.AckConfirmed)).
			lookup(o1, evidence.Accepted, evidence.Settled)
	}, Violated, "lookup-settled"},
	{evidence.LookupsTrue, "refused, and looked up: never stored", func(t *tale) {
		t.call(o1).answer(o1, evidence.Declined).lookup(o1, evidence.Rejected, evidence.Absent)
	}, Held, ""},
	{evidence.LookupsTrue, "refused, and looked up: stored", func(t *tale) {
		t.call(o1).answer(o1, evidence.Declined).lookup(o1, evidence.Accepted, evidence.Stored)
	}, Violated, "lookup-stored"},
	{evidence.LookupsTrue, "expired, and said to wait", func(t *tale) {
		t.sub("c1#1", "g").call(o1, ttl(100*ms)).answer(o1, evidence.Accepted).after(200*ms).lookup(o1, evidence.Accepted, evidence.Stored)
	}, Violated, "lookup-stored"},
	{evidence.LookupsTrue, "about to expire", func(t *tale) {
		t.sub("c1#1", "g").call(o1, ttl(100*ms)).answer(o1, evidence.Accepted).after(95*ms).lookup(o1, evidence.Unknown, evidence.Forgotten)
	}, Held, ""},
	{evidence.LookupsTrue, "in doubt allows every answer", func(t *tale) {
		t.sub("c1#1", "g").call(o1).answer(o1, evidence.Unknown).lookup(o1, evidence.Rejected, evidence.Absent)
	}, Held, ""},
	{evidence.LookupsTrue, "a crash after the confirmation may bring it back", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).serve("c1#1", o1).exits(false).boots("a").lookup(o1, evidence.Accepted, evidence.Stored)
	}, Held, ""},
	{evidence.LookupsTrue, "discarded, and said to be dead", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1).on(evidence.Purged, "admin", o1, command(evidence.CommandDiscard)).lookup(o1, evidence.Accepted, evidence.Dead)
	}, Violated, "lookup-dead"},
	{evidence.LookupsTrue, "a clock that is wrong allows every answer", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).clock(ms).lookup(o1, evidence.Unknown, evidence.Forgotten)
	}, Held, ""},
	{evidence.LookupsTrue, "an error is no answer", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).lookup(o1, evidence.Unknown, evidence.NoStanding)
	}, Inconclusive, ""},
}

func init() { cases = append(cases, limitCases...) }

const remembered = 1000 * ms
