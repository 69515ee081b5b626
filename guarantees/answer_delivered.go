package guarantees

import (
	"fmt"

	"github.com/custodymq/custody/evidence"
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
	waiting   map[ref]answerFrame   // answers that have passed, and whose callers have not returned
	heard     map[connection]uint64 // the latest answer's frame of which the caller has returned
	overtaken map[ref]bool          // left unknown though a later answer had been heard
}

// connection of a link.
type connection struct {
	link uint32
	conn int
}

type answerFrame struct {
	connection
	seq uint64
}

func (c *relayed) on() []evidence.Kind {
	return []evidence.Kind{evidence.FrameCarried, evidence.PublishReturned}
}

func (c *relayed) observe(l *ledger, e *evidence.Event, m *message, _ *receipt, _ *ruling) {
	switch {
	case m == nil:
	case e.Kind == evidence.FrameCarried:
		if e.Frame == frameAccept && e.Struck == "" && !e.Negative && m.returned.seq == 0 && len(c.waiting) < maxTentative {
			c.waiting[m.ref] = answerFrame{connection{l.symbol(e.Link), e.Conn}, e.Seq}
		}
	default:
		frame, passed := c.waiting[m.ref]
		if !passed {
			return
		}
		delete(c.waiting, m.ref)
		if e.Acceptance == evidence.Unknown && c.heard[frame.connection] > frame.seq {
			c.overtaken[m.ref] = true
		} else if e.Acceptance == evidence.Accepted {
			c.heard[frame.connection] = max(c.heard[frame.connection], frame.seq)
		}
	}
}

func (c *relayed) close(l *ledger, m *message, out *ruling) {
	if m.frozen || m.called.seq == 0 || m.affirmed.seq == 0 && m.denied.seq == 0 || m.struckAt(frameAccept) || m.struckBy("corrupt", "duplicate") {
		return
	}
	out.instances++
	kind, what := "", ""
	switch {
	case m.affirmed.seq != 0 && m.denied.seq != 0: // both were said, of whatever the frames mean
		return
	case m.returned.seq == 0:
		if !c.passed(l, m, l.now) {
			out.undecided(l.label(m) + " has no answer, and the run ended too soon after the frame of it")
			return
		}
		kind, what = "swallowed", "and the caller never had one"
	case m.affirmed.seq == 0 && m.acceptance == evidence.Accepted && !m.alias:
		kind, what = "unfounded", "that refuses, and the caller was told that it was accepted"
	case m.affirmed.seq == 0:
		return
	case m.acceptance == evidence.Unknown && !m.toldOK:
		if !c.overtaken[m.ref] && !c.passed(l, m, m.returned) {
			return
		}
		kind, what = "swallowed", "that takes responsibility, and the caller was left without"
	case m.refused():
		kind, what = "contradicted", fmt.Sprintf("that takes responsibility, and the caller was told that it was %s", m.acceptance)
	default:
		return
	}
	f := l.finding(m, nil, kind, m.affirmed.seq, m.denied.seq, m.returned.seq)
	f.HandOver = BrokerToClient
	f.Text = fmt.Sprintf("an answer to %s passed the link of its publisher %s", l.label(m), what)
	if kind == "swallowed" && m.returned.seq == 0 {
		out.violate(byAbsence, f)
		return
	}
	out.violate(byEvents, f)
}

// passed reports whether the frame had the time to arrive before its caller
// gave up, and nothing of ours kept it.
func (c *relayed) passed(l *ledger, m *message, until stamp) bool {
	s := l.sessions[m.session]
	at := max(m.affirmed.at, m.denied.at)
	deadline := at + l.limits.InFlightBound
	if until.at <= deadline || s != nil && s.ended.seq != 0 && s.ended.at <= deadline {
		return false
	}
	return !l.delayed(m.actor, at, until.at)
}

func (c *relayed) conclude(*ledger, *ruling) {}
