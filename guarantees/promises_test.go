package guarantees

import (
	"fmt"
	"testing"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees/internal/ledger"
)

func to(destination string) func(*evidence.Event) {
	return func(e *evidence.Event) { e.Destination = destination }
}
func under(destination string) func(*evidence.StoredRow) {
	return func(r *evidence.StoredRow) { r.Destination = destination }
}
func named(id string) func(*evidence.StoredRow) {
	return func(r *evidence.StoredRow) { r.MessageID = id }
}
func attempts(n int) func(*evidence.StoredRow) {
	return func(r *evidence.StoredRow) { r.Attempts = n }
}

// listens opens a consumer's session on its own destination, with a window.
func (t *tale) listens(session, subscription, destination string, window int) *tale {
	t.sub(session, subscription)
	for i := len(t.events) - 3; i < len(t.events); i++ {
		t.events[i].Destination, t.events[i].Window = destination, window
	}
	return t
}

// late adds an event that happened before the latest one but is recorded after
// it, as another process's pipe may deliver it.
func (t *tale) late(by time.Duration, add func()) *tale {
	add()
	t.events[len(t.events)-1].At -= by
	return t
}

func (t *tale) handler(session, publish string) *tale {
	return t.on(evidence.HandlerFailed, session, publish).on(evidence.NackCalled, session, publish).on(evidence.NackReturned, session, publish)
}

func (t *tale) broken(session string) *tale {
	return t.on(evidence.SessionEnded, session, "", cause(evidence.CauseDisconnected))
}

func (t *tale) ends() *tale {
	return t.add(evidence.Event{Kind: evidence.WatchEnded})
}

// serves publishes and serves n messages, rotating through the sessions.
func (t *tale) serves(from, n int, sessions ...string) *tale {
	for i := range n {
		p := fmt.Sprintf("p1-%d-1", from+i)
		t.publish(p).serve(sessions[i%len(sessions)], p)
	}
	return t
}

func limits(change func(*evidence.Limits)) func(*tale) {
	return func(t *tale) { change(&t.prof.Limits) }
}

var (
	doesNotStop  = &evidence.ExitInfo{Code: -1, Signal: "killed", Ordered: true, Waited: time.Second}
	answersIn200 = limits(func(l *evidence.Limits) { l.AnswerBound = 200 * ms })
	movesIn200   = limits(func(l *evidence.Limits) { l.ProgressBound = 200 * ms })
	holds2       = limits(func(l *evidence.Limits) { l.MaxPending = 2 })
)

// with applies limit before tell.
func with(limit, tell func(*tale)) func(*tale) {
	return func(t *tale) { limit(t); tell(t) }
}

