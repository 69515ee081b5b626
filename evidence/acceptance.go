package evidence

import "fmt"

// Acceptance is a system's answer to one publish.
//
// Unknown is the zero value, so that code which forgets to set it never claims
// more than was proven.
type Acceptance uint8

const (
	// Unknown: the message may be stored. No answer, a lost answer, a
	// cancelled call, or a negative answer that may be partial.
	Unknown Acceptance = iota
	// Accepted: the system took responsibility; HeldBy says who in it.
	Accepted
	// Declined: a healthy system refused by policy and stored nothing.
	Declined
	// Rejected: it failed, and provably stored nothing.
	Rejected
)

var acceptanceNames = []string{"unknown", "accepted", "declined", "rejected"}

func (a Acceptance) String() string               { return nameOf(acceptanceNames, a) }
func (a Acceptance) MarshalText() ([]byte, error) { return marshalName(acceptanceNames, a) }
func (a *Acceptance) UnmarshalText(b []byte) error {
	return unmarshalName(acceptanceNames, "acceptance", b, a)
}

// Stronger orders the acceptances of several publishes of one business ID:
// Accepted, then Unknown, then the refusals.
func (a Acceptance) Stronger(b Acceptance) bool {
	rank := [...]int{Unknown: 1, Accepted: 2, Declined: 0, Rejected: 0}
	return rank[a] > rank[b]
}

// HeldBy says who is responsible for an accepted message from then on. A loss
// is judged from the hand-over that HeldBy names.
type HeldBy uint8

const (
	HeldByNobody HeldBy = iota
	HeldByClient
	HeldByBrokerMemory
	HeldByStore
	HeldByReplicas
)

var heldByNames = []string{"", "client", "broker-memory", "store", "replicas"}

func (h HeldBy) String() string                { return nameOf(heldByNames, h) }
func (h HeldBy) MarshalText() ([]byte, error)  { return marshalName(heldByNames, h) }
func (h *HeldBy) UnmarshalText(b []byte) error { return unmarshalName(heldByNames, "heldBy", b, h) }

// AckOutcome is the known outcome of one acknowledgement.
type AckOutcome uint8

const (
	// AckUnknown: no answer came; the system may have handled it.
	AckUnknown AckOutcome = iota
	// AckConfirmed: the system confirmed that it was handled.
	AckConfirmed
	// AckSent: it left the client, and this system never confirms.
	AckSent
	// AckRefused: the system refused it (too late, unknown delivery).
	AckRefused
)

var ackOutcomeNames = []string{"unknown", "confirmed", "sent", "refused"}

func (o AckOutcome) String() string               { return nameOf(ackOutcomeNames, o) }
func (o AckOutcome) MarshalText() ([]byte, error) { return marshalName(ackOutcomeNames, o) }
func (o *AckOutcome) UnmarshalText(b []byte) error {
	return unmarshalName(ackOutcomeNames, "ack outcome", b, o)
}

// Settles reports whether the client has done all it can: the acknowledgement
// was confirmed, or sent to a system that never confirms.
func (o AckOutcome) Settles() bool { return o == AckConfirmed || o == AckSent }

// Mark is a delivery's redelivered flag.
type Mark uint8

const (
	// MarkNone: this system has no such flag.
	MarkNone Mark = iota
	MarkFirst
	MarkRedelivered
)

var markNames = []string{"", "first", "redelivered"}

func (m Mark) String() string                { return nameOf(markNames, m) }
func (m Mark) MarshalText() ([]byte, error)  { return marshalName(markNames, m) }
func (m *Mark) UnmarshalText(b []byte) error { return unmarshalName(markNames, "mark", b, m) }

func nameOf[T ~uint8](names []string, v T) string {
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("invalid(%d)", v)
}

func marshalName[T ~uint8](names []string, v T) ([]byte, error) {
	if int(v) >= len(names) {
		return nil, fmt.Errorf("evidence: value %d has no name", v)
	}
	return []byte(names[v]), nil
}

func unmarshalName[T ~uint8](names []string, what string, b []byte, v *T) error {
	for i, n := range names {
		if n == string(b) {
			*v = T(i)
			return nil
		}
	}
	return fmt.Errorf("evidence: %q is no %s (one of %q)", b, what, names)
}
