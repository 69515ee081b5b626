// Package guarantees judges a history: which promises held, which were broken,
// and at which hand-over. Everything in it is a pure function of saved
// evidence.
package guarantees

import (
	"fmt"

	"github.com/custodymq/custody/evidence"
)

// Judgement is the result of judging one run; verdict.json is its encoding.
// For a given judge version it is the same, byte for byte, on every machine.
type Judgement struct {
	Judge           string            `json:"judge"` // JudgeVersion
	Run             string            `json:"run"`
	Seal            string            `json:"seal,omitempty"` // of the judged evidence: see evidence.End
	System          string            `json:"system"`
	Profile         string            `json:"profile"`
	Scenario        string            `json:"scenario"`
	Outcome         Outcome           `json:"outcome"` // of the claims: see Combine
	Why             string            `json:"why"`     // one sentence for people
	Exit            int               `json:"exit"`
	Reached         bool              `json:"reached"`
	CutShort        string            `json:"cutShort,omitempty"` // where an await's deadline ended the script
	Conditions      []ConditionResult `json:"conditions,omitempty"`
	Faults          []FaultResult     `json:"faults,omitempty"`
	Verdicts        []Verdict         `json:"verdicts"`
	Anomalies       []Finding         `json:"anomalies,omitempty"` // all findings
	Broken          []Finding         `json:"broken,omitempty"`    // findings that break a claim covering this run
	Messages        []Message         `json:"messages,omitempty"`  // the table: acceptance, IDs, rows, custody (bounded, see MaxMessages)
	MessagesLeftOut int               `json:"messagesLeftOut,omitempty"`
	Error           string            `json:"error,omitempty"`   // why the run could not be measured; then Exit is 3
	Damaged         bool              `json:"damaged,omitempty"` // the evidence is damaged, as Error says, and there is no verdict
}

// Verdict is the result of judging one guarantee.
type Verdict struct {
	Guarantee       string         `json:"guarantee"`
	Outcome         Outcome        `json:"outcome"`
	Why             string         `json:"why"`
	Claimed         bool           `json:"claimed"` // some claim names the guarantee
	Covered         bool           `json:"covered"` // …under every class that fired
	Owner           evidence.Owner `json:"owner,omitempty"`
	Known           string         `json:"known,omitempty"` // why a violation does not count yet: see evidence.Known
	Instances       int            `json:"instances"`       // number of times it was tested
	Layers          []Layer        `json:"layers,omitempty"`
	Findings        []Finding      `json:"findings,omitempty"` // bounded; FindingsLeftOut counts the rest
	FindingsLeftOut int            `json:"findingsLeftOut,omitempty"`
	Measures        []Measure      `json:"measures,omitempty"` // such as the longest recovery
}

// Counts reports whether the verdict takes part in the outcome of its run.
func (v Verdict) Counts() bool { return v.Claimed && v.Covered && v.Known == "" }

// Layer is a part of the system that upheld a guarantee. Count says how often;
// 0 means that it was not exercised.
type Layer struct {
	Name  string `json:"name"` // "broker", "store", "consumption log", "client"
	Did   string `json:"did"`  // "redelivered", "absorbed", "kept"
	Count int    `json:"count"`
}

// Measure is a measured number with its unit.
type Measure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

// Finding is one violation, with the fewest events that demonstrate it.
type Finding struct {
	Guarantee    string   `json:"guarantee"`
	Kind         string   `json:"kind"` // such as "lost-suffix", "second-effect"
	Text         string   `json:"text"` // one sentence
	BusinessID   string   `json:"business,omitempty"`
	PublishID    string   `json:"publish,omitempty"`
	MessageID    string   `json:"message,omitempty"`
	Subscription string   `json:"subscription,omitempty"`
	HandOver     HandOver `json:"handOver,omitempty"` // the hand-over that failed
	Events       []uint64 `json:"events,omitempty"`
	Unconfirmed  bool     `json:"unconfirmed,omitempty"` // reported but breaks no claim (the loss of a fire-and-forget publish)
	Follows      []string `json:"follows,omitempty"`     // other guarantees that the same cause may violate
}

// HandOver is a transfer of responsibility from one party to the next.
type HandOver string

const (
	ClientToBroker     HandOver = "client → broker"
	BrokerToStore      HandOver = "broker → store"
	BrokerToClient     HandOver = "broker → client (acceptance)"
	StoreToConsumer    HandOver = "store → consumer"
	BrokerToConsumer   HandOver = "broker → consumer"
	ConsumerToBusiness HandOver = "consumer → business"
	ConsumerToBroker   HandOver = "consumer → broker (acknowledgement)"
	BrokerToDelete     HandOver = "broker → store (delete)"
)

// ConditionResult says whether one condition of the situation was reached.
type ConditionResult struct {
	Line    string `json:"line"`
	OK      bool   `json:"ok"`
	Missing string `json:"missing,omitempty"`
}

// FaultResult says whether one fault fired, and where.
type FaultResult struct {
	Label  string         `json:"label"`
	Class  evidence.Class `json:"class"`
	Line   string         `json:"line"`
	Fired  int            `json:"fired"`            // number of times
	Missed string         `json:"missed,omitempty"` // why its latest attempt found nothing to strike
	Events []uint64       `json:"events,omitempty"`
}

// Message is one publish in the report's table, with its custody timeline.
type Message struct {
	BusinessID string              `json:"business"`
	PublishID  string              `json:"publish"`
	MessageID  string              `json:"message,omitempty"`
	Acceptance evidence.Acceptance `json:"acceptance"`
	HeldBy     evidence.HeldBy     `json:"heldBy,omitzero"`
	Deliveries int                 `json:"deliveries"`
	Effects    int                 `json:"effects"` // business rows at the end
	Acked      bool                `json:"acked"`
	Rows       []string            `json:"rows,omitempty"` // "end: pending", per checkpoint
	Custody    []Interval          `json:"custody,omitempty"`
}

// Interval is one interval of a message's life, with the party responsible.
type Interval struct {
	Party string `json:"party"` // client, broker, store, consumer, business, settled, dead-letter, nobody
	From  int64  `json:"from"`  // nanoseconds since the run began
	To    int64  `json:"to"`
	Mark  string `json:"mark,omitempty"` // a fault that struck during it
	Event uint64 `json:"event"`          // the event that began it
}

// Outcome is the outcome of judging. Inconclusive is the zero value, and never
// a pass.
type Outcome uint8

const (
	Inconclusive Outcome = iota
	Held
	Violated
	NotApplicable
	// NotClaimed is the outcome of a run in which no claim covers any
	// exercised guarantee under the faults that fired. It has no exit code of
	// its own.
	NotClaimed
)

var outcomeNames = []string{"inconclusive", "held", "violated", "not-applicable", "not-claimed"}

func (o Outcome) String() string {
	if int(o) < len(outcomeNames) {
		return outcomeNames[o]
	}
	return fmt.Sprintf("invalid(%d)", uint8(o))
}

func (o Outcome) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

func (o *Outcome) UnmarshalText(b []byte) error {
	for i, n := range outcomeNames {
		if n == string(b) {
			*o = Outcome(i)
			return nil
		}
	}
	return fmt.Errorf("guarantees: %q is no outcome (one of %q)", b, outcomeNames)
}

// Exit codes of one run or several.
const (
	ExitHeld         = 0
	ExitViolated     = 1
	ExitInconclusive = 2
	ExitUnmeasured   = 3
	ExitUsage        = 64
)
