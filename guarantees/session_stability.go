package guarantees

import (
	"fmt"

	"github.com/custodymq/custody/evidence"
)

var sessionStability = Guarantee{
	Name: evidence.SessionStability, Usual: "connection stability",
	Text: "A consumer's session is ended by others only for a reason that the run gave.",
	Rule: "A reason is a fault that was set up on its link, the end or the standstill of a process, a clock that was set, an order, from the session's opening to the in-flight bound after its end. A session that its owner closed proves nothing.",
	new:  func() checker { return &stability{links: make(map[symbol]grievance)} },
}

type stability struct {
	links  map[symbol]grievance // latest fault on each link
	others stamp                // latest disturbance that affects all sessions
	ended  []broken
}

// grievance is the latest fault on one link. Its effects last until it is
// healed.
type grievance struct {
	stamp
	label string
	open  bool
}

type broken struct {
	session *session
	name    symbol
	at      stamp
	reason  bool
}

func (c *stability) on() []evidence.Kind {
	return []evidence.Kind{evidence.SessionOpened, evidence.SessionEnded, evidence.FaultArmed, evidence.FaultFired, evidence.FaultHealed,
		evidence.ProcessExited, evidence.ProcessPaused, evidence.ProcessContinued, evidence.ClockSet, evidence.Commanded}
}

func (c *stability) observe(v view, e *evidence.Event, _ *message, _ *receipt, out *ruling) {
	switch e.Kind {
	case evidence.SessionOpened:
		out.instances++
	case evidence.SessionEnded:
		if e.Cause != evidence.CauseDisconnected || len(c.ended) == maxDoubts {
			return
		}
		s := v.SessionOf(e)
		g := c.links[s.Actor.Name]
		c.ended = append(c.ended, broken{s, v.Symbol(e.Session), v.Now,
			s.OpenCalled.Seq == 0 || g.open || g.Seq > s.OpenCalled.Seq || c.others.Seq > s.OpenCalled.Seq})
	case evidence.FaultArmed: // on an idle link it fires only with the next message
		if e.Link != "" {
			c.links[v.Symbol(e.Link)] = grievance{v.Now, e.Fault, true}
		}
	case evidence.FaultFired:
		if e.Link == "" {
			if v.ClassOf(e.Fault) != evidence.Store {
				c.reason(v)
			}
			return
		}
		c.links[v.Symbol(e.Link)] = grievance{v.Now, e.Fault, true}
		c.reasonFor(v, v.Symbol(e.Link))
	case evidence.FaultHealed:
		for link, g := range c.links {
			if g.label == e.Fault {
				c.links[link] = grievance{v.Now, g.label, false}
			}
		}
	default:
		c.reason(v)
	}
}

// reason also excuses sessions that have just ended: peers notice the end of a
// process before it is reaped.
func (c *stability) reason(v view) {
	c.others = v.Now
	for i := range c.ended {
		c.ended[i].reason = c.ended[i].reason || v.Now.At <= c.ended[i].at.At+v.Limits.InFlightBound
	}
}

func (c *stability) reasonFor(v view, link symbol) {
	for i := range c.ended {
		b := &c.ended[i]
		b.reason = b.reason || b.session.Actor.Name == link && v.Now.At <= b.at.At+v.Limits.InFlightBound
	}
}

func (c *stability) conclude(v view, out *ruling) {
	for _, b := range c.ended {
		if b.reason {
			continue
		}
		// In a run that failed, the reason may be unrecorded.
		out.violate(byAbsence, Finding{Kind: "ended-by-itself", Events: events(b.session.OpenCalled.Seq, b.at.Seq), HandOver: BrokerToConsumer,
			Text: fmt.Sprintf("session %s was ended, and the run gave no reason for it", v.Name(b.name))})
	}
}
