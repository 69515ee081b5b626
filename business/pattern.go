package business

import (
	"fmt"
	"slices"

	"github.com/custodymq/custody/evidence"
)

// Pattern is one way to handle deliveries. Its transactions are lists of
// operations; the first repeat that one finds ends the handling, and the message
// is acknowledged.
type Pattern struct {
	Name  string
	Text  string // what the handler does
	Gives string // what it protects against
	Lacks string // what it does not protect against

	First []Op   // a transaction on receipt, before the work
	Then  [][]Op // transactions after the work

	AcksFirst    bool // acknowledges on receipt
	AcksFailures bool // acknowledges what it failed on
	Remembers    bool // keeps its log in memory, for as long as it runs
	KeyLength    int  // of the log's key, the last bytes count; 0 for all
	// Whole: one effect for each message, whatever comes again. It is claimed.
	Whole bool
}

// Op is an operation in a transaction. A fault names it: "before operation log
// on business".
type Op string

const (
	Log        Op = "log"
	Note       Op = "note"
	Check      Op = "check"
	Prune      Op = "prune"
	Unique     Op = "unique"
	Transition Op = "transition"
	Lock       Op = "lock"
	Done       Op = "done"
	Effect     Op = "effect"
	Assign     Op = "assign"
	Commit     Op = "commit"
	Record     Op = "record"
	Enqueue    Op = "outbox"
	Take       Op = "claim"
	Mark       Op = "mark"
	Release    Op = "release"
)

// ops are all operations, in the order of the documentation.
var ops = []struct {
	op   Op
	text string
}{
	{Log, "inserts into the consumption log, unique on subscriber and key"},
	{Note, "inserts into the consumption log, without a unique constraint"},
	{Check, "looks whether the log holds the key"},
	{Prune, "deletes all but the newest entry of the log"},
	{Unique, "inserts the business ID, unique per subscriber"},
	{Transition, "moves the order from new to paid; a second time it refuses"},
	{Lock, "locks the business ID until the transaction ends"},
	{Done, "looks whether the business ID has its effect"},
	{Effect, "inserts the effect; nothing keeps it from being there twice"},
	{Assign, "sets the effect, which is the same however often it is set"},
	{Commit, "commits the transaction"},
	{Record, "a producer inserts its business row, having drawn a number for its message"},
	{Enqueue, "a producer inserts the message into the outbox"},
	{Take, "a relay claims rows of the outbox"},
	{Mark, "a relay marks a row as sent"},
	{Release, "a relay gives a claim back"},
}

// Ops returns all operations that a fault may name.
func Ops() []Op {
	list := make([]Op, len(ops))
	for i, o := range ops {
		list[i] = o.op
	}
	return list
}

// Text says what the operation does.
func (op Op) Text() string {
	for _, o := range ops {
		if o.op == op {
			return o.text
		}
	}
	return ""
}

// Idempotent is the pattern of a consumer that is only said to be idempotent;
// Plain of one that is not.
const (
	Idempotent = "log"
	Plain      = "none"
)

// Patterns returns every way to handle deliveries: first those that keep the
// promise, then what people do instead.
func Patterns() []Pattern { return slices.Clone(patterns) }

var patterns = []Pattern{
	{
		Name: Idempotent, Whole: true,
		Text:  "A consumption log, unique on subscriber and message ID, is written in the transaction of the effect; the acknowledgement follows the commit.",
		Gives: "Whatever is delivered again under its message ID: after a crash at any point, a lost acknowledgement, to two instances at once.",
		Lacks: "A message sent anew under another message ID, and entries that are deleted before their message comes again.",
		Then:  [][]Op{{Log, Effect}},
	},
	{
		Name: "business-key", Whole: true,
		Text:  "The business ID is unique per subscriber in the database, and is inserted in the transaction of the effect.",
		Gives: "All that the log does, and the same business sent anew under another message ID.",
		Lacks: "Business that lawfully happens twice under one ID.",
		Then:  [][]Op{{Unique, Effect}},
	},
	{
		Name: "natural", Whole: true,
		Text:  "The effect sets a value and adds nothing to one, so that it is the same however often it is set.",
		Gives: "Every repeat, without a log.",
		Lacks: "Effects that add up or leave the database, and an old value that comes after a new one.",
		Then:  [][]Op{{Assign}},
	},
	{
		Name: "state-machine", Whole: true,
		Text:  "The order goes from new to paid in the transaction of the effect; an order that is paid refuses the transition.",
		Gives: "Every repeat of a step that the order has taken, under whatever message ID.",
		Lacks: "Steps that leave the state as it was.",
		Then:  [][]Op{{Transition, Effect}},
	},
	{
		Name: "lock", Whole: true,
		Text:  "The transaction locks the business ID, and looks only then whether the effect is there.",
		Gives: "Two instances with the same message at once, and every later repeat.",
		Lacks: "An effect that cannot be looked up in the database of the lock.",
		Then:  [][]Op{{Lock, Done, Effect}},
	},
	{
		Name:  Plain,
		Text:  "The effect is committed, and the message acknowledged afterwards.",
		Gives: "Loss: the message comes again until it is acknowledged.",
		Lacks: "The repeat: it has its effect again.",
		Then:  [][]Op{{Effect}},
	},
	{
		Name:  "log-after-commit",
		Text:  "The log is looked at on receipt, and written in a transaction of its own after that of the effect.",
		Gives: "Repeats, as long as nothing happens between the two commits.", Lacks: "Whatever happens between them: the effect is there, and the log does not know.",
		First: []Op{Check}, Then: [][]Op{{Effect}, {Log}},
	},
	{
		Name:  "log-before-commit",
		Text:  "The log is written in a transaction of its own before that of the effect.",
		Gives: "Two effects.", Lacks: "Whatever happens between the two commits: the log knows the message, and its effect is not there.",
		Then: [][]Op{{Log}, {Effect}},
	},
	{
		Name:  "log-in-memory",
		Text:  "The log is a set in the memory of the instance.",
		Gives: "Repeats to the same instance while it runs.", Lacks: "A restart, and a second instance.",
		Then: [][]Op{{Effect}}, Remembers: true,
	},
	{
		Name:  "log-without-constraint",
		Text:  "The log is looked at on receipt, and written with the effect; nothing makes an entry unique.",
		Gives: "A repeat that comes after the first was committed.", Lacks: "Two instances with the same message at once: each looks before the other has written.",
		First: []Op{Check}, Then: [][]Op{{Note, Effect}},
	},
	{
		Name:  "log-key-too-short",
		Text:  "The log's key is the last character of the message ID.",
		Gives: "Repeats.", Lacks: "Another message with the same key: it is taken for a repeat, and acknowledged without its effect.",
		Then: [][]Op{{Log, Effect}}, KeyLength: 1,
	},
	{
		Name:  "log-pruned",
		Text:  "The log keeps its newest entry only.",
		Gives: "The immediate repeat.", Lacks: "One that comes when its entry is gone.",
		Then: [][]Op{{Log, Effect, Prune}},
	},
	{
		Name:  "lock-after-check",
		Text:  "The handler looks on receipt whether the effect is there, and locks the business ID for the effect only.",
		Gives: "A repeat that comes after the first was committed.", Lacks: "Two instances with the same message at once: each looks before the other holds the lock.",
		First: []Op{Done}, Then: [][]Op{{Lock, Effect}},
	},
	{
		Name:  "ack-on-receipt",
		Text:  "The message is acknowledged on receipt, and handled afterwards, with a log.",
		Gives: "Repeats.", Lacks: "A crash or a failure while it is handled: nobody has the message any more.",
		Then: [][]Op{{Log, Effect}}, AcksFirst: true,
	},
	{
		Name:  "acks-failures",
		Text:  "What the handler failed on is acknowledged too, as by a handler that logs its errors and returns.",
		Gives: "Repeats, and a poison message.", Lacks: "Every failure, the shortest included: the message is lost.",
		Then: [][]Op{{Log, Effect}}, AcksFailures: true,
	},
}

