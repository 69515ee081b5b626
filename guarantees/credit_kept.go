package guarantees

import (
	"fmt"
	"time"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees/internal/ledger"
)

var creditKept = Guarantee{
	Name: evidence.CreditKept, Usual: "prefetch, flow control",
	Text: "A session never has more deliveries open than the credit that it asked for.",
	Rule: "Counted by the frames on the session's link, or by deliveries where there are none. A delivery is closed by the call or frame that acknowledges or refuses it, and counts no longer when its hold or its time to live may have run out. Not applicable where acknowledgements are not counted for each message.",
	new:  func() checker { return &crediting{seats: make(map[symbol]*credited)} },
}

type crediting struct{ seats map[symbol]*credited } // by consumer

// credited is a consumer and its open deliveries, oldest first.
type credited struct {
	window, conn int
	session      symbol
	frames       bool // its link shows deliver frames
	open         []opened
	told         bool
}

type opened struct {
	ref   ref
	until time.Duration // earliest end of its hold; -1: lasts as long as the session
}

func (c *crediting) on() []evidence.Kind {
	return []evidence.Kind{evidence.SubscribeCalled, evidence.Delivered, evidence.AckCalled, evidence.NackCalled, evidence.FrameCarried}
}

func (c *crediting) observe(v view, e *evidence.Event, m *message, _ *receipt, out *ruling) {
	if e.Kind == evidence.SubscribeCalled {
		if e.Window <= 0 {
			return
		}
		who := v.Symbol(e.Actor)
		s := c.seats[who]
		if s == nil {
			s = &credited{}
			c.seats[who] = s
		}
		*s = credited{window: e.Window, session: v.Symbol(e.Session), frames: s.frames, open: s.open[:0]}
		return
	}
	if m == nil || len(c.seats) == 0 {
		return
	}
	s := c.seats[v.Symbol(e.Actor)]
	if s == nil || e.Kind != evidence.FrameCarried && v.Name(s.session) != e.Session {
		return
	}
	switch {
	case e.Kind == evidence.Delivered:
		if !s.frames {
			c.opens(v, s, m, e, out)
		}
	case e.Kind != evidence.FrameCarried, e.Frame == frameAck, e.Frame == frameNack:
		s.close(m.Ref)
	case e.Frame == ledger.FrameDeliver && e.Struck == "":
		if e.Conn != s.conn {
			s.conn, s.open = e.Conn, s.open[:0]
		}
		s.frames = true
		c.opens(v, s, m, e, out)
	}
}

const (
	frameAck  = "ack"
	frameNack = "nack"
)

func (s *credited) close(m ref) {
	for i := range s.open {
		if s.open[i].ref == m {
			s.open = append(s.open[:i], s.open[i+1:]...)
			return
		}
	}
}

func (c *crediting) opens(v view, s *credited, m *message, e *evidence.Event, out *ruling) {
	out.instances++
	s.close(m.Ref) // a redelivery takes no additional credit
	if len(s.open) >= s.window {
		kept := s.open[:0]
		for _, o := range s.open {
			if o.until < 0 || v.Now.At < o.until {
				kept = append(kept, o)
			}
		}
		s.open = kept
	}
	s.open = append(s.open, opened{m.Ref, c.certain(v, s, m)})
	if len(s.open) <= s.window || s.told || v.Automatic || v.ClockSet || m.StruckBy("duplicate") {
		if len(s.open) > s.window {
			s.open = s.open[1:]
		}
		return
	}
	s.told = true // once per session
	f := v.finding(m, nil, "over-credit", BrokerToConsumer, e.Seq)
	f.Text = fmt.Sprintf("session %s had %d deliveries open, and asked for no more than %d", v.Name(s.session), len(s.open), s.window)
	out.violate(byEvents, f)
}

// certain returns until when a delivery certainly stays open without an answer
// from its consumer; -1 means as long as the session.
func (c *crediting) certain(v view, s *credited, m *message) time.Duration {
	switch v.Profile.Redelivers {
	case evidence.RedeliverTimeout, evidence.RedeliverClaim:
	default:
		return -1
	}
	from := v.Now.At - v.Limits.InFlightBound
	if o := v.Session(s.session); o != nil {
		from = max(from, o.OpenCalled.At)
	}
	if m.Called.Seq > 1 {
		from = max(from, m.Called.At)
	}
	until := from + v.Limits.RedeliveryPeriod
	if m.TTL > 0 { // expiry returns the credit
		until = max(0, min(until, m.Called.At+m.TTL-v.Limits.ExpiryTolerance))
	}
	return until
}

func (c *crediting) conclude(v view, out *ruling) {
	if v.Automatic || v.Profile.AckCounting != "per-message" {
		out.notApplicable = "acknowledgements are not counted for each message"
	}
}
