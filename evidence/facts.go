package evidence

// These types hold the facts that judging needs. Free text (Event.Reason,
// Event.ClientResult, StoredRow.Reason) is for people and never judged,
// because a system may word its errors as it likes.

// Cause is the reason a system gives for declining a publish, dead-lettering a
// message, answering a look-up or ending a session, mapped to one of these
// values.
type Cause uint8

const (
	NoCause           Cause = iota // the system gave none
	CauseStated                    // given only as free text
	CauseNoConsumer                // no consumer was there to receive
	CauseMode                      // only consumers of another mode are subscribed
	CauseLimit                     // a stated bound was reached: length, bytes, window
	CauseInvalid                   // the request itself: an argument, a size, an unknown destination
	CausePermission                // not allowed
	CauseExpired                   // its time to live passed
	CauseAttempts                  // its attempts were used up
	CauseRejected                  // a consumer rejected it for good
	CauseDiscarded                 // removed by command
	CauseDisconnected              // the peer or the network ended the session
)

var causeNames = []string{"", "stated", "no-consumer", "mode", "limit", "invalid", "permission", "expired", "attempts", "rejected", "discarded", "disconnected"}

func (c Cause) String() string                { return nameOf(causeNames, c) }
func (c Cause) MarshalText() ([]byte, error)  { return marshalName(causeNames, c) }
func (c *Cause) UnmarshalText(b []byte) error { return unmarshalName(causeNames, "cause", b, c) }

// Standing is the state of a message according to a look-up.
type Standing uint8

const (
	NoStanding Standing = iota // no answer, or none of these
	Stored                     // waiting or in flight
	Settled                    // acknowledged; its row may be gone
	Dead                       // in the dead-letter queue
	Absent                     // proven not stored
	Forgotten                  // the system no longer knows
)

var standingNames = []string{"", "stored", "settled", "dead", "absent", "forgotten"}

func (s Standing) String() string               { return nameOf(standingNames, s) }
func (s Standing) MarshalText() ([]byte, error) { return marshalName(standingNames, s) }
func (s *Standing) UnmarshalText(b []byte) error {
	return unmarshalName(standingNames, "standing", b, s)
}

// Command is an administrative operation.
type Command uint8

const (
	NoCommand Command = iota
	CommandRestart
	CommandRedrive
	CommandDiscard
	CommandRestore // the business database or the broker's store, to Checkpoint
	CommandRewind  // Subscription, to Checkpoint
	CommandProvoke // a redelivery, by the profile's own mechanism
	CommandKill
	CommandShutdown
	CommandPause
	CommandSwap     // the store
	CommandMigrate  // the rows to another storage identity
	CommandFailOver // the store's server is lost, and its standby takes its place
	CommandBackUp   // the broker's store, for Checkpoint
)

var commandNames = []string{"", "restart", "redrive", "discard", "restore", "rewind", "provoke", "kill", "shutdown", "pause", "swap", "migrate", "fail-over", "back-up"}

func (c Command) String() string                { return nameOf(commandNames, c) }
func (c Command) MarshalText() ([]byte, error)  { return marshalName(commandNames, c) }
func (c *Command) UnmarshalText(b []byte) error { return unmarshalName(commandNames, "command", b, c) }

// DrainReason is why a drain ended.
type DrainReason uint8

const (
	NoDrainReason   DrainReason = iota
	DrainSettled                // an exact snapshot has no pending rows
	DrainBarrier                // a barrier passed on each partition
	DrainQuiet                  // no progress for longer than the longest redelivery delay
	DrainDeadline               // it was still making progress
	DrainNoConsumer             // no consumer was there to drain
)

var drainReasonNames = []string{"", "settled", "barrier", "quiet", "deadline", "no-consumer"}

func (r DrainReason) String() string               { return nameOf(drainReasonNames, r) }
func (r DrainReason) MarshalText() ([]byte, error) { return marshalName(drainReasonNames, r) }
func (r *DrainReason) UnmarshalText(b []byte) error {
	return unmarshalName(drainReasonNames, "drain reason", b, r)
}

// ProbeOutcome is the outcome of a probe: a request that no well-behaved client
// makes, or one at a limit.
type ProbeOutcome uint8

const (
	NoProbeOutcome   ProbeOutcome = iota // the probe could not be made
	ProbeAccepted                        // accepted and carried out in full
	ProbeAnswered                        // answered as the protocol demands; the request had nothing to refuse
	ProbeRefused                         // refused without effect; the session continues
	ProbeInDoubt                         // answered that the outcome is unknown
	ProbeIgnored                         // no effect and no answer; the session continues
	ProbeEnded                           // the system ended the session
	ProbeUnanswered                      // an answer was due, and none came within the bound
	ProbeMisanswered                     // the answer does not belong to this request, or does not say what was done
)

var probeOutcomeNames = []string{"", "accepted", "answered", "refused", "in-doubt", "ignored", "ended", "unanswered", "misanswered"}

func (o ProbeOutcome) String() string               { return nameOf(probeOutcomeNames, o) }
func (o ProbeOutcome) MarshalText() ([]byte, error) { return marshalName(probeOutcomeNames, o) }
func (o *ProbeOutcome) UnmarshalText(b []byte) error {
	return unmarshalName(probeOutcomeNames, "probe outcome", b, o)
}