// FindPattern returns the pattern of that name.
func FindPattern(name string) (Pattern, error) {
	for _, p := range patterns {
		if p.Name == name {
			return p, nil
		}
	}
	return Pattern{}, fmt.Errorf("business: no pattern %q", name)
}

// Key returns what the pattern keeps of a log key.
func (p Pattern) Key(key string) string {
	if p.KeyLength > 0 && len(key) > p.KeyLength {
		return key[len(key)-p.KeyLength:]
	}
	return key
}

// HasEffect reports whether a transaction of these operations has the effect.
func HasEffect(ops []Op) bool { return slices.Contains(ops, Effect) || slices.Contains(ops, Assign) }

// Policy is a way for a relay to publish the outbox.
type Policy struct {
	Name  string
	Text  string
	Gives string
	Lacks string

	TrustsNoError bool // takes a call that returned for a message that was accepted
	MarksFirst    bool // marks before it publishes
	NewIDs        bool // a new message ID on each try
	ByPosition    bool // reads behind the last number it has seen
	Whole         bool // claimed
}

// AtLeastOnce is the policy of a relay that names none.
const AtLeastOnce = "at-least-once"

// Policies returns the policies: first the one that keeps the promise.
func Policies() []Policy { return slices.Clone(policies) }

var policies = []Policy{
	{
		Name: AtLeastOnce, Whole: true,
		Text:  "A relay claims unsent rows, publishes each under the message ID that it was stored with, and marks it once it is accepted. Unknown is not yet, declined is not sent.",
		Gives: "A broker that is down or declines, a lost answer, a crash between publishing and marking, several relays, and numbers that commit out of order.",
		Lacks: "Repeats: after a crash it publishes again, under the same message ID, and the consumer must know it again.",
	},
	{
		Name: "trusts-no-error", TrustsNoError: true,
		Text:  "A row is marked when the call has returned without an error, whatever the system answers.",
		Gives: "A broker that cannot be reached.", Lacks: "A message that the system declines, or never gets: its row is marked all the same.",
	},
	{
		Name: "marks-first", MarksFirst: true,
		Text:  "A row is marked before it is published.",
		Gives: "Repeats.", Lacks: "Whatever happens between the two: the row is marked, and nobody publishes it.",
	},
	{
		Name: "new-ids", NewIDs: true,
		Text:  "Each try is given a message ID of its own.",
		Gives: "Loss.", Lacks: "The repeat after a crash or a lost answer: nothing on the way knows it again but the business ID.",
	},
	{
		Name: "by-position", ByPosition: true,
		Text:  "The relay remembers the last number that it has seen, and reads what is behind it.",
		Gives: "Repeats.", Lacks: "A row whose transaction commits after that of a later number: it is skipped.",
	},
}

// FindPolicy returns the policy of that name; empty is AtLeastOnce.
func FindPolicy(name string) (Policy, error) {
	for _, p := range policies {
		if p.Name == name || name == "" && p.Name == AtLeastOnce {
			return p, nil
		}
	}
	return Policy{}, fmt.Errorf("business: no policy %q", name)
}

// rowStates of the outbox.
var outboxStates = map[bool]evidence.RowState{false: evidence.RowUnsent, true: evidence.RowSent}
