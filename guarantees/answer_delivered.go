package guarantees

import (
	"fmt"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees/internal/ledger"
)

var answerDelivered = Guarantee{
	Name: evidence.AnswerDelivered, Usual: "publisher confirms",
	Text: "An answer whose frame passed the link towards its publisher reaches the caller, and the caller is told what it says.",
	Rule: "A frame that takes responsibility against a publish told declined or rejected is a contradiction, and so is one that does not against a publish told accepted. A publish that stays unknown is a violation if a later answer on the same connection had reached its caller before, for a connection keeps its order; or if the frame had passed for longer than the in-flight bound, with the publisher's session alive, nothing of it struck, and no fault that delays on that link.",
	new: func() checker {
		return &relayed{waiting: make(map[ref]answerFrame), heard: make(map[connection]uint64), overtaken: make(map[ref]bool)}
	},
}

type relayed struct {
	waiting   map[ref]answerFrame   // answers that passed the link while their callers were still waiting
	heard     map[connection]uint64 // the latest frame whose answer reached its caller
	overtaken map[ref]bool          // left unknown although a later answer had arrived
}

// connection is one connection of a link.
type connection struct {
	link symbol
	conn int
}

type answerFrame struct {
	connection
	seq uint64
}

func (c *relayed) on() []evidence.Kind {
	return []evidence.Kind{evidence.FrameCarried, evidence.PublishReturned}
}

func (c *relayed) observe(v view, e *evidence.Event, m *message, _ *receipt, _ *ruling) {
	switch {
	case m == nil:
	case e.Kind == evidence.FrameCarried:
		if e.Frame == ledger.FrameAccept && e.Struck == "" && !e.Negative && m.Returned.Seq == 0 && len(c.waiting) < maxTentative {
			c.waiting[m.Ref] = answerFrame{connection{v.Symbol(e.Link), e.Conn}, e.Seq}
		}
	default:
		frame, passed := c.waiting[m.Ref]
		if !passed {
			return
		}
		delete(c.waiting, m.Ref)
		if e.Acceptance == evidence.Unknown && c.heard[frame.connection] > frame.seq {
			c.overtaken[m.Ref] = true
		} else if e.Acceptance == evidence.Accepted {
			c.heard[frame.connection] = max(c.heard[frame.connection], frame.seq)
		}
	}
}

func (c *relayed) close(v view, m *message, out *ruling) {
	if m.Frozen || m.Called.Seq == 0 || m.Affirmed.Seq == 0 && m.Denied.Seq == 0 || m.StruckAt(ledger.FrameAccept) || m.StruckBy("corrupt", "duplicate") {
		return
	}
	out.instances++
	kind, what := "", ""
	switch {
	case m.Affirmed.Seq != 0 && m.Denied.Seq != 0: // both answers passed, so neither is proven
		return
	case m.Returned.Seq == 0:
		if !c.passed(v, m, v.Now) {
			out.undecided(v.Label(m) + " has no answer, and the run ended too soon after the frame of it")
			return
		}
		kind, what = "swallowed", "and the caller never had one"
	case m.Affirmed.Seq == 0 && m.Acceptance == evidence.Accepted && !m.Alias:
		kind, what = "unfounded", "that refuses, and the caller was told that it was accepted"
	case m.Affirmed.Seq == 0:
		return
	case m.Acceptance == evidence.Unknown && !m.ToldOK:
		if !c.overtaken[m.Ref] && !c.passed(v, m, m.Returned) {
			return
		}
		kind, what = "swallowed", "that takes responsibility, and the caller was left without"
	case m.Refused():
		kind, what = "contradicted", fmt.Sprintf("that takes responsibility, and the caller was told that it was %s", m.Acceptance)
	default:
		return
	}
	f := v.finding(m, nil, kind, BrokerToClient, m.Affirmed.Seq, m.Denied.Seq, m.Returned.Seq)
	f.Text = fmt.Sprintf("an answer to %s passed the link of its publisher %s", v.Label(m), what)
	if kind == "swallowed" && m.Returned.Seq == 0 {
		out.violate(byAbsence, f)
		return
	}
	out.violate(byEvents, f)
}

// passed reports whether the frame had time to arrive before its caller gave
// up, and no fault delayed it.
func (c *relayed) passed(v view, m *message, until stamp) bool {
	s := v.Session(m.Session)
	at := max(m.Affirmed.At, m.Denied.At)
	deadline := at + v.Limits.InFlightBound
	if until.At <= deadline || s != nil && s.Ended.Seq != 0 && s.Ended.At <= deadline {
		return false
	}
	return !v.Delayed(m.Actor, at, until.At)
}
