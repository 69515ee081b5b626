package defects

import (
	"maps"
	"slices"

	"github.com/custodymq/custody/broker/core"
	"github.com/custodymq/custody/broker/wire"
)

// The defects in this file break what a broker promises about sessions and
// answers: who receives a message, how many at once, and whether anyone is told.

// misroute also sends every message to a subscription of another topic, if there
// is one.
func misroute(inner core.Machine) core.Machine {
	var who listeners
	return &filter{
		inner: inner,
		in:    func(in *core.Input) bool { who.note(in); return true },
		out: func(e core.Effect, out []core.Effect) []core.Effect {
			out = append(out, e)
			if !says(&e, wire.Deliver) || e.Message.Again {
				return out
			}
			for _, to := range who {
				if !core.Matches(to.filter, e.Message.Topic) {
					stray := e
					stray.Session, stray.Message.Request = to.session, to.request
					return append(out, stray)
				}
			}
			return out
		},
	}
}

// everyNth returns a function that counts its calls and returns true for every
// n-th.
func everyNth(n int) func() bool {
	count := 0
	return func() bool {
		count++
		return count%n == 0
	}
}

// shareIDs answers every tenth publish with the previous one's message ID.
func shareIDs(inner core.Machine) core.Machine {
	due, last := everyNth(10), ""
	return onSend(inner, wire.PublishReply, func(m *wire.Message) {
		if m.Answer != wire.Accepted || m.Again {
			return
		}
		own := m.MessageID
		if due() && last != "" {
			m.MessageID = last
		}
		last = own
	})
}

// refusing declines every n-th at-least-once publish before the machine sees it.
type refusing struct {
	inner core.Machine
	due   func() bool
}

func declineSome(inner core.Machine) core.Machine {
	return &refusing{inner, everyNth(10)}
}

func (r *refusing) Step(in *core.Input, now core.Instant, out []core.Effect) []core.Effect {
	if m := in.Message; said(in, wire.Publish) && m.Mode == wire.AtLeastOnce && r.due() {
		return append(out, core.Effect{Kind: core.Send, Session: in.Session, Message: wire.Message{Kind: wire.PublishReply, Request: m.Request,
			MessageID: m.MessageID, Answer: wire.Declined, Cause: wire.NoConsumer, Reason: "no online consumer matches this topic"}})
	}
	return r.inner.Step(in, now, out)
}

// forgetAnswers drops the answer to every tenth publish.
func forgetAnswers(inner core.Machine) core.Machine {
	due := everyNth(10)
	return &filter{inner: inner, out: func(e core.Effect, out []core.Effect) []core.Effect {
		if says(&e, wire.PublishReply) && due() {
			return out
		}
		return append(out, e)
	}}
}

// ignoreCredit widens every window a thousandfold.
func ignoreCredit(inner core.Machine) core.Machine {
	return &filter{inner: inner, in: func(in *core.Input) bool {
		if said(in, wire.Subscribe) || said(in, wire.Credit) {
			in.Message.Credit = min(1000*in.Message.Credit, wire.MaxCredit)
		}
		return true
	}}
}

// starveLatecomers grants credit only to the first subscription.
func starveLatecomers(inner core.Machine) core.Machine {
	var who listeners
	return &filter{inner: inner, in: func(in *core.Input) bool {
		who.note(in)
		if said(in, wire.Subscribe) && len(who) > 1 {
			in.Message.Credit = 0
		}
		return true
	}}
}

// dropSessions closes a session after thirty deliveries.
func dropSessions(inner core.Machine) core.Machine {
	const most = 30
	sent := map[core.Session]int{}
	return &filter{inner: inner, out: func(e core.Effect, out []core.Effect) []core.Effect {
		out = append(out, e)
		if says(&e, wire.Deliver) {
			if sent[e.Session]++; sent[e.Session] == most {
				out = append(out, core.Effect{Kind: core.CloseSession, Session: e.Session, Reason: "enough"})
			}
		}
		return out
	}}
}

// redeliverBackwards holds a redelivery back until the next one, which it sends
// first; one without a successor is sent at the next tick.
func redeliverBackwards(inner core.Machine) core.Machine {
	return &backwards{inner: inner, kept: map[core.Session]core.Effect{}}
}

type backwards struct {
	inner core.Machine
	kept  map[core.Session]core.Effect
}

func (b *backwards) Step(in *core.Input, now core.Instant, out []core.Effect) []core.Effect {
	if in.Kind == core.Tick {
		for _, session := range slices.Sorted(maps.Keys(b.kept)) {
			out = append(out, b.kept[session])
			delete(b.kept, session)
		}
	}
	for _, e := range b.inner.Step(in, now, nil) {
		kept, waits := b.kept[e.Session]
		switch {
		case says(&e, wire.Deliver) && waits:
			delete(b.kept, e.Session)
			out = append(out, e, kept)
		case says(&e, wire.Deliver) && e.Message.Again:
			b.kept[e.Session] = e
		default:
			out = append(out, e)
		}
	}
	return out
}

// anybodySettles treats an ACK from anyone as coming from the message's holder.
func anybodySettles(inner core.Machine) core.Machine {
	return &usurped{inner: inner, holder: map[string]core.Effect{}}
}

type usurped struct {
	inner  core.Machine
	holder map[string]core.Effect // the latest delivery of each message
}

func (u *usurped) Step(in *core.Input, now core.Instant, out []core.Effect) []core.Effect {
	from, asker := len(out), in.Session
	held, known := u.holder[in.Message.MessageID]
	usurps := said(in, wire.Ack) && known && (held.Session != asker || held.Message.Attempt != in.Message.Attempt)
	if usurps {
		in.Session, in.Message.Attempt = held.Session, held.Message.Attempt
	}
	out = u.inner.Step(in, now, out)
	for i := from; i < len(out); i++ {
		switch e := &out[i]; {
		case says(e, wire.Deliver):
			u.holder[e.Message.MessageID] = *e
		case usurps && says(e, wire.AckReply) && e.Message.Request == in.Message.Request:
			e.Session = asker
		}
	}
	return out
}
