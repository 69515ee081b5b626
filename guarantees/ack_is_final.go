package guarantees

import (
	"fmt"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/guarantees/internal/ledger"
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

func (c *final) observe(v view, e *evidence.Event, m *message, r *receipt, out *ruling) {
	switch {
	case m == nil || r == nil:
	case e.Kind == evidence.AckReturned:
		if r.Confirm.Seq == e.Seq {
			out.instances++
		}
	case e.Kind == evidence.Delivered:
		c.delivered(v, e, m, r, out)
	case e.Frame == ledger.FrameDeliver && e.Struck == "":
		c.frame(v, e, m, r, out)
	}
}

// frame judges a deliver frame at a link.
func (c *final) frame(v view, e *evidence.Event, m *message, r *receipt, out *ruling) {
	link := v.Symbol(e.Link)
	switch {
	case r.ConfirmFrame != 0 && r.ConfirmLink == link && r.ConfirmConn == e.Conn:
		c.again(v, e, m, r, out, "frame-after-confirm", "was sent again behind the frame that confirmed its acknowledgement")
	case r.Confirm.Seq != 0 && v.late(r) && !v.Delayed(link, r.Confirm.At+v.Limits.InFlightBound, v.Now.At):
		c.again(v, e, m, r, out, "after-bound", "was sent again, later than a frame can be under way")
	}
}

// delivered judges a delivery. Client buffers reorder, so a delivery on a
// session that was open when the confirm arrived proves nothing by itself.
func (c *final) delivered(v view, e *evidence.Event, m *message, r *receipt, out *ruling) {
	if r.Confirm.Seq == 0 {
		return
	}
	s := v.SessionOf(e)
	switch {
	case r.Confirm.Before(s.OpenCalled):
		c.again(v, e, m, r, out, "new-session", "was delivered again on a session opened after its acknowledgement was confirmed")
	case !v.DeliverFrames && v.late(r) && !v.Delayed(s.Actor.Name, r.Confirm.At+v.Limits.InFlightBound, v.Now.At):
		c.again(v, e, m, r, out, "after-bound", "was delivered again, later than a frame can be under way")
	}
}

// late reports whether a frame sent before the confirm must have arrived by now.
func (v view) late(r *receipt) bool {
	return v.Limits.InFlightBound > 0 && v.Now.At > r.Confirm.At+v.Limits.InFlightBound
}

// undone reports whether the broker crashed on its own before it had to make
// the acknowledgement durable.
func (v view) undone(r *receipt) bool {
	return !v.Profile.ConfirmIsDurable && v.CrashedAround(r)
}

func (c *final) again(v view, e *evidence.Event, m *message, r *receipt, out *ruling, kind, what string) {
	if v.undone(r) || m.Copied() {
		c.absorbed++
		return
	}
	f := v.finding(m, r, kind, ConsumerToBroker, r.AckCalled.Seq, r.Confirm.Seq, r.ConfirmFrame, e.Seq)
	f.Text = fmt.Sprintf("%s %s", v.Label(m), what)
	f.Follows = []string{evidence.SingleEffect, evidence.NoDuplicateDelivery}
	out.violate(byEvents, f)
}

// close judges the rows of acknowledged messages.
func (c *final) close(v view, m *message, out *ruling) {
	bound := v.Limits.DeleteBound
	if bound <= 0 || len(m.Rows) == 0 || len(m.Receipts) == 0 {
		return
	}
	for _, s := range m.Rows {
		snapshot := s.Snapshot
		legal := s.Row.State != evidence.RowPending &&
			(s.Row.State != evidence.RowProcessed || v.Profile.KeepsRows)
		if legal || !s.Certain || snapshot.Trust != evidence.Exact {
			continue
		}
		// A row shared by several subscribers is deleted with the last
		// acknowledgement.
		var last *receipt
		for i := range m.Receipts {
			r := &m.Receipts[i]
			if s.Row.Subscription != "" && v.Name(r.Sub) != s.Row.Subscription || !r.Must && r.Deliveries == 0 {
				continue
			}
			if r.Confirm.Seq == 0 {
				last = nil
				break
			}
			if last == nil || r.Confirm.At > last.Confirm.At {
				last = r
			}
		}
		if last == nil || snapshot.At <= last.Confirm.At+bound || v.Paused(last.Confirm.At, snapshot.At) || v.undone(last) || m.Copied() {
			continue
		}
		f := v.finding(m, last, "row-kept", BrokerToDelete, last.Confirm.Seq, snapshot.Seq)
		f.Text = fmt.Sprintf("%s was acknowledged, and %s is still there %v later", v.Label(m), v.rowText(s), snapshot.At-last.Confirm.At)
		f.Follows = []string{evidence.RowsMatchClients}
		out.violate(byEvents, f)
		return
	}
}

func (c *final) conclude(v view, out *ruling) {
	if !v.Profile.AckConfirms {
		out.notApplicable = "this system never confirms an acknowledgement"
	}
	out.layers = []Layer{{"consumption log", "absorbed", v.Absorbed}}
	if c.absorbed > 0 {
		out.held = fmt.Sprintf("%d came again after the broker had ended by itself, or because more than one copy was sent to it", c.absorbed)
	}
}
