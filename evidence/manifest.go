package evidence

import (
	"iter"
	"time"
)

// FormatVersion of the evidence that this code writes. Older formats are read,
// newer ones are rejected. Since 2 a run that has ended is sealed.
const FormatVersion = 2

// Manifest says what a run was: written when it starts, replaced when it ends.
// Without End nothing in the run can be Held.
type Manifest struct {
	Format       int               `json:"format"`
	Run          string            `json:"run"`
	System       string            `json:"system"`
	Spec         string            `json:"spec,omitempty"` // how the run's caller named system and profile
	Profile      Profile           `json:"profile"`
	Claims       []Claim           `json:"claims"` // of the system and of the application's mechanisms
	Scenario     string            `json:"scenario"`
	Why          string            `json:"why"`
	Expect       []string          `json:"expect"`  // the guarantees exercised
	Reached      []Condition       `json:"reached"` // what must have happened for a verdict to count
	Faults       []FaultLabel      `json:"faults"`
	Known        []Known           `json:"known,omitempty"`
	Inapplicable string            `json:"inapplicable,omitempty"` // why this scenario cannot run on this system; then there are no events
	Seed         uint64            `json:"seed"`
	Scale        float64           `json:"scale"` // factor on deadlines, bounds and tolerances
	Versions     map[string]string `json:"versions"`
	Machine      Machine           `json:"machine"`
	Defect       string            `json:"defect,omitempty"` // a seeded defect that was switched on
	StartedAt    time.Time         `json:"startedAt"`
	End          *End              `json:"end,omitempty"`
}

// End says how a run ended, and seals its files.
type End struct {
	How    EndHow        `json:"how"`
	Reason string        `json:"reason,omitempty"`
	After  time.Duration `json:"after"`
	Events uint64        `json:"events"`          // the number of events on disk
	Files  []SealedFile  `json:"files,omitempty"` // every file of the run except the manifest
	Seal   string        `json:"seal,omitempty"`  // of the manifest itself, Files and all: see sealManifest
}

// Known is a violation that the profile's owner is aware of: until its date it is
// reported, and does not fail the run.
type Known struct {
	Guarantee string `json:"guarantee"`
	Reason    string `json:"reason"` // such as the number of a ticket
	Until     string `json:"until"`  // the last day on which it counts: 2026-12-31
}

// Day is the form of Known.Until.
const Day = "2006-01-02"

// EndHow is how a run ended.
type EndHow string

const (
	EndCompleted EndHow = "completed"
	EndCancelled EndHow = "cancelled"
	EndFailed    EndHow = "failed" // the harness or the machine failed: no verdict can be Held
)

// Machine that a run was made on.
type Machine struct {
	OS    string `json:"os"`
	Arch  string `json:"arch"`
	Cores int    `json:"cores"`
}

// FaultLabel is one fault of the script, as data.
type FaultLabel struct {
	Label string `json:"label"`
	Class Class  `json:"class"`
	Verb  string `json:"verb"`
	Line  string `json:"line"` // as printed in the script
}

// Condition is one thing that must have happened, as data, so that awaiting it
// and judging it mean the same. Which fields a verb uses is in script/condition.go.
type Condition struct {
	Verb    string `json:"verb"`
	Subject string `json:"subject,omitempty"` // a business ID, a fault's label, an actor
	Word    string `json:"word,omitempty"`    // an acceptance, a checkpoint
	Times   int    `json:"times,omitzero"`    // at least; 0 means 1
	Line    string `json:"line"`              // as printed in the script
}

// The verbs of conditions.
const (
	CondFired      = "fired"      // fault Subject fired
	CondDelivered  = "delivered"  // Subject was handed to an application, Times times
	CondRedelivery = "redelivery" // Subject was handed out again (a second Delivered event of one publish and subscription)
	CondAcceptance = "acceptance" // a publish of Subject returned acceptance Word
	CondEffect     = "effect"     // an effect of Subject was committed
	CondAbsorbed   = "absorbed"   // the consumption log absorbed Subject, Times times
	CondAcked      = "acked"      // an acknowledgement of Subject was confirmed or sent
	CondInFlight   = "in-flight"  // when fault Subject fired, at least Times publishes were accepted or called and not yet settled
	CondStored     = "stored"     // a snapshot (of checkpoint Word if given) has a pending row of Subject
	CondDead       = "dead"       // Subject was seen dead-lettered, in a snapshot
	CondResolved   = "resolved"   // a lookup of Subject settled it
	CondConnected  = "connected"  // actor Subject has opened a session, Times times
	CondFailed     = "failed"     // the handler failed on Subject, Times times
	CondCarried    = "carried"    // Times frames of kind Word passed on the link of Subject
	CondGone       = "gone"       // the newest broker snapshot has no pending row of Subject
)

// Class of a fault. A claim covers a run if and only if every class that fired
// is among those it is made under.
type Class string

