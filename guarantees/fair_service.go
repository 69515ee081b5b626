package guarantees

import (
	"fmt"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees/internal/ledger"
)

// fairRun bounds the consecutive deliveries that may pass over a ready
// consumer.
const fairRun = 20

var fairService = Guarantee{
	Name: evidence.FairService, Usual: "fair dispatch, no starvation",
	Text: "While the consumers of a competing set are served, one that is ready with nothing in hand is served too.",
	Rule: fmt.Sprintf("A consumer with nothing in hand is passed over by at most %d deliveries in a row of messages that were published after it was there. Any fault, order or new session begins the count anew, and while a fault is at work nothing is counted. Not applicable where a rebalance decides who gets what.", fairRun),
	new:  func() checker { return &fairness{sets: make(map[symbol][]*seat), actors: make(map[symbol]*seat)} },
}

type fairness struct {
	sets   map[symbol][]*seat // by logical subscriber
	actors map[symbol]*seat   // the latest session of each consumer
}

// seat is one consumer of a competing set.
type seat struct {
	session symbol
	since   stamp
	at      *session
	inHand  int
	passed  int // consecutive deliveries to others
	told    bool
}

func (c *fairness) on() []evidence.Kind {
	return []evidence.Kind{evidence.SubscribeReturned, evidence.Delivered, evidence.AckReturned, evidence.NackReturned, evidence.FrameCarried,
		evidence.FaultFired, evidence.FaultHealed, evidence.Commanded, evidence.ProcessExited, evidence.ProcessPaused, evidence.SessionEnded}
}

func (c *fairness) observe(v view, e *evidence.Event, m *message, r *receipt, out *ruling) {
	switch e.Kind {
	case evidence.SubscribeReturned:
		if s := v.SessionOf(e); e.OK && s.Sub != nil {
			here := &seat{session: v.Symbol(e.Session), since: v.Now, at: s}
			c.sets[s.Sub.Name] = append(c.live(s.Sub.Name), here)
			c.actors[s.Actor.Name] = here
		}
		c.anew()
	case evidence.Delivered:
		if m != nil {
			c.served(v, e, m, r, out)
		}
	case evidence.AckReturned, evidence.NackReturned:
		if r == nil || len(c.sets[r.Sub]) < 2 {
			return
		}
		for _, here := range c.sets[r.Sub] {
			if here.inHand > 0 && v.Name(here.session) == e.Session {
				here.inHand--
			}
		}
	case evidence.FrameCarried:
		if m != nil && e.Frame == ledger.FrameDeliver {
			if here := c.actors[v.Symbol(e.Link)]; here != nil {
				here.passed = 0
			}
		}
	default:
		c.anew()
	}
}

// live returns the seats of a set whose sessions are live.
func (c *fairness) live(sub symbol) []*seat {
	kept := c.sets[sub][:0]
	for _, s := range c.sets[sub] {
		if s.at.Live {
			kept = append(kept, s)
		}
	}
	return kept
}

func (c *fairness) anew() {
	for _, set := range c.sets {
		for _, s := range set {
			s.passed = 0
		}
	}
}

func (c *fairness) served(v view, e *evidence.Event, m *message, r *receipt, out *ruling) {
	set := c.sets[r.Sub]
	if len(set) < 2 {
		return
	}
	out.instances++
	for _, s := range set {
		switch {
		case s.session == r.Session:
			s.passed = 0
			if !v.Automatic {
				s.inHand++
			}
		case s.inHand > 0 || !s.at.Live || v.FaultActive() || m.Frozen || !s.since.Before(m.Called):
			s.passed = 0
		default:
			if s.passed++; s.passed <= fairRun || s.told {
				continue
			}
			s.told = true
			f := v.finding(m, r, "starved", BrokerToConsumer, s.since.Seq, e.Seq)
			f.Text = fmt.Sprintf("session %s was ready with nothing in hand, and %d messages in a row went to others", v.Name(s.session), s.passed)
			out.violate(byAbsence, f)
		}
	}
}

func (c *fairness) conclude(v view, out *ruling) {
	if v.Profile.Redelivers == evidence.RedeliverRebalance {
		out.notApplicable = "a rebalance decides which consumer gets what"
	}
}