// promises are the recorded histories of the guarantees on addressing, holding
// and answering.
var promises = []history{
	{evidence.Routing, "each topic to its own", func(t *tale) {
		t.listens("c1#1", "g", "orders", 1).listens("c2#1", "h", "mails", 1).publish(o1).deliver("c1#1", o1, to("orders")).
			call(o2, to("mails")).answer(o2, evidence.Accepted).deliver("c2#1", o2, to("mails")).rows("end", row(evidence.RowPending, o1, under("orders")))
	}, Held, ""},
	{evidence.Routing, "a wildcard matches", func(t *tale) {
		t.listens("c1#1", "g", "orders/#", 1).call(o1, to("orders/eu")).answer(o1, evidence.Accepted).deliver("c1#1", o1, to("orders/eu"))
	}, Held, ""},
	{evidence.Routing, "a wildcard of another kind decides nothing", func(t *tale) {
		t.listens("c1#1", "g", "orders.>", 1).call(o1, to("orders.eu")).answer(o1, evidence.Accepted).deliver("c1#1", o1, to("orders.eu"))
	}, Held, ""},
	{evidence.Routing, "two subscriptions of one session", func(t *tale) {
		t.listens("c1#1", "g", "orders", 1).listens("c1#1", "g", "mails", 1).call(o1, to("mails")).answer(o1, evidence.Accepted).deliver("c1#1", o1, to("mails"))
	}, Held, ""},
	{evidence.Routing, "what we corrupted is ours", func(t *tale) {
		t.fault("bad", evidence.Link).listens("c1#1", "g", "orders", 1).publish(o1, o2).deliver("c1#1", o2, to("orders")).
			fire("bad", "corrupt", "c1", ledger.FrameDeliver, o1).deliver("c1#1", o1, to("order?"))
	}, Held, ""},
	{evidence.Routing, "to one who did not subscribe to it", func(t *tale) {
		t.listens("c1#1", "g", "orders", 1).listens("c2#1", "h", "mails", 1).publish(o1).deliver("c2#1", o1)
	}, Violated, "misrouted"},
	{evidence.Routing, "below what the wildcard covers", func(t *tale) {
		t.listens("c1#1", "g", "orders/+", 1).call(o1, to("orders/eu/paris")).answer(o1, evidence.Accepted).deliver("c1#1", o1)
	}, Violated, "misrouted"},
	{evidence.Routing, "misrouted before its call is recorded", func(t *tale) {
		t.listens("c2#1", "h", "mails", 1).deliver("c2#1", o1).publish(o1)
	}, Violated, "misrouted"},
	{evidence.Routing, "under another destination", func(t *tale) {
		t.listens("c1#1", "g", "#", 1).publish(o1).deliver("c1#1", o1, to("mails"))
	}, Violated, "wrong-destination"},
	{evidence.Routing, "stored under another destination", func(t *tale) {
		t.publish(o1).rows("end", row(evidence.RowPending, o1, under("mails")))
	}, Violated, "row-elsewhere"},
	{evidence.Routing, "nothing delivered", func(t *tale) { t.sub("c1#1", "g").publish(o1) }, Inconclusive, ""},

	{evidence.MessageIdentity, "one ID everywhere", func(t *tale) {
		t.sub("c1#1", "g").publish(o1, o2).serve("c1#1", o1, o2).lookup(o1, evidence.Accepted, evidence.Settled).rows("end", row(evidence.RowPending, o2))
	}, Held, ""},
	{evidence.MessageIdentity, "an alias has the ID of the first", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).call(retryOf1).answer(retryOf1, evidence.Accepted, repeated).serve("c1#1", o1)
	}, Held, ""},
	{evidence.MessageIdentity, "the system's name, not the one asked for", func(t *tale) {
		t.sub("c1#1", "g").call(o1, called("asked")).answer(o1, evidence.Accepted, answeredWith("s:1")).deliver("c1#1", o1, called("s:1"))
	}, Held, ""},
	{evidence.MessageIdentity, "one ID in two destinations", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).call(o2, to("mails")).answer(o2, evidence.Accepted, answeredWith("m1")).deliver("c1#1", o1)
	}, Held, ""},
	{evidence.MessageIdentity, "a chosen ID of another message is declined", func(t *tale) {
		t.sub("c1#1", "g").call(o1, called("x")).answer(o1, evidence.Accepted, answeredWith("x")).deliver("c1#1", o1, called("x")).
			call(o2, called("x")).answer(o2, evidence.Declined, cause(evidence.CauseInvalid))
	}, Held, ""},
	{evidence.MessageIdentity, "IDs of another storage identity", func(t *tale) {
		t.boots("a").sub("c1#1", "g").publish(o1).serve("c1#1", o1).boots("b").call(o2).answer(o2, evidence.Accepted, answeredWith("m1")).deliver("c1#1", o2, called("m1"))
	}, Held, ""},
	{evidence.MessageIdentity, "the answer names another", func(t *tale) {
		t.sub("c1#1", "g").call(o1).deliver("c1#1", o1).answer(o1, evidence.Accepted, answeredWith("m9"))
	}, Violated, "answered-under-another"},
	{evidence.MessageIdentity, "the delivery names another", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1, called("m9"))
	}, Violated, "delivered-under-another"},
	{evidence.MessageIdentity, "the look-up names another", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).lookup(o1, evidence.Accepted, evidence.Stored)
		t.events[len(t.events)-1].MessageID = "m9"
	}, Violated, "found-under-another"},
	{evidence.MessageIdentity, "its row names another", func(t *tale) {
		t.publish(o1).rows("end", row(evidence.RowPending, o1, named("m9")))
	}, Violated, "stored-under-another"},
	{evidence.MessageIdentity, "IDs begin again after a restart", func(t *tale) {
		t.boots("a").sub("c1#1", "g").publish(o1).serve("c1#1", o1).boots("a").call(o2).answer(o2, evidence.Accepted, answeredWith("m1"))
	}, Violated, "shared"},
	{evidence.MessageIdentity, "no ID is known", func(t *tale) {
		t.sub("c1#1", "g").call(o1).answer(o1, evidence.Accepted, answeredWith("")).deliver("c1#1", o1, called(""))
	}, Inconclusive, ""},

	{evidence.ExclusiveDelivery, "each to one", func(t *tale) {
		t.sub("c1#1", "g").sub("c2#1", "g").publish(o1, o2).serve("c1#1", o1).serve("c2#1", o2).after(time.Second).ends()
	}, Held, ""},
	{evidence.ExclusiveDelivery, "fan-out is not a second holder", func(t *tale) {
		t.sub("c1#1", "g").sub("c2#1", "h").publish(o1).deliver("c1#1", o1).deliver("c2#1", o1).after(time.Second).ends()
	}, Held, ""},
	{evidence.ExclusiveDelivery, "given back", func(t *tale) {
		t.sub("c1#1", "g").sub("c2#1", "g").publish(o1).deliver("c1#1", o1).handler("c1#1", o1).deliver("c2#1", o1, again).after(time.Second).ends()
	}, Held, ""},
	{evidence.ExclusiveDelivery, "given back, which is recorded late", func(t *tale) {
		t.sub("c1#1", "g").sub("c2#1", "g").publish(o1).deliver("c1#1", o1).deliver("c2#1", o1, again).
			late(2*ms, func() { t.on(evidence.NackCalled, "c1#1", o1) }).after(time.Second).ends()
	}, Held, ""},
	{evidence.ExclusiveDelivery, "its hold may have run out", func(t *tale) {
		t.sub("c1#1", "g").sub("c2#1", "g").publish(o1).deliver("c1#1", o1).after(97*ms).deliver("c2#1", o1, again).after(time.Second).ends()
	}, Held, ""},
	{evidence.ExclusiveDelivery, "its hold may have run out while its consumer stood still", func(t *tale) {
		t.fault("p", evidence.ClientCrash).sub("c1#1", "g").sub("c2#1", "g").publish(o1).frame(ledger.FrameDeliver, "c1", o1, "hold-after").
			add(evidence.Event{Kind: evidence.FaultFired, Actor: "c1", Fault: "p", Struck: "pause", Link: "c1", Frame: "deliver"}).after(t.prof.Limits.RedeliveryPeriod).heal("p").deliver("c1#1", o1).deliver("c2#1", o1, again, attempt(2)).after(time.Second).ends()
	}, Held, ""},
	{evidence.ExclusiveDelivery, "its session ended", func(t *tale) {
		t.sub("c1#1", "g").sub("c2#1", "g").publish(o1).deliver("c1#1", o1).end("c1#1").deliver("c2#1", o1, again).after(time.Second).ends()
	}, Held, ""},
	{evidence.ExclusiveDelivery, "a fault struck in between", func(t *tale) {
		t.fault("cut", evidence.Link).sub("c1#1", "g").sub("c2#1", "g").publish(o1).deliver("c1#1", o1).fire("cut", "cut-after", "c1", "ack").
			deliver("c2#1", o1, again).after(time.Second).ends()
	}, Held, ""},
	{evidence.ExclusiveDelivery, "a fault struck in between, which is recorded late", func(t *tale) {
		t.fault("cut", evidence.Link).sub("c1#1", "g").sub("c2#1", "g").publish(o1).deliver("c1#1", o1).deliver("c2#1", o1, again).
			late(2*ms, func() { t.fire("cut", "cut-after", "c1", "ack") }).after(time.Second).ends()
	}, Held, ""},
	{evidence.ExclusiveDelivery, "its end is seen just after", func(t *tale) {
		t.sub("c1#1", "g").sub("c2#1", "g").publish(o1).deliver("c1#1", o1).deliver("c2#1", o1, again).end("c1#1").after(time.Second).ends()
	}, Inconclusive, ""},
	{evidence.ExclusiveDelivery, "to two at once, the second marked", func(t *tale) {
		t.sub("c1#1", "g").sub("c2#1", "g").publish(o1).deliver("c1#1", o1).deliver("c2#1", o1, again).after(time.Second).ends()
	}, Violated, "two-holders"},
	{evidence.ExclusiveDelivery, "to one twice", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1).deliver("c1#1", o1, again).after(time.Second).ends()
	}, Violated, "again-while-held"},
	{evidence.ExclusiveDelivery, "on a session that has ended", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).end("c1#1").deliver("c1#1", o1)
	}, Violated, "after-session-end"},
	{evidence.ExclusiveDelivery, "recorded after the end of its session, and before it", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).end("c1#1").late(2*ms, func() { t.deliver("c1#1", o1) }).after(time.Second).ends()
	}, Held, ""},
	{evidence.ExclusiveDelivery, "nothing delivered", func(t *tale) { t.sub("c1#1", "g").publish(o1) }, Inconclusive, ""},

	{evidence.SettledByHolder, "by its holder", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).serve("c1#1", o1)
	}, Held, ""},
	{evidence.SettledByHolder, "late and refused", func(t *tale) {
		t.sub("c1#1", "g").sub("c2#1", "g").publish(o1).deliver("c1#1", o1).after(time.Second).deliver("c2#1", o1, again).
			on(evidence.AckCalled, "c1#1", o1).on(evidence.AckReturned, "c1#1", o1, ackOutcome(evidence.AckRefused))
	}, Held, ""},
	{evidence.SettledByHolder, "called before it went to another", func(t *tale) {
		t.sub("c1#1", "g").sub("c2#1", "g").publish(o1).deliver("c1#1", o1).on(evidence.AckCalled, "c1#1", o1).after(time.Second).
			deliver("c2#1", o1, again).on(evidence.AckReturned, "c1#1", o1, ackOutcome(evidence.AckConfirmed))
	}, Held, ""},
	{evidence.SettledByHolder, "called before it went to another, and recorded after", func(t *tale) {
		t.sub("c1#1", "g").sub("c2#1", "g").publish(o1).deliver("c1#1", o1).after(time.Second).deliver("c2#1", o1, again).
			late(2*ms, func() { t.on(evidence.AckCalled, "c1#1", o1) }).on(evidence.AckReturned, "c1#1", o1, ackOutcome(evidence.AckConfirmed))
	}, Held, ""},
	{evidence.SettledByHolder, "handed back to it in between", func(t *tale) {
		t.sub("c1#1", "g").sub("c2#1", "g").publish(o1).deliver("c1#1", o1).after(time.Second).deliver("c2#1", o1, again).
			on(evidence.AckCalled, "c1#1", o1).deliver("c1#1", o1, again).on(evidence.AckReturned, "c1#1", o1, ackOutcome(evidence.AckConfirmed))
	}, Held, ""},
	{evidence.SettledByHolder, "the other's client had kept an earlier delivery back", func(t *tale) {
		t.sub("c1#1", "g").sub("c2#1", "g").publish(o1).deliver("c1#1", o1, attempt(2), again).deliver("c2#1", o1, attempt(1)).ack("c1#1", o1)
	}, Held, ""},
	{evidence.SettledByHolder, "an ACK of one who never had it", func(t *tale) {
		t.sub("c1#1", "g").sub("c2#1", "g").sub("c3#1", "g").publish(o1).deliver("c1#1", o1, attempt(1)).after(time.Second).deliver("c2#1", o1, attempt(2), again).ack("c3#1", o1)
	}, Violated, "late-ack-confirmed"},
	{evidence.SettledByHolder, "late and confirmed", func(t *tale) {
		t.sub("c1#1", "g").sub("c2#1", "g").publish(o1).deliver("c1#1", o1).after(time.Second).deliver("c2#1", o1, again).ack("c1#1", o1)
	}, Violated, "late-ack-confirmed"},
	{evidence.SettledByHolder, "nothing acknowledged", func(t *tale) { t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1) }, Inconclusive, ""},

	{evidence.AttemptsUsed, "all attempts, then dead", func(t *tale) {
		t.sub("c1#1", "g").publish(o1)
		for i := range 3 {
			t.deliver("c1#1", o1, attempt(i+1)).handler("c1#1", o1)
		}
		t.rows("end", row(evidence.RowDead, o1, poisoned, attempts(3)))
	}, Held, ""},
	{evidence.AttemptsUsed, "rejected for good", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1).handler("c1#1", o1).
			rows("end", row(evidence.RowDead, o1, attempts(1), func(r *evidence.StoredRow) { r.Cause = evidence.CauseRejected }))
	}, Held, ""},
	{evidence.AttemptsUsed, "redriven, and served again", func(t *tale) {
		redriven(t).after(time.Second).serve("c1#1", o1).rows("end")
	}, Inconclusive, ""},
	{evidence.AttemptsUsed, "redriven, and its attempts begin anew", func(t *tale) {
		redriven(t).deliver("c1#1", o1, attempt(1))
	}, Held, ""},
	{evidence.AttemptsUsed, "redriven, and its attempts go on", func(t *tale) {
		redriven(t).deliver("c1#1", o1, attempt(2), again)
	}, Violated, "attempt-of-nothing"},
	{evidence.AttemptsUsed, "redriven, and its consumer has left since", func(t *tale) {
		redriven(t).end("c1#1").sub("c1#2", "g").deliver("c1#2", o1, attempt(2), again)
	}, Held, ""},
	{evidence.AttemptsUsed, "attempts that a fault swallowed", func(t *tale) {
		t.fault("cut", evidence.Link).sub("c1#1", "g").publish(o1).fire("cut", "cut-after", "c1", "ack").
			deliver("c1#1", o1, attempt(3)).handler("c1#1", o1).rows("end", row(evidence.RowDead, o1, poisoned, attempts(3)))
	}, Held, ""},
	{evidence.AttemptsUsed, "a first delivery after its consumer's session had ended", func(t *tale) {
		t.sub("c1#1", "g").sub("c2#1", "g").publish(o1).end("c1#1").deliver("c2#1", o1, attempt(2), again)
	}, Held, ""},
	{evidence.AttemptsUsed, "a first delivery as another session has just ended", func(t *tale) {
		t.sub("c1#1", "g").sub("c2#1", "g").end("c1#1").publish(o1).deliver("c2#1", o1, attempt(2), again)
	}, Held, ""},
	{evidence.AttemptsUsed, "attempts that wait in its client as the run ends", func(t *tale) {
		t.sub("c1#1", "g").publish(o1)
		for range 3 {
			t.frame(ledger.FrameDeliver, "c1", o1, "")
		}
		t.deliver("c1#1", o1, attempt(1)).rows("end", row(evidence.RowDead, o1, poisoned, attempts(3)))
	}, Held, ""},
	{evidence.AttemptsUsed, "dead too early, and its link saw no more either", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).frame(ledger.FrameDeliver, "c1", o1, "").frame(ledger.FrameDeliver, "c1", o1, "").
			deliver("c1#1", o1, attempt(1)).rows("end", row(evidence.RowDead, o1, poisoned, attempts(3)))
	}, Violated, "early"},
	{evidence.AttemptsUsed, "dead too early", func(t *tale) {
		poison(t, 2).rows("end", row(evidence.RowDead, o1, poisoned, attempts(3)))
	}, Violated, "early"},
	{evidence.AttemptsUsed, "dead too early by its own count", func(t *tale) {
		t.fault("cut", evidence.Link)
		poison(t, 2).fire("cut", "cut-after", "c1", "ack").rows("end", row(evidence.RowDead, o1, poisoned, attempts(2)))
	}, Violated, "early"},
	{evidence.AttemptsUsed, "its count is gone", func(t *tale) {
		t.sub("c1#1", "g").publish(o1)
		for i := range 3 {
			t.deliver("c1#1", o1, attempt(i+1)).handler("c1#1", o1)
		}
		t.rows("end", row(evidence.RowDead, o1, poisoned))
	}, Violated, "count-forgotten"},
	{evidence.AttemptsUsed, "a first delivery that is the fourth", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1, attempt(4), again)
	}, Violated, "attempt-of-nothing"},
	{evidence.AttemptsUsed, "the second attempt is marked as the first", func(t *tale) {
		t.prof.MarksAgain = true
		t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1, attempt(1), marked(evidence.MarkFirst)).deliver("c1#1", o1, attempt(2), marked(evidence.MarkFirst))
	}, Violated, "mark-denies-count"},
	{evidence.AttemptsUsed, "the second attempt is marked as a redelivery", func(t *tale) {
		t.prof.MarksAgain = true
		t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1, attempt(1), marked(evidence.MarkFirst)).deliver("c1#1", o1, attempt(2), again)
	}, Held, ""},
	{evidence.AttemptsUsed, "served after its row was dead", func(t *tale) {
		poison(t, 3).rows("mid", row(evidence.RowDead, o1, poisoned, attempts(3))).after(time.Second).deliver("c1#1", o1, again)
	}, Violated, "served-when-dead"},
	{evidence.AttemptsUsed, "served on a new session after a look-up said dead", func(t *tale) {
		poison(t, 2).lookup(o1, evidence.Accepted, evidence.Dead).end("c1#1").sub("c1#2", "g").deliver("c1#2", o1, again)
	}, Violated, "served-when-dead"},
	{evidence.AttemptsUsed, "under way when a look-up said dead", func(t *tale) {
		poison(t, 2).lookup(o1, evidence.Accepted, evidence.Dead).deliver("c1#1", o1, again)
	}, Inconclusive, ""},

	{evidence.Availability, "accepted", func(t *tale) { t.sub("c1#1", "g").publish(o1) }, Held, ""},
	{evidence.Availability, "declined with nobody there", func(t *tale) {
		t.call(o1).answer(o1, evidence.Declined, cause(evidence.CauseNoConsumer)).sub("c1#1", "g").publish(o2)
	}, Held, ""},
	{evidence.Availability, "declined as its consumer came", func(t *tale) {
		t.call(o1).sub("c1#1", "g").answer(o1, evidence.Declined, cause(evidence.CauseNoConsumer)).publish(o2)
	}, Held, ""},
	{evidence.Availability, "declined as its consumer left", func(t *tale) {
		t.sub("c1#1", "g").publish(o2).call(o1).end("c1#1").answer(o1, evidence.Declined, cause(evidence.CauseNoConsumer))
	}, Held, ""},
	{evidence.Availability, "declined for a consumer of something else", func(t *tale) {
		t.listens("c1#1", "g", "mails", 1).sub("c2#1", "h").publish(o2).call(o1, to("stock")).answer(o1, evidence.Declined, cause(evidence.CauseNoConsumer))
	}, Held, ""},
	{evidence.Availability, "at most once, declined as its place was just taken", func(t *tale) {
		t.prof.Redelivers, t.prof.AckCounting = evidence.RedeliverNever, "automatic"
		t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1).call(o2).answer(o2, evidence.Declined, cause(evidence.CauseNoConsumer))
	}, Held, ""},
	{evidence.Availability, "at most once, declined long after its place was free", func(t *tale) {
		t.prof.Redelivers, t.prof.AckCounting = evidence.RedeliverNever, "automatic"
		t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1).after(3*time.Second).call(o2).answer(o2, evidence.Declined, cause(evidence.CauseNoConsumer))
	}, Violated, "false-decline"},
	{evidence.Availability, "declined by a limit", func(t *tale) {
		t.sub("c1#1", "g").publish(o2).call(o1).answer(o1, evidence.Declined, cause(evidence.CauseLimit))
	}, Held, ""},
	{evidence.Availability, "rejected under a fault that is recorded late", func(t *tale) {
		t.fault("disk", evidence.Store).sub("c1#1", "g").publish(o2).call(o1).answer(o1, evidence.Rejected).fire("disk", "fail", "", "insert")
	}, Held, ""},
	{evidence.Availability, "rejected on a session that a restart broke long ago", func(t *tale) {
		t.sub("c1#1", "g").publish(o2).add(evidence.Event{Kind: evidence.Commanded, Actor: ledger.Broker, Command: evidence.CommandRestart})
		t.after(time.Second).call(o1).answer(o1, evidence.Rejected)
	}, Held, ""},
	{evidence.Availability, "rejected on a link that is silent, as its next message shows", func(t *tale) {
		t.sub("c1#1", "g").publish(o2).add(evidence.Event{Kind: evidence.FaultArmed, Fault: "silent", Link: "p1"})
		t.call(o1).answer(o1, evidence.Rejected)
	}, Held, ""},
	{evidence.Availability, "declined with a consumer ready", func(t *tale) {
		t.sub("c1#1", "g").call(o1).answer(o1, evidence.Declined, cause(evidence.CauseNoConsumer))
	}, Violated, "false-decline"},
	{evidence.Availability, "rejected with nothing broken", func(t *tale) {
		t.sub("c1#1", "g").call(o1).answer(o1, evidence.Rejected)
	}, Violated, "false-rejection"},
	{evidence.Availability, "nobody was ready", func(t *tale) { t.publish(o1) }, Inconclusive, ""},

	{evidence.Answered, "in time", with(answersIn200, func(t *tale) {
		t.sub("c1#1", "g").publish(o1).serve("c1#1", o1).lookup(o1, evidence.Accepted, evidence.Settled)
	}), Held, ""},
	{evidence.Answered, "late as the machine stood still", with(answersIn200, func(t *tale) {
		t.sub("c1#1", "g").call(o1).after(200*ms).stood().answer(o1, evidence.Unknown)
	}), Held, ""},
	{evidence.Answered, "cancelled before the bound", with(answersIn200, func(t *tale) {
		t.publish(o2).call(o1).answer(o1, evidence.Unknown)
	}), Held, ""},
	{evidence.Answered, "late because of a fault", with(answersIn200, func(t *tale) {
		t.fault("slow", evidence.Link).publish(o2).call(o1).fire("slow", "delay", "p1", ledger.FramePublish).after(time.Second).answer(o1, evidence.Accepted)
	}), Held, ""},
	{evidence.Answered, "late because of a fault healed just before", with(answersIn200, func(t *tale) {
		t.fault("stop", evidence.BrokerPause).publish(o2).fire("stop", "pause", "", "").heal("stop").call(o1).after(250*ms).answer(o1, evidence.Accepted)
	}), Held, ""},
	{evidence.Answered, "given up", with(answersIn200, func(t *tale) { t.call(o1).after(200*ms).answer(o1, evidence.Unknown) }), Violated, "late"},
	{evidence.Answered, "an acknowledgement given up", with(answersIn200, func(t *tale) {
		t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1).on(evidence.AckCalled, "c1#1", o1).after(200*ms).on(evidence.AckReturned, "c1#1", o1)
	}), Violated, "late"},
	{evidence.Answered, "a subscription given up", with(answersIn200, func(t *tale) {
		t.on(evidence.SubscribeCalled, "c1#1", "").after(200*ms).on(evidence.SubscribeReturned, "c1#1", "")
	}), Violated, "late"},
	{evidence.Answered, "a look-up answered late", with(answersIn200, func(t *tale) {
		t.publish(o1).lookup(o1, evidence.Accepted, evidence.Stored)
		t.events[len(t.events)-1].At += 200 * ms
	}), Violated, "late"},
	{evidence.Answered, "never", with(answersIn200, func(t *tale) { t.call(o1).after(200 * ms).ends() }), Violated, "never"},
	{evidence.Answered, "a stop that never ends", with(answersIn200, func(t *tale) {
		t.publish(o1).broker(evidence.ProcessExited, "", doesNotStop)
	}), Violated, "does-not-stop"},
	{evidence.Answered, "a stop that never ends while the store is struck", with(answersIn200, func(t *tale) {
		t.fault("hold", evidence.Store).publish(o1).fire("hold", "hold", "", "insert").broker(evidence.ProcessExited, "", doesNotStop)
	}), Inconclusive, ""},
	{evidence.Answered, "the run ended too soon", with(answersIn200, func(t *tale) { t.publish(o2).call(o1).ends() }), Inconclusive, ""},
	{evidence.Answered, "the harness failed", with(answersIn200, func(t *tale) { t.call(o1).after(time.Second).ends().failed() }), Inconclusive, ""},
	{evidence.Answered, "no bound", func(t *tale) { t.publish(o1) }, NotApplicable, ""},

	{evidence.AnswerDelivered, "as the frame says", func(t *tale) {
		t.call(o1).frame(ledger.FrameAccept, "p1", o1, "").answer(o1, evidence.Accepted)
	}, Held, ""},
	{evidence.AnswerDelivered, "a refusal as the frame says", func(t *tale) {
		t.call(o1).frame(ledger.FrameAccept, "p1", o1, "")
		t.events[len(t.events)-1].Negative = true
		t.answer(o1, evidence.Declined)
	}, Held, ""},
	{evidence.AnswerDelivered, "we dropped it", func(t *tale) {
		t.fault("gone", evidence.Link).call(o1).frame(ledger.FrameAccept, "p1", o1, "drop").fire("gone", "drop", "p1", ledger.FrameAccept, o1).after(time.Second).answer(o1, evidence.Unknown).
			call(o2).frame(ledger.FrameAccept, "p1", o2, "").answer(o2, evidence.Accepted)
	}, Held, ""},
	{evidence.AnswerDelivered, "we kept the link waiting", func(t *tale) {
		t.fault("slow", evidence.Link).call(o2).frame(ledger.FrameAccept, "p1", o2, "").answer(o2, evidence.Accepted).fire("slow", "delay", "p1", ledger.FrameAccept, o2).
			call(o1).frame(ledger.FrameAccept, "p1", o1, "").after(time.Second).answer(o1, evidence.Unknown)
	}, Held, ""},
	{evidence.AnswerDelivered, "it passed as the caller gave up", func(t *tale) {
		t.call(o1).frame(ledger.FrameAccept, "p1", o1, "").after(40*ms).answer(o1, evidence.Unknown)
	}, Held, ""},
	{evidence.AnswerDelivered, "swallowed", func(t *tale) {
		t.call(o1).frame(ledger.FrameAccept, "p1", o1, "").after(time.Second).answer(o1, evidence.Unknown)
	}, Violated, "swallowed"},
	{evidence.AnswerDelivered, "swallowed, as the answer behind it shows", func(t *tale) {
		t.call(o1).call(o2).frame(ledger.FramePublish, "p1", o1, "").frame(ledger.FramePublish, "p1", o2, "").frame(ledger.FrameAccept, "p1", o1, "").frame(ledger.FrameAccept, "p1", o2, "").
			answer(o2, evidence.Accepted).answer(o1, evidence.Unknown)
	}, Violated, "swallowed"},
	{evidence.AnswerDelivered, "the answer behind it was not heard yet", func(t *tale) {
		t.call(o1).call(o2).frame(ledger.FramePublish, "p1", o1, "").frame(ledger.FramePublish, "p1", o2, "").frame(ledger.FrameAccept, "p1", o1, "").frame(ledger.FrameAccept, "p1", o2, "").
			answer(o1, evidence.Unknown).answer(o2, evidence.Accepted)
	}, Held, ""},
	{evidence.AnswerDelivered, "swallowed for ever", func(t *tale) {
		t.call(o1).frame(ledger.FrameAccept, "p1", o1, "").after(time.Second).ends()
	}, Violated, "swallowed"},
	{evidence.AnswerDelivered, "the client says the contrary", func(t *tale) {
		t.call(o1).frame(ledger.FrameAccept, "p1", o1, "").answer(o1, evidence.Declined)
	}, Violated, "contradicted"},
	{evidence.AnswerDelivered, "the client says accepted of a refusal", func(t *tale) {
		t.call(o1).frame(ledger.FrameAccept, "p1", o1, "")
		t.events[len(t.events)-1].Negative = true
		t.answer(o1, evidence.Accepted)
	}, Violated, "unfounded"},
	{evidence.AnswerDelivered, "no frame was seen", func(t *tale) { t.publish(o1) }, Inconclusive, ""},

	{evidence.CreditKept, "never more than asked for", func(t *tale) {
		t.listens("c1#1", "g", "orders", 2).publish(o1, o2, o3).deliver("c1#1", o1).deliver("c1#1", o2).ack("c1#1", o1).deliver("c1#1", o3)
	}, Held, ""},
	{evidence.CreditKept, "an acknowledgement under way gives a place", func(t *tale) {
		t.listens("c1#1", "g", "orders", 1).publish(o1, o2).frame(ledger.FrameDeliver, "c1", o1, "").frame("ack", "c1", o1, "").frame(ledger.FrameDeliver, "c1", o2, "")
	}, Held, ""},
	{evidence.CreditKept, "what may have run out", func(t *tale) {
		t.listens("c1#1", "g", "orders", 1).publish(o1).deliver("c1#1", o1).after(100*ms).publish(o2).deliver("c1#1", o2)
	}, Held, ""},
	{evidence.CreditKept, "what may have expired", func(t *tale) {
		t.listens("c1#1", "g", "orders", 1).call(o1, ttl(50*ms)).answer(o1, evidence.Accepted).deliver("c1#1", o1).after(50*ms).publish(o2).deliver("c1#1", o2)
	}, Held, ""},
	{evidence.CreditKept, "what may have expired at once", func(t *tale) {
		t.prof.Limits.ExpiryTolerance = time.Second
		t.listens("c1#1", "g", "orders", 1).call(o1, ttl(50*ms)).answer(o1, evidence.Accepted).deliver("c1#1", o1).publish(o2).deliver("c1#1", o2)
	}, Held, ""},
	{evidence.CreditKept, "handed over again is one place", func(t *tale) {
		t.listens("c1#1", "g", "orders", 1).publish(o1).deliver("c1#1", o1).deliver("c1#1", o1, again)
	}, Held, ""},
	{evidence.CreditKept, "a new session has its own", func(t *tale) {
		t.listens("c1#1", "g", "orders", 1).publish(o1, o2).deliver("c1#1", o1).end("c1#1").listens("c1#2", "g", "orders", 1).deliver("c1#2", o2)
	}, Held, ""},
	{evidence.CreditKept, "too many frames", func(t *tale) {
		t.listens("c1#1", "g", "orders", 1).publish(o1, o2).frame(ledger.FrameDeliver, "c1", o1, "").frame(ledger.FrameDeliver, "c1", o2, "")
	}, Violated, "over-credit"},
	{evidence.CreditKept, "too many deliveries where no frames are seen", func(t *tale) {
		t.listens("c1#1", "g", "orders", 2).publish(o1, o2, o3).deliver("c1#1", o1).deliver("c1#1", o2).deliver("c1#1", o3)
	}, Violated, "over-credit"},
	{evidence.CreditKept, "no credit is known", func(t *tale) { t.sub("c1#1", "g").publish(o1).deliver("c1#1", o1) }, Inconclusive, ""},

	{evidence.SessionStability, "closed by its owner", func(t *tale) { t.sub("c1#1", "g").end("c1#1") }, Held, ""},
	{evidence.SessionStability, "its link was cut", func(t *tale) {
		t.fault("cut", evidence.Link).sub("c1#1", "g").fire("cut", "cut-after", "c1", "ack").broken("c1#1")
	}, Held, ""},
	{evidence.SessionStability, "its link was cut, which is recorded late", func(t *tale) {
		t.fault("cut", evidence.Link).sub("c1#1", "g").broken("c1#1").fire("cut", "cut-after", "c1", "ack")
	}, Held, ""},
	{evidence.SessionStability, "its link is still struck", func(t *tale) {
		t.fault("slow", evidence.Link).fire("slow", "delay", "c1", ledger.FrameDeliver).after(time.Second).sub("c1#1", "g").after(time.Second).broken("c1#1")
	}, Held, ""},
	{evidence.SessionStability, "its link was made silent", func(t *tale) {
		t.sub("c1#1", "g").add(evidence.Event{Kind: evidence.FaultArmed, Fault: "silent", Link: "c1"})
		t.after(time.Second).broken("c1#1")
	}, Held, ""},
	{evidence.SessionStability, "its broker ended, which is seen after it", func(t *tale) {
		t.sub("c1#1", "g").broken("c1#1").broker(evidence.ProcessExited, "", &evidence.ExitInfo{Code: 1})
	}, Held, ""},
	{evidence.SessionStability, "the link of another was cut", func(t *tale) {
		t.fault("cut", evidence.Link).sub("c1#1", "g").fire("cut", "cut-after", "c2", "ack").broken("c1#1")
	}, Violated, "ended-by-itself"},
	{evidence.SessionStability, "a cut healed before it began", func(t *tale) {
		t.fault("cut", evidence.Link).fire("cut", "cut-after", "c1", "ack").heal("cut").sub("c1#1", "g").after(time.Second).broken("c1#1")
	}, Violated, "ended-by-itself"},
	{evidence.SessionStability, "no session", func(t *tale) { t.publish(o1) }, Inconclusive, ""},

	{evidence.FairService, "in turn", func(t *tale) {
		t.sub("c1#1", "g").sub("c2#1", "g").serves(1, 60, "c1#1", "c2#1")
	}, Held, ""},
	{evidence.FairService, "the other has its hands full", func(t *tale) {
		t.sub("c1#1", "g").sub("c2#1", "g").publish("p1-99-1").deliver("c2#1", "p1-99-1").serves(1, 60, "c1#1")
	}, Held, ""},
	{evidence.FairService, "the other came later than the backlog", func(t *tale) {
		t.sub("c1#1", "g").publish(o1)
		var backlog []string
		for i := range 60 {
			backlog = append(backlog, fmt.Sprintf("p1-%d-1", 10+i))
		}
		t.publish(backlog...).sub("c2#1", "g").serve("c1#1", backlog...)
	}, Held, ""},
	{evidence.FairService, "a frame was on its way to the other", func(t *tale) {
		t.sub("c1#1", "g").sub("c2#1", "g").serves(1, 15, "c1#1").publish("p1-99-1").frame(ledger.FrameDeliver, "c2", "p1-99-1", "").serves(20, 15, "c1#1")
	}, Held, ""},
	{evidence.FairService, "one gets everything", func(t *tale) {
		t.sub("c1#1", "g").sub("c2#1", "g").serves(1, 21, "c1#1")
	}, Violated, "starved"},
	{evidence.FairService, "nobody competes", func(t *tale) { t.sub("c1#1", "g").serves(1, 40, "c1#1") }, Inconclusive, ""},

	{evidence.BoundedQueue, "at the bound", with(holds2, func(t *tale) {
		t.publish(o1, o2).rows("end", row(evidence.RowPending, o1), row(evidence.RowPending, o2), row(evidence.RowDead, o3))
	}), Held, ""},
	{evidence.BoundedQueue, "each destination has its own", with(holds2, func(t *tale) {
		t.rows("end", row(evidence.RowPending, o1), row(evidence.RowPending, o2), row(evidence.RowPending, o3, under("mails")))
	}), Held, ""},
	{evidence.BoundedQueue, "beyond it", with(holds2, func(t *tale) {
		t.rows("end", row(evidence.RowPending, o1), row(evidence.RowPending, o2), row(evidence.RowPending, o3))
	}), Violated, "over-bound"},
	{evidence.BoundedQueue, "rows that lag", with(holds2, func(t *tale) {
		t.snapshot(evidence.Snapshot{Checkpoint: "end", Source: evidence.SourceBroker, Trust: evidence.Lagging})
	}), Inconclusive, ""},

	{evidence.Progress, "served at once", with(movesIn200, func(t *tale) { t.sub("c1#1", "g").publish(o1, o2).serve("c1#1", o1, o2) }), Held, ""},
	{evidence.Progress, "its consumer was at work", with(movesIn200, func(t *tale) {
		t.sub("c1#1", "g").publish(o1, o2).deliver("c1#1", o1).after(time.Second).ack("c1#1", o1).serve("c1#1", o2)
	}), Held, ""},
	{evidence.Progress, "there was nothing to do", with(movesIn200, func(t *tale) {
		t.sub("c1#1", "g").publish(o1).serve("c1#1", o1).after(time.Second).publish(o2).serve("c1#1", o2)
	}), Held, ""},
	{evidence.Progress, "we held its link", with(movesIn200, func(t *tale) {
		t.fault("slow", evidence.Link).sub("c1#1", "g").publish(o1, o2).serve("c1#1", o1).fire("slow", "hold", "c1", ledger.FrameDeliver).after(time.Second).heal("slow").serve("c1#1", o2)
	}), Held, ""},
	{evidence.Progress, "it was stored under another identity", with(movesIn200, func(t *tale) {
		t.boots("a").sub("c1#1", "g").publish(o1).boots("b").after(time.Second).boots("a").serve("c1#1", o1)
	}), Held, ""},
	{evidence.Progress, "nothing moved during a crash", with(movesIn200, func(t *tale) {
		t.fault("kill", evidence.BrokerCrash).sub("c1#1", "g").publish(o1).fire("kill", "kill", "", "").after(time.Second).serve("c1#1", o1)
	}), Violated, "stalled"},
	{evidence.Progress, "nothing moved until the end", with(movesIn200, func(t *tale) {
		t.sub("c1#1", "g").publish(o1).after(time.Second).drained("deadline").rows("end", row(evidence.RowPending, o1))
	}), Violated, "stalled"},
	{evidence.Progress, "nothing was served", with(movesIn200, func(t *tale) { t.publish(o1) }), Inconclusive, ""},

	{evidence.RedeliveryOrder, "in order, and again in order on a new session", func(t *tale) {
		t.sub("c1#1", "g").publish(o1, o2, o3).deliver("c1#1", o1).deliver("c1#1", o2).deliver("c1#1", o3).end("c1#1").after(time.Second).
			sub("c1#2", "g").deliver("c1#2", o1, again).deliver("c1#2", o2, again).deliver("c1#2", o3, again)
	}, Held, ""},
	{evidence.RedeliveryOrder, "back after it was given back", func(t *tale) {
		t.sub("c1#1", "g").publish(o1, o2).deliver("c1#1", o1).handler("c1#1", o1).deliver("c1#1", o2).deliver("c1#1", o1, again)
	}, Held, ""},
	{evidence.RedeliveryOrder, "behind what was new, its hold having run out", func(t *tale) {
		t.sub("c1#1", "g").publish(o1, o2, o3).deliver("c1#1", o1).end("c1#1").after(time.Second).
			sub("c1#2", "g").deliver("c1#2", o2).deliver("c1#2", o3).deliver("c1#2", o1, again)
	}, Held, ""},
	{evidence.RedeliveryOrder, "another held it when the session began", func(t *tale) {
		t.sub("c1#1", "g").sub("c2#1", "g").publish(o1, o2, o3).deliver("c1#1", o1).end("c1#1").after(60*ms).
			deliver("c2#1", o2).deliver("c2#1", o3).deliver("c2#1", o1, again)
	}, Inconclusive, ""},
	{evidence.RedeliveryOrder, "while consumers compete", func(t *tale) {
		t.sub("c1#1", "g").publish(o1, o2, o3).deliver("c1#1", o1).deliver("c1#1", o3).sub("c2#1", "g").deliver("c1#1", o2)
	}, Held, ""},
	{evidence.RedeliveryOrder, "the other way round on a new session", func(t *tale) {
		t.sub("c1#1", "g").publish(o1, o2, o3).deliver("c1#1", o1).deliver("c1#1", o2).deliver("c1#1", o3).end("c1#1").after(60*ms).
			sub("c1#2", "g").deliver("c1#2", o3, again).deliver("c1#2", o2, again).deliver("c1#2", o1, again)
	}, Violated, "out-of-order"},
	{evidence.RedeliveryOrder, "one message", func(t *tale) { t.sub("c1#1", "g").publish(o1).serve("c1#1", o1) }, Inconclusive, ""},

	{evidence.NoAcceptedLoss, "at most once, the handler fails", func(t *tale) {
		t.prof.Redelivers, t.prof.AckCounting = evidence.RedeliverNever, "automatic"
		t.sub("c1#1", "g")
		for _, o := range []string{o1, o2} {
			t.call(o).answer(o, evidence.Accepted, inMemory)
		}
		t.deliver("c1#1", o1).on(evidence.HandlerFailed, "c1#1", o1).deliver("c1#1", o2).effect("c1#1", o2).drained("quiet").business(row(evidence.RowEffect, o2))
	}, Held, "lost-by-consumer"},
	{evidence.NoAcceptedLoss, "at most once, on its way to one that leaves", func(t *tale) {
		t.prof.Redelivers, t.prof.AckCounting = evidence.RedeliverNever, "automatic"
		t.sub("c1#1", "g").sub("c2#1", "g").call(o1).answer(o1, evidence.Accepted, inMemory).end("c2#1").
			call(o2).answer(o2, evidence.Accepted, inMemory).deliver("c1#1", o2).drained("quiet")
	}, Held, "lost-by-consumer"},
	{evidence.NoAcceptedLoss, "at most once, published after one has left", func(t *tale) {
		t.prof.Redelivers, t.prof.AckCounting = evidence.RedeliverNever, "automatic"
		t.sub("c1#1", "g").sub("c2#1", "g").end("c2#1").after(time.Second)
		for _, o := range []string{o1, o2} {
			t.call(o).answer(o, evidence.Accepted, inMemory)
		}
		t.deliver("c1#1", o2).drained("quiet")
	}, Violated, "lost-prefix"},
	{evidence.NoAcceptedLoss, "at most once, with nothing broken, is lost", func(t *tale) {
		t.prof.Redelivers, t.prof.AckCounting = evidence.RedeliverNever, "automatic"
		t.sub("c1#1", "g")
		for _, o := range []string{o1, o2, o3} {
			t.call(o).answer(o, evidence.Accepted, inMemory)
		}
		t.deliver("c1#1", o1).deliver("c1#1", o3).drained("quiet")
	}, Violated, "lost-middle"},
}

func TestPromises(t *testing.T) { testHistories(t, promises) }

// redriven is a message that used up its attempts and was redriven with new
// ones.
func redriven(t *tale) *tale {
	poison(t, 3).rows("mid", row(evidence.RowDead, o1, poisoned, attempts(3)))
	b, m := ids(o1)
	return t.add(evidence.Event{Kind: evidence.Commanded, Command: evidence.CommandRedrive, BusinessID: b, MessageID: m})
}
