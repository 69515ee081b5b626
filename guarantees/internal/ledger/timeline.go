package ledger

import "github.com/custodymq/custody/evidence"

// Step begins an interval of a custody timeline.
type Step struct {
	Stamp
	Party Party
	Mark  string // the faults that struck in it
}

// Party is who can be responsible for a message.
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

// Holder is the party that an acceptance names.
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
	MaxTimelines = 1000 // of the first publishes of a run
	maxSteps     = 64   // of one: a message may be redelivered for ever
)

// step hands a message to the next party.
func (l *Ledger) step(m *Message, p Party) {
	n := len(m.Steps)
	if m.Steps == nil || n == maxSteps || n > 0 && (m.Steps[n-1].Party == p || m.Steps[n-1].Party == PartySettled && p != PartyConsumer) {
		return
	}
	m.Steps = append(m.Steps, Step{Stamp: l.Now, Party: p})
}

// mark notes on the open interval that a fault struck in it.
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
