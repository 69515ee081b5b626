package guarantees

import (
	"fmt"

	"github.com/custodymq/custody/evidence"
)

var ackIsFinal = Guarantee{
	Name: evidence.AckIsFinal, Usual: "acknowledged means done",
	Text: "After a confirmed acknowledgement the message is not delivered again to that logical subscriber, and its row goes.",
	Rule: "Proven by a deliver frame behind the confirm's frame on one connection, or by a delivery on a session whose opening was called after the confirm returned. On another session already open it is concurrent, unless it comes later than the in-flight bound. A row still there after the delete bound is a violation. Under which failures of the broker and its store this is promised is the claim's to say; only a broker that ended by itself, which is a finding of its own, excuses what it had not made durable.",
	new:  func() checker { return &final{} },
}

type final struct{ absorbed int }

func (c *final) on() []evidence.Kind {
	return []evidence.Kind{evidence.AckReturned, evidence.Delivered, evidence.FrameCarried}
}

func (c *final) observe(l *ledger, e *evidence.Event, m *message, r *receipt, out *ruling) {
	switch {
	case m == nil || r == nil:
	case e.Kind == evidence.AckReturned:
		if r.confirm.seq == e.Seq {
			out.instances++
		}
	case e.Kind == evidence.Delivered:
		c.delivered(l, e, m, r, out)
	case e.Frame == frameDeliver && e.Struck == "":
		c.frame(l, e, m, r, out)
	}
}

// frame judges a deliver frame at a link.
func (c *final) frame(l *ledger, e *evidence.Event, m *message, r *receipt, out *ruling) {
	link := l.symbol(e.Link)
	switch {
	case r.confirmFrame != 0 && r.confirmLink == link && r.confirmConn == e.Conn:
		c.again(l, e, m, r, out, "frame-after-confirm", "was sent again behind the frame that confirmed its acknowledgement")
	case r.confirm.seq != 0 && l.late(r) && !l.delayed(link, r.confirm.at+l.limits.InFlightBound, l.now.at):
		c.again(l, e, m, r, out, "after-bound", "was sent again, later than a frame can be under way")
	}
}

// delivered judges a delivery. Client buffers reorder, so one on a session that
// was open when the confirm came proves nothing by itself.
func (c *final) delivered(l *ledger, e *evidence.Event, m *message, r *receipt, out *ruling) {
	if r.confirm.seq == 0 {
		return
	}
	s := l.sessionOf(e)
	switch {
	case r.confirm.before(s.openCalled):
		c.again(l, e, m, r, out, "new-session", "was delivered again on a session opened after its acknowledgement was confirmed")
	case !l.deliverFrames && l.late(r) && !l.delayed(s.actor.name, r.confirm.at+l.limits.InFlightBound, l.now.at):
		c.again(l, e, m, r, out, "after-bound", "was delivered again, later than a frame can be under way")
	}
}

// late: now is past the time in which a frame sent before the confirm can arrive.
func (l *ledger) late(r *receipt) bool {
	return l.limits.InFlightBound > 0 && l.now.at > r.confirm.at+l.limits.InFlightBound
}

// undone: the broker ended by itself after the acknowledgement was made, and
// before what it does for it had to be done.
func (l *ledger) undone(r *receipt) bool {
	return !l.manifest.Profile.ConfirmIsDurable && l.failedAround(r, true)
}

func (c *final) again(l *ledger, e *evidence.Event, m *message, r *receipt, out *ruling, kind, what string) {
	if l.undone(r) || m.struckBy("duplicate") {
		c.absorbed++
		return
	}
	f := l.finding(m, r, kind, r.ackCalled.seq, r.confirm.seq, r.confirmFrame, e.Seq)
	f.HandOver = ConsumerToBroker
	f.Text = fmt.Sprintf("%s %s", l.label(m), what)
	f.Follows = []string{evidence.SingleEffect, evidence.NoDuplicateDelivery}
	out.violate(byEvents, f)
}

// close judges the rows of what was acknowledged.
func (c *final) close(l *ledger, m *message, out *ruling) {
	bound := l.limits.DeleteBound
	if bound <= 0 || len(m.rows) == 0 || len(m.receipts) == 0 {
		return
	}
	for _, s := range m.rows {
		snapshot := s.snapshot
		legal := s.row.State != evidence.RowPending &&
			(s.row.State != evidence.RowProcessed || l.manifest.Profile.KeepsRows)
		if legal || !s.certain || snapshot.Trust != evidence.Exact {
			continue
		}
		// The row of a message that several subscribers share goes with the last.
		var last *receipt
		for i := range m.receipts {
			r := &m.receipts[i]
			if s.row.Subscription != "" && l.name(r.sub) != s.row.Subscription || !r.must && r.deliveries == 0 {
				continue
			}
			if r.confirm.seq == 0 {
				last = nil
				break
			}
			if last == nil || r.confirm.at > last.confirm.at {
				last = r
			}
		}
		if last == nil || snapshot.At <= last.confirm.at+bound || l.paused(last.confirm.at, snapshot.At) || l.undone(last) || m.struckBy("duplicate") {
			continue
		}
		f := l.finding(m, last, "row-kept", last.confirm.seq, snapshot.Seq)
		f.HandOver = BrokerToDelete
		f.Text = fmt.Sprintf("%s was acknowledged, and %s is still there %v later", l.label(m), l.rowText(s), snapshot.At-last.confirm.at)
		f.Follows = []string{evidence.RowsMatchClients}
		out.violate(byEvents, f)
		return
	}
}

func (c *final) conclude(l *ledger, out *ruling) {
	if !l.manifest.Profile.AckConfirms {
		out.notApplicable = "this system never confirms an acknowledgement"
	}
	out.layers = []Layer{{"consumption log", "absorbed", l.absorbed}}
	if c.absorbed > 0 {
		out.held = fmt.Sprintf("%d came again after the broker had ended by itself, or because we had sent a copy", c.absorbed)
	}
}
