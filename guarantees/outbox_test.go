package guarantees

import (
	"testing"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees/internal/ledger"
)

// commits is a producer's business row of the publish.
func (t *tale) commits(publish string) *tale {
	business, _ := ids(publish)
	return t.add(evidence.Event{Kind: evidence.RecordCommitted, Actor: "p1", BusinessID: business})
}

var outboxes = []history{
	{evidence.OutboxAtomicity, "row and message", func(t *tale) {
		t.sub("c1#1", "g").commits(o1).publish(o1).serve("c1#1", o1).publish(o2).commits(o2)
	}, Held, ""},
	{evidence.OutboxAtomicity, "refused, and accepted when tried again", func(t *tale) {
		t.commits(o1).call(o1).answer(o1, evidence.Rejected).publish(retryOf1)
	}, Held, ""},
	{evidence.OutboxAtomicity, "unknown, and delivered", func(t *tale) {
		t.sub("c1#1", "g").commits(o1).call(o1).answer(o1, evidence.Unknown).deliver("c1#1", o1)
	}, Held, ""},
	{evidence.OutboxAtomicity, "a publish of unknown fate", func(t *tale) {
		t.commits(o1).call(o1).answer(o1, evidence.Unknown)
	}, Inconclusive, ""},
	{evidence.OutboxAtomicity, "producers that commit nothing", func(t *tale) { t.publish(o1) }, Inconclusive, ""},
	{evidence.OutboxAtomicity, "a row, and its message refused", func(t *tale) {
		t.commits(o1).call(o1).answer(o1, evidence.Declined)
	}, Violated, "row-without-message"},
	{evidence.OutboxAtomicity, "a row that no publish followed", func(t *tale) { t.publish(o1).commits(o1).commits(o2) }, Violated, "row-without-message"},
	{evidence.OutboxAtomicity, "a message that was accepted, and no row", func(t *tale) { t.publish(o1).commits(o1).publish(o2) }, Violated, "message-without-row"},
	{evidence.OutboxAtomicity, "a message of unknown fate that was delivered, and no row", func(t *tale) {
		t.sub("c1#1", "g").publish(o1).commits(o1).call(o2).answer(o2, evidence.Unknown).deliver("c1#1", o2)
	}, Violated, "message-without-row"},
}

// Of a message that a relay publishes: r1-1-1 is the message o1, whose row p1 commits.
const (
	relayed1 = "r1-1-1"
	relayed2 = "r1-2-1"
)

func (t *tale) session(k evidence.Kind, actor string) *tale {
	return t.add(evidence.Event{Kind: k, Actor: actor, Session: actor + "#1"})
}

var relays = []history{
	{evidence.OutboxAtomicity, "a row, and its message published by a relay", func(t *tale) { t.commits(o1).publish(relayed1) }, Held, ""},
	{evidence.OutboxAtomicity, "in the outbox, and no relay there", func(t *tale) {
		t.commits(o1).drained("quiet").business(row(evidence.RowUnsent, o1))
	}, Inconclusive, ""},
	{evidence.OutboxAtomicity, "refused, in the outbox, and the relay gone", func(t *tale) {
		t.session(evidence.SessionOpened, "r1").commits(o1).call(relayed1).answer(relayed1, evidence.Declined).session(evidence.SessionEnded, "r1").
			drained("quiet").business(row(evidence.RowUnsent, o1))
	}, Inconclusive, ""},
	{evidence.OutboxAtomicity, "in the outbox, with a relay there that left it", func(t *tale) {
		t.session(evidence.SessionOpened, "r1").commits(o1).commits(o2).publish(relayed2).drained("quiet").session(evidence.SessionEnded, "r1").
			business(row(evidence.RowUnsent, o1), row(evidence.RowSent, o2))
	}, Violated, "row-without-message"},
	{evidence.OutboxAtomicity, "marked, and its publish dropped on the way", func(t *tale) {
		t.commits(o1).call(relayed1).frame(ledger.FramePublish, "r1", relayed1, "drop").answer(relayed1, evidence.Unknown).business(row(evidence.RowSent, o1))
	}, Violated, "row-without-message"},
	{evidence.OutboxAtomicity, "marked, and its relay killed with the publish in hand", func(t *tale) {
		t.commits(o1).call(relayed1).frame(ledger.FramePublish, "r1", relayed1, "hold").fire("died", "kill", "r1", ledger.FramePublish).business(row(evidence.RowSent, o1))
	}, Violated, "row-without-message"},
	{evidence.OutboxAtomicity, "marked, and its publish held for a while", func(t *tale) {
		t.commits(o1).call(relayed1).frame(ledger.FramePublish, "r1", relayed1, "hold").fire("slept", "pause", "r1", ledger.FramePublish).answer(relayed1, evidence.Unknown).business(row(evidence.RowSent, o1))
	}, Inconclusive, ""},
	{evidence.OutboxAtomicity, "dropped once, and published when tried again", func(t *tale) {
		t.commits(o1).call(relayed1).frame(ledger.FramePublish, "r1", relayed1, "drop").answer(relayed1, evidence.Unknown).publish("r1-1-2")
	}, Held, ""},
}

func TestRelays(t *testing.T) { testHistories(t, relays) }

func TestOutbox(t *testing.T) { testHistories(t, outboxes) }

func TestNoSystemClaimsAnOutbox(t *testing.T) {
	claim := evidence.Claim{Guarantee: evidence.OutboxAtomicity, Owner: evidence.OwnerSystem}
	if err := CheckClaims(evidence.Claim{Guarantee: evidence.Order}, claim); err == nil {
		t.Error("a system may claim it")
	}
	claim.Owner = evidence.OwnerApplication
	if err := CheckClaims(claim); err != nil {
		t.Errorf("an application may not: %v", err)
	}
}
