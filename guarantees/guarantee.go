package guarantees

import (
	"fmt"
	"slices"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees/internal/ledger"
)

// Guarantee is one promise and the way it is judged.
type Guarantee struct {
	Name  string // evidence.NoAcceptedLoss, …
	Usual string // the field's usual name for it
	Text  string // the promise, in one sentence
	Rule  string // how it is judged, and what proves a violation
	// OfApplication: only an application can promise it, and no system may claim it.
	OfApplication bool

	new func() checker
}

// view is all that a checker may query about the run. Methods shared by
// several checkers are added to it here.
type view struct{ *ledger.View }

// The ledger types that checkers use.
type (
	message    = ledger.Message
	receipt    = ledger.Receipt
	ref        = ledger.Ref
	session    = ledger.Session
	stamp      = ledger.Stamp
	subscriber = ledger.Subscriber
	symbol     = ledger.Symbol
)

// checker judges one guarantee over one history. It implements one or more of
// observer (sees events in order), closer (sees every publish once all events
// are read) and concluder (called once at the end).
type checker any

type concluder interface {
	conclude(v view, out *ruling)
}

// observer sees each event after the ledger has applied it. m and r are nil if
// the event concerns no publish or no logical subscriber; a frame is shown
// once for each message in it. Deliveries forged by the harness's own faults
// are never shown.
type observer interface {
	on() []evidence.Kind
	observe(v view, e *evidence.Event, m *message, r *receipt, out *ruling)
}

// closer sees every publish once, when its rows are known. It must not retain
// m.
type closer interface {
	close(v view, m *message, out *ruling)
}

// Guarantees returns all guarantees, in report order.
func Guarantees() []Guarantee {
	return []Guarantee{
		noAcceptedLoss,
		noDuplicateDelivery,
		singleEffect,
		noPhantom,
		declinedMeansAbsent,
		stableRedeliveryID,
		order,
		expiryHonoured,
		ackIsFinal,
		persistedBeforeAccepted,
		unknownResolved,
		boundedRetry,
		recoveryBounded,
		rowsMatchClients,
		partitionIsolation,
		strangersRefused,
		redeliveryPaced,
		lookupsTrue,
		survives,
		routing,
		messageIdentity,
		exclusiveDelivery,
		settledByHolder,
		attemptsUsed,
		availability,
		answered,
		answerDelivered,
		creditKept,
		sessionStability,
		fairService,
		boundedQueue,
		progressMade,
		redeliveryOrder,
		restoreComplete,
		outboxAtomicity,
	}
}

// CheckClaims refuses a claim that its owner cannot keep.
func CheckClaims(claims ...evidence.Claim) error {
	for _, g := range Guarantees() {
		if g.OfApplication && slices.ContainsFunc(claims, func(c evidence.Claim) bool { return c.Guarantee == g.Name && c.Owner != evidence.OwnerApplication }) {
			return fmt.Errorf("%s is no system's to claim: it takes a transaction of the application's, in which the business row and the message are one; leave it out", g.Name)
		}
	}
	return nil
}

// proof is what a violation rests on. Proof by absence needs a completed run;
// proof by events stands in any run.
type proof uint8

const (
	byEvents proof = iota
	byAbsence
)

// maxFindings bounds the findings shown per verdict; the rest are counted.
const maxFindings = 20

// ruling collects the findings of one checker.
type ruling struct {
	guarantee     string
	unfinished    bool // the run did not complete: absence proves nothing
	instances     int
	broken        int
	findings      []Finding
	unconfirmed   []Finding
	unconfirmedN  int
	open          int // instances that could not be judged
	openWhy       string
	notApplicable string
	layers        []Layer
	measures      []Measure
	held          string // what to add to the count in a Held verdict
}

// violate records a violation.
func (o *ruling) violate(p proof, f Finding) {
	if p == byAbsence && o.unfinished {
		o.undecided("the run did not come to its end, and absence proves nothing before it")
		return
	}
	f.Guarantee = o.guarantee
	o.broken++
	if len(o.findings) < maxFindings {
		o.findings = append(o.findings, f)
	}
}

// show records a finding that is reported but breaks no claim.
func (o *ruling) show(f Finding) {
	f.Guarantee, f.Unconfirmed = o.guarantee, true
	o.unconfirmedN++
	if len(o.unconfirmed) < maxFindings {
		o.unconfirmed = append(o.unconfirmed, f)
	}
}

// undecided records an instance that could not be judged; the first reason is shown.
func (o *ruling) undecided(why string) {
	if o.open++; o.open == 1 {
		o.openWhy = why
	}
}

// verdict derives the verdict from the findings.
func (o *ruling) verdict() Verdict {
	v := Verdict{Guarantee: o.guarantee, Instances: o.instances, Layers: o.layers, Measures: o.measures,
		Findings: append(o.findings, o.unconfirmed...)}
	v.FindingsLeftOut = o.broken + o.unconfirmedN - len(v.Findings)
	switch {
	case o.broken > 0:
		v.Outcome, v.Why = Violated, o.findings[0].Text
		if o.broken > 1 {
			v.Why = fmt.Sprintf("%s (and %d more)", v.Why, o.broken-1)
		}
	case o.notApplicable != "":
		v.Outcome, v.Why = NotApplicable, o.notApplicable
	case o.open > 0:
		v.Outcome, v.Why = Inconclusive, o.openWhy
		if o.open > 1 {
			v.Why = fmt.Sprintf("%s (%d times)", o.openWhy, o.open)
		}
	case o.instances == 0:
		v.Outcome, v.Why = Inconclusive, "nothing in this run put it to the test"
	default:
		v.Outcome, v.Why = Held, fmt.Sprintf("held %d times", o.instances)
		if o.held != "" {
			v.Why += ": " + o.held
		}
	}
	return v
}

// finding starts a finding about a publish, at a logical subscriber if r is
// not nil.
func (v view) finding(m *message, r *receipt, kind string, at HandOver, seqs ...uint64) Finding {
	f := Finding{Kind: kind, HandOver: at, BusinessID: m.BusinessID, PublishID: v.PublishID(m), MessageID: m.MessageID}
	if m.Called.Seq > 1 || !m.Frozen {
		seqs = append(seqs, m.Called.Seq)
	}
	if r != nil {
		f.Subscription = v.Name(r.Sub)
	}
	f.Events = events(seqs...)
	return f
}

// events sorts sequence numbers, dropping duplicates and zeros.
func events(seqs ...uint64) []uint64 {
	seqs = slices.DeleteFunc(seqs, func(s uint64) bool { return s == 0 })
	slices.Sort(seqs)
	return slices.Compact(seqs)
}

// milliseconds converts d to the value of a measure.
func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
