package evidence

import (
	"iter"
	"time"
)

// FormatVersion is the evidence format that this code writes. It reads older
// formats and rejects newer ones. Since version 2 a run that has ended is
// sealed.
const FormatVersion = 2

// Manifest describes a run. It is written at the start and rewritten at the
// end; without End, no guarantee in the run can be Held.
type Manifest struct {
	Format       int               `json:"format"`
	Run          string            `json:"run"`
	System       string            `json:"system"`
	Spec         string            `json:"spec,omitempty"` // system and profile, as the run's caller named them
	Profile      Profile           `json:"profile"`
	Claims       []Claim           `json:"claims"` // of the system and of the application's mechanisms
	Scenario     string            `json:"scenario"`
	Why          string            `json:"why"`
	Expect       []string          `json:"expect"`  // the guarantees exercised
	Reached      []Condition       `json:"reached"` // conditions that must be met for a verdict to count
	Faults       []FaultLabel      `json:"faults"`
	Known        []Known           `json:"known,omitempty"`
	Inapplicable string            `json:"inapplicable,omitempty"` // why this scenario cannot run on this system; such a run has no events
	Seed         uint64            `json:"seed"`
	Scale        float64           `json:"scale"` // factor on deadlines, bounds and tolerances
	Versions     map[string]string `json:"versions"`
	Machine      Machine           `json:"machine"`
	Defect       string            `json:"defect,omitempty"` // the seeded defect that was enabled
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
	Seal   string        `json:"seal,omitempty"`  // of the manifest itself, including Files: see sealManifest
}

// Known is a violation that the profile's owner is aware of. Until its date it
// is reported but does not fail the run.
type Known struct {
	Guarantee string `json:"guarantee"`
	Reason    string `json:"reason"` // such as a ticket number
	Until     string `json:"until"`  // the last day on which it applies: 2026-12-31
}

// Day is the layout of Known.Until.
const Day = "2006-01-02"

// EndHow is how a run ended.
type EndHow string

const (
	EndCompleted EndHow = "completed"
	EndCancelled EndHow = "cancelled"
	EndFailed    EndHow = "failed" // the harness or the machine failed: no verdict can be Held
)

// Machine describes the machine on which the run was made.
type Machine struct {
	OS    string `json:"os"`
	Arch  string `json:"arch"`
	Cores int    `json:"cores"`
}

// FaultLabel is one fault of the script.
type FaultLabel struct {
	Label string `json:"label"`
	Class Class  `json:"class"`
	Verb  string `json:"verb"`
	Line  string `json:"line"` // as printed in the script
}

// Condition is one thing that must have happened. It is data, so that awaiting
// and judging interpret it alike. script/condition.go says which fields a verb
// uses.
type Condition struct {
	Verb    string `json:"verb"`
	Subject string `json:"subject,omitempty"` // a business ID, a fault's label, an actor
	Word    string `json:"word,omitempty"`    // an acceptance, a checkpoint
	Times   int    `json:"times,omitzero"`    // at least this often; 0 means 1
	Line    string `json:"line"`              // as printed in the script
}

// The verbs of conditions.
const (
	CondFired      = "fired"      // fault Subject fired
	CondDelivered  = "delivered"  // Subject was handed to an application at least Times times
	CondRedelivery = "redelivery" // Subject was handed out again (a second Delivered event for one publish and subscription)
	CondAcceptance = "acceptance" // a publish of Subject returned acceptance Word
	CondEffect     = "effect"     // an effect of Subject was committed
	CondAbsorbed   = "absorbed"   // the consumption log absorbed Subject at least Times times
	CondAcked      = "acked"      // an acknowledgement of Subject was confirmed or sent
	CondInFlight   = "in-flight"  // when fault Subject fired, at least Times publishes were called or accepted and not yet settled
	CondStored     = "stored"     // a snapshot (of checkpoint Word, if given) has a pending row of Subject
	CondDead       = "dead"       // a snapshot has Subject dead-lettered
	CondResolved   = "resolved"   // a look-up of Subject settled it
	CondConnected  = "connected"  // actor Subject opened at least Times sessions
	CondFailed     = "failed"     // the handler failed on Subject at least Times times
	CondCarried    = "carried"    // at least Times frames of kind Word passed the link of Subject
	CondGone       = "gone"       // the newest broker snapshot has no pending row of Subject
)

// Class is the class of a fault. A claim covers a run if and only if it is
// made under every class that fired.
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
	Rollback      Class = "rollback" // the system's store is put back to a backup
)

