package guarantees

import (
	"fmt"

	"github.com/custodymq/custody/evidence"
)

var sessionStability = Guarantee{
	Name: evidence.SessionStability, Usual: "connection stability",
	Text: "A consumer's session is ended by others only for a reason that the run gave.",
	Rule: "A reason is a fault that was set up on its link, the end or the standstill of a process, a clock that was set, an order, from the session's opening to the in-flight bound after its end. A session that its owner closed proves nothing.",
	new:  func() checker { return &stability{links: make(map[uint32]grievance)} },
}

type stability struct {
	links  map[uint32]grievance // what struck each link
	others stamp                // the latest reason that is good for all
	ended  []broken
}

// grievance is the latest stroke of a fault on one link; its after-effects last
// until it is healed.
type grievance struct {
	stamp
	label string
	open  bool
}

type broken struct {
	session *session
	name    uint32
	at      stamp
	reason  bool
}

func (c *stability) on() []evidence.Kind {
	return []evidence.Kind{evidence.SessionOpened, evidence.SessionEnded, evidence.FaultArmed, evidence.FaultFired, evidence.FaultHealed,
		evidence.ProcessExited, evidence.ProcessPaused, evidence.ProcessContinued, evidence.ClockSet, evidence.Commanded}
}

func (c *stability) observe(l *ledger, e *evidence.Event, _ *message, _ *receipt, out *ruling) {
	switch e.Kind {
	case evidence.SessionOpened:
		out.instances++
	case evidence.SessionEnded:
		if e.Cause != evidence.CauseDisconnected || len(c.ended) == maxDoubts {
			return
		}
		s := l.sessionOf(e)
		g := c.links[s.actor.name]
		c.ended = append(c.ended, broken{s, l.symbol(e.Session), l.now,
			s.openCalled.seq == 0 || g.open || g.seq > s.openCalled.seq || c.others.seq > s.openCalled.seq})
	case evidence.FaultArmed: // a silent link is seen to be struck only by the next message on it
		if e.Link != "" {
			c.links[l.symbol(e.Link)] = grievance{l.now, e.Fault, true}
		}
	case evidence.FaultFired:
		if e.Link == "" {
			if l.class[e.Fault] != evidence.Store {
				c.reason(l)
			}
			return
		}
		c.links[l.symbol(e.Link)] = grievance{l.now, e.Fault, true}
		c.reasonFor(l, l.symbol(e.Link))
	case evidence.FaultHealed:
		for link, g := range c.links {
			if g.label == e.Fault {
				c.links[link] = grievance{l.now, g.label, false}
			}
		}
	default:
		c.reason(l)
	}
}

// reason gives one to the sessions that have just ended, too: the end of a
// process is seen by its peers before it is reaped.
func (c *stability) reason(l *ledger) {
	c.others = l.now
	for i := range c.ended {
		c.ended[i].reason = c.ended[i].reason || l.now.at <= c.ended[i].at.at+l.limits.InFlightBound
	}
}

func (c *stability) reasonFor(l *ledger, link uint32) {
	for i := range c.ended {
		b := &c.ended[i]
		b.reason = b.reason || b.session.actor.name == link && l.now.at <= b.at.at+l.limits.InFlightBound
	}
}

func (c *stability) conclude(l *ledger, out *ruling) {
	for _, b := range c.ended {
		if b.reason {
			continue
		}
		// Of a run whose harness failed nobody knows that it gave none.
		out.violate(byAbsence, Finding{Kind: "ended-by-itself", Events: events(b.session.openCalled.seq, b.at.seq), HandOver: BrokerToConsumer,
			Text: fmt.Sprintf("session %s was ended, and the run gave no reason for it", l.name(b.name))})
	}
}
