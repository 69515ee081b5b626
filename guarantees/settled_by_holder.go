package guarantees

import (
	"fmt"

	"github.com/custodymq/custody/evidence"
)

var settledByHolder = Guarantee{
	Name: evidence.SettledByHolder, Usual: "fencing, receipt handle",
	Text: "An acknowledgement is confirmed only to the consumer that holds the message.",
	Rule: "An acknowledgement called after the message had been handed to another session is late: confirmed, it is a violation. That the other had it later is shown by the system's count of attempts, or by its mark: a client may keep an earlier delivery back. One called before, or with no other delivery seen, proves nothing.",
	new:  func() checker { return &fencing{late: make(map[tardy]stamp)} },
}

type fencing struct{ late map[tardy]stamp } // when each late acknowledgement was called

type tardy struct {
	holding
	session symbol
}

func (c *fencing) on() []evidence.Kind {
	return []evidence.Kind{evidence.AckCalled, evidence.AckReturned}
}

func (c *fencing) observe(v view, e *evidence.Event, m *message, r *receipt, out *ruling) {
	if m == nil || r == nil || e.Session == "" {
		return
	}
	mine := v.Name(r.TopSession) == e.Session
	if e.Kind == evidence.AckCalled {
		if holder := v.Session(r.TopSession); holder != nil && holder.Ended.Seq == 0 && !mine && r.Deliveries > 1 && r.TopAt.Before(v.Now) && !m.Frozen && !m.StruckBy("duplicate") && len(c.late) < maxDoubts {
			c.late[tardy{holding{m.Ref, r.Sub}, v.Symbol(e.Session)}] = v.Now
		}
		return
	}
	if e.Ack == evidence.AckConfirmed || e.Ack == evidence.AckRefused {
		out.instances++
	}
	if len(c.late) == 0 {
		return
	}
	k := tardy{holding{m.Ref, r.Sub}, v.Symbol(e.Session)}
	called, ok := c.late[k]
	delete(c.late, k)
	if !ok || mine || r.TopAt.Seq == 0 || e.Ack != evidence.AckConfirmed { // mine: this session may hold the message again
		return
	}
	f := v.finding(m, r, "late-ack-confirmed", ConsumerToBroker, r.TopAt.Seq, called.Seq, e.Seq)
	f.Text = fmt.Sprintf("%s had been handed to session %s, and the acknowledgement that %s then made was confirmed", v.Label(m), v.Name(r.TopSession), e.Session)
	out.violate(byEvents, f)
}

func (c *fencing) conclude(v view, out *ruling) {
	if !v.Profile.AckConfirms {
		out.notApplicable = "this system never confirms an acknowledgement"
	}
}