// Classes lists the fault classes in the order of reports.
func Classes() []Class {
	return []Class{ClientCrash, BrokerRestart, BrokerCrash, BrokerPause, PowerLoss, Link, Store, Clock, NodeLoss, Overload, Rollback}
}

// Owner is who makes a claim.
type Owner string

const (
	OwnerSystem      Owner = "system"
	OwnerApplication Owner = "application"
)

// Claim promises that a guarantee holds under these fault classes.
type Claim struct {
	Guarantee string  `json:"guarantee"`
	Under     []Class `json:"under"`
	Owner     Owner   `json:"owner"`
	Source    string  `json:"source,omitempty"` // where the promise is made: a document's section
}

// Covers reports whether the claim is made for a run in which faults of these
// classes fired. A run without faults is always covered.
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

// Profile is one configuration of a system, with the properties that judging
// depends on.
type Profile struct {
	Name             string     `json:"name"`
	Summary          string     `json:"summary"`
	Settings         []Setting  `json:"settings,omitempty"`
	Redelivers       Redelivery `json:"redelivers"`
	AckCounting      string     `json:"ackCounting"`      // per-message, cumulative, automatic
	KeepsRows        bool       `json:"keepsRows"`        // settled rows stay in the store, marked processed
	MarksAgain       bool       `json:"marksAgain"`       // redeliveries are flagged as such
	AckConfirms      bool       `json:"ackConfirms"`      // acknowledgements are confirmed
	ConfirmIsDurable bool       `json:"confirmIsDurable"` // …only after a durable delete
	KeepsSubscribers bool       `json:"keepsSubscribers"` // a confirmed logical subscriber persists without a session
	Limits           Limits     `json:"limits"`
}

// Setting is one setting of a profile, under the system's own name.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Redelivery is what makes a system redeliver an unsettled message.
type Redelivery string

const (
	RedeliverTimeout   Redelivery = "timeout" // and on disconnect, if the system documents that
	RedeliverReconnect Redelivery = "reconnect"
	RedeliverClaim     Redelivery = "claim"
	RedeliverRebalance Redelivery = "rebalance"
	RedeliverNever     Redelivery = "never"
)

// Limits are a profile's numeric limits, already scaled for this machine and
// build.
type Limits struct {
	MaxAttempts      int           `json:"maxAttempts,omitzero"`   // deliveries of one message before it is dead-lettered; 0 means no limit
	DropsAfter       int           `json:"dropsAfter,omitzero"`    // deliveries of one message before it is dropped by design; 0 means never
	RedeliveryPeriod time.Duration `json:"redeliveryPeriod"`       // visibility timeout
	RecoveryBound    time.Duration `json:"recoveryBound"`          // from heal, acceptance and a ready consumer until the message is settled
	InFlightBound    time.Duration `json:"inFlightBound"`          // maximum time for a sent frame to arrive
	ExpiryTolerance  time.Duration `json:"expiryTolerance"`        // in either direction
	DeleteBound      time.Duration `json:"deleteBound,omitzero"`   // from the confirmed acknowledgement until the row is gone
	NackDelay        time.Duration `json:"nackDelay,omitzero"`     // minimum delay from a NACK to the redelivery; 0 if unspecified
	Remembers        time.Duration `json:"remembers,omitzero"`     // how long a look-up still finds a settled message; 0 if unspecified
	AnswerBound      time.Duration `json:"answerBound,omitzero"`   // from a call to its answer, while no fault is active
	ProgressBound    time.Duration `json:"progressBound,omitzero"` // maximum wait of a ready consumer while there is work, even during faults
	MaxPending       int           `json:"maxPending,omitzero"`    // maximum number of pending rows of one destination; a publish beyond it is declined
	DrainDeadline    time.Duration `json:"drainDeadline"`          // exceeds every bound claimed
	OrderScope       string        `json:"orderScope,omitempty"`   // "connection", "key", "partition"; empty for none
}

// History is a run as seen by judging.
type History struct {
	Manifest  Manifest
	Snapshots []Snapshot
	// Events yields the run's events in order of Seq, and may be ranged over
	// more than once. The pointer is valid until the next step. An error ends
	// the sequence, so that partial evidence is never mistaken for the whole.
	Events iter.Seq2[*Event, error]
	// Truncated: a file ends in the middle of a record because the writer
	// died.
	Truncated bool
	// Damage names a file that changed since the run ended, and how; it is
	// empty if no damage was found. Damaged evidence can be shown but proves
	// nothing either way.
	Damage string
}
