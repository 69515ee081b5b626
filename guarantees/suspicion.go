package guarantees

import (
	"slices"
	"time"
)

// suspicion is a finding that stands unless something disturbed the system in
// its time. What did may be recorded after what it caused, so that this is
// known only when all events are read.
type suspicion struct {
	from, to time.Duration
	finding  Finding
}

// suspicions wait for the end; those beyond the bound are left undecided.
type suspicions struct {
	list []suspicion
	more int
}

const maxSuspicions = 1 << 12

func (s *suspicions) add(from, to time.Duration, f Finding) {
	if len(s.list) < maxSuspicions {
		s.list = append(s.list, suspicion{from, to, f})
	} else {
		s.more++
	}
}

func (s *suspicions) conclude(l *ledger, out *ruling) {
	for _, x := range s.list {
		if l.calm(x.from, x.to) {
			// Of a run whose harness failed nobody knows what disturbed it.
			out.violate(byAbsence, x.finding)
		}
	}
	if s.more > 0 && out.broken == 0 {
		out.undecided("too many suspicions to remember")
	}
}

// maxTroubles disturbances are told apart; those that follow are taken for one.
const maxTroubles = 1 << 12

// trouble notes a fault that began to work, until it is healed, or, with no
// label, an order, a standstill or the end of a process.
func (l *ledger) trouble(label string) {
	w := window{label, l.now.at, -1}
	if label == "" {
		w.to = l.now.at
	}
	if n := len(l.troubles); n == maxTroubles {
		l.troubles[n-1].to = -1
	} else {
		l.troubles = append(l.troubles, w)
	}
}

// calm reports whether no fault was at work, and nothing else disturbed the
// system, between the two times.
func (l *ledger) calm(from, to time.Duration) bool {
	return !slices.ContainsFunc(l.troubles, func(w window) bool { return w.from <= to && (w.to < 0 || w.to >= from) })
}

// struckBetween reports whether a fault or an order struck between the two.
func (l *ledger) struckBetween(from, to time.Duration) bool {
	return slices.ContainsFunc(l.troubles, func(w window) bool { return w.from >= from && w.from <= to })
}
