package ledger

import "github.com/custodymq/custody/evidence"

// Step begins an interval of a custody timeline.
type Step struct {
	Stamp
	Party Party
	Mark  string // the faults that struck during the interval
}

// Party is who may be responsible for a message.
type Party uint8

const (
	PartyClient Party = iota
	PartyBroker
	PartyStore
	PartyConsumer
	PartyBusiness
	PartySettled
	PartyDead
	PartyNobody
)

func (p Party) String() string {
	return [...]string{"client", "broker", "store", "consumer", "business", "settled", "dead-letter", "nobody"}[p]
}

// Holder returns the party that an acceptance makes responsible.
func Holder(h evidence.HeldBy) Party {
	switch h {
	case evidence.HeldByStore, evidence.HeldByReplicas:
		return PartyStore
	case evidence.HeldByClient:
		return PartyClient
	}
	return PartyBroker
}

const (
	MaxTimelines = 1000 // only the first publishes of a run have one
	maxSteps     = 64   // per timeline: a message may be redelivered forever
)

// step hands a message over to the next party.
func (l *Ledger) step(m *Message, p Party) {
	n := len(m.Steps)
	if m.Steps == nil || n == maxSteps || n > 0 && (m.Steps[n-1].Party == p || m.Steps[n-1].Party == PartySettled && p != PartyConsumer) {
		return
	}
	m.Steps = append(m.Steps, Step{Stamp: l.Now, Party: p})
}

// mark records on the open interval that a fault struck.
func (l *Ledger) mark(m *Message, what string) {
	if len(m.Steps) == 0 {
		return
	}
	switch s := &m.Steps[len(m.Steps)-1]; {
	case s.Mark == "":
		s.Mark = what
	case s.Mark != what && len(s.Mark) < 200:
		s.Mark += ", " + what
	}
}
