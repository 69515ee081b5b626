package guarantees

import (
	"testing"

	"github.com/custodymq/custody/evidence"
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
