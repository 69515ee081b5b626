package guarantees

import "time"

// suspicion is a finding that stands unless something disturbed the system
// between two times. A disturbance may be recorded after its effect, so this
// is decided once all events are read.
type suspicion struct {
	from, to time.Duration
	finding  Finding
}

// suspicions keeps suspicions until the end; those beyond the bound are
// undecided.
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

func (s *suspicions) conclude(v view, out *ruling) {
	for _, x := range s.list {
		if v.Calm(x.from, x.to) {
			// In a run that failed, a disturbance may be unrecorded.
			out.violate(byAbsence, x.finding)
		}
	}
	if s.more > 0 && out.broken == 0 {
		out.undecided("too many suspicions to remember")
	}
}