const (
	ClientCrash   Class = "client-crash"
	BrokerRestart Class = "broker-restart"
	BrokerCrash   Class = "broker-crash"
	BrokerPause   Class = "broker-pause"
	PowerLoss     Class = "power-loss"
	Link          Class = "link"
	Store         Class = "store"
	Clock         Class = "clock"
	NodeLoss      Class = "node-loss"
	Overload      Class = "overload"
)

// Classes is the list of fault classes, in the order of reports.
func Classes() []Class {
	return []Class{ClientCrash, BrokerRestart, BrokerCrash, BrokerPause, PowerLoss, Link, Store, Clock, NodeLoss, Overload}
}

// Owner of a claim.
type Owner string

const (
	OwnerSystem      Owner = "system"
	OwnerApplication Owner = "application"
)

// Claim is a promise: guarantee G holds under these classes of fault.
type Claim struct {
	Guarantee string  `json:"guarantee"`
	Under     []Class `json:"under"`
	Owner     Owner   `json:"owner"`
	Source    string  `json:"source,omitempty"` // where the promise is made: a document's section
}

// Covers reports whether the claim is made for a run in which these classes
// of fault fired. A run without faults is always covered.
func (c Claim) Covers(fired []Class) bool {
	for _, f := range fired {
		covered := false
		for _, u := range c.Under {
			covered = covered || u == f
		}
		if !covered {
			return false
		}
	}
	return true
}

// Profile is one configuration of a system, with what judging must know about it.
type Profile struct {
	Name             string     `json:"name"`
	Summary          string     `json:"summary"`
	Settings         []Setting  `json:"settings,omitempty"`
	Redelivers       Redelivery `json:"redelivers"`
	AckCounting      string     `json:"ackCounting"`      // per-message, cumulative, automatic
	KeepsRows        bool       `json:"keepsRows"`        // settled rows stay, marked processed
	MarksAgain       bool       `json:"marksAgain"`       // redeliveries are flagged as such
	AckConfirms      bool       `json:"ackConfirms"`      // acknowledgements are confirmed
	ConfirmIsDurable bool       `json:"confirmIsDurable"` // …only after a durable delete
	KeepsSubscribers bool       `json:"keepsSubscribers"` // a confirmed logical subscriber exists even without a session
	Limits           Limits     `json:"limits"`
}

// Setting is one switch of a profile, as the system names it.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Redelivery is how an unsettled message comes again.
type Redelivery string

const (
	RedeliverTimeout   Redelivery = "timeout" // and on disconnect, where the system says so
	RedeliverReconnect Redelivery = "reconnect"
	RedeliverClaim     Redelivery = "claim"
	RedeliverRebalance Redelivery = "rebalance"
	RedeliverNever     Redelivery = "never"
)

// Limits are a profile's numbers, already scaled for this machine and build.
type Limits struct {
	MaxAttempts      int           `json:"maxAttempts,omitzero"`   // deliveries of one message, then dead letter; 0 is no limit
	DropsAfter       int           `json:"dropsAfter,omitzero"`    // deliveries of one message, after which it is dropped by design; 0 is never
	RedeliveryPeriod time.Duration `json:"redeliveryPeriod"`       // visibility timeout
	RecoveryBound    time.Duration `json:"recoveryBound"`          // from heal, acceptance and a ready consumer until settled
	InFlightBound    time.Duration `json:"inFlightBound"`          // how long a frame that was sent may take to arrive
	ExpiryTolerance  time.Duration `json:"expiryTolerance"`        // either way
	DeleteBound      time.Duration `json:"deleteBound,omitzero"`   // from the confirmed ACK to the row's end
	NackDelay        time.Duration `json:"nackDelay,omitzero"`     // minimum delay from a NACK to the redelivery; 0 is not stated
	Remembers        time.Duration `json:"remembers,omitzero"`     // how long a look-up still knows a message that has ended; 0 is not stated
	AnswerBound      time.Duration `json:"answerBound,omitzero"`   // from a call until its answer, while nothing is broken
	ProgressBound    time.Duration `json:"progressBound,omitzero"` // the longest that a ready consumer waits while there is work, even during faults
	MaxPending       int           `json:"maxPending,omitzero"`    // rows of one destination that may wait; a publish beyond is declined
	DrainDeadline    time.Duration `json:"drainDeadline"`          // exceeds every bound claimed
	OrderScope       string        `json:"orderScope,omitempty"`   // "connection", "key", "partition"; empty is none
}

// History is a run as judging sees it.
type History struct {
	Manifest  Manifest
	Snapshots []Snapshot
	// Events of the run in order of Seq; may be ranged over more than once. The
	// pointer is valid until the next step. An error ends the sequence, so that
	// a part of the evidence is never mistaken for the whole.
	Events iter.Seq2[*Event, error]
	// Truncated: the file ends in the middle of a record (the writer died).
	Truncated bool
	// Damage names a file that is not as the run left it, and how; empty if the
	// evidence is whole, as far as can be told. Damaged evidence can be shown,
	// and proves nothing either way.
	Damage string
}
