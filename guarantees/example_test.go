package guarantees_test

import (
	"fmt"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees"
)

// A broker accepts two messages, delivers one of them, and reports an empty
// store at the end: the other message is lost.
func ExampleJudge() {
	events := []evidence.Event{
		{Kind: evidence.SubscribeCalled, Actor: "c1", Session: "c1#1", Destination: "orders"},
		{Kind: evidence.SubscribeReturned, Actor: "c1", Session: "c1#1", Destination: "orders", OK: true},
		{Kind: evidence.PublishCalled, Actor: "p1", PublishID: "p1-1-1", BusinessID: "order-1", Destination: "orders"},
		{Kind: evidence.PublishReturned, Actor: "p1", PublishID: "p1-1-1", Acceptance: evidence.Accepted, HeldBy: evidence.HeldByStore},
		{Kind: evidence.PublishCalled, Actor: "p1", PublishID: "p1-2-1", BusinessID: "order-2", Destination: "orders"},
		{Kind: evidence.PublishReturned, Actor: "p1", PublishID: "p1-2-1", Acceptance: evidence.Accepted, HeldBy: evidence.HeldByStore},
		{Kind: evidence.Delivered, Actor: "c1", Session: "c1#1", PublishID: "p1-1-1", BusinessID: "order-1"},
		{Kind: evidence.AckCalled, Actor: "c1", Session: "c1#1", PublishID: "p1-1-1"},
		{Kind: evidence.AckReturned, Actor: "c1", Session: "c1#1", PublishID: "p1-1-1", Ack: evidence.AckConfirmed},
		{Kind: evidence.DrainEnded, Drain: evidence.DrainSettled},
	}
	h := evidence.History{
		Manifest: evidence.Manifest{
			Format: evidence.FormatVersion,
			Expect: []string{evidence.NoAcceptedLoss, evidence.NoDuplicateDelivery},
			Claims: []evidence.Claim{
				{Guarantee: evidence.NoAcceptedLoss, Owner: evidence.OwnerSystem},
				{Guarantee: evidence.NoDuplicateDelivery, Owner: evidence.OwnerSystem},
			},
			End: &evidence.End{How: evidence.EndCompleted},
		},
		Events: func(yield func(*evidence.Event, error) bool) {
			for i, e := range events {
				e.Seq, e.At = uint64(i+1), time.Duration(i)*time.Millisecond
				if !yield(&e, nil) {
					return
				}
			}
		},
	}
	j, err := guarantees.Judge(&h)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, v := range j.Verdicts {
		fmt.Printf("%s: %s, %s\n", v.Guarantee, v.Outcome, v.Why)
	}
	fmt.Println("shown by events", j.Broken[0].Events)
	fmt.Println("exit", j.Exit)
	// Output:
	// no-accepted-loss: violated, order-2 (p1-2-1) was lost at broker → store: accepted and never served
	// no-duplicate-delivery: held, held 1 times
	// shown by events [5 6]
	// exit 1
}

// A claim that does not cover the fault that fired takes no part.
func ExampleCombine() {
	held := guarantees.Verdict{Outcome: guarantees.Held, Claimed: true, Covered: true}
	open := guarantees.Verdict{Outcome: guarantees.Inconclusive, Claimed: true, Covered: true}
	uncovered := guarantees.Verdict{Outcome: guarantees.Violated, Claimed: true}

	fmt.Println(guarantees.Combine([]guarantees.Verdict{held, uncovered}))
	fmt.Println(guarantees.Combine([]guarantees.Verdict{held, open}))
	fmt.Println(guarantees.Combine([]guarantees.Verdict{uncovered}))
	// Output:
	// held
	// inconclusive
	// not-claimed
}
