package defects

import (
	"fmt"
	"strings"
	"time"

	"github.com/custodymq/custody/broker/core"
	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/wire"
)

// filter wraps a state machine: in sees and may change every input, and returns
// false to hide it from the machine; out sees every effect, and appends the
// effects that take its place.
type filter struct {
	inner core.Machine
	in    func(*core.Input) bool
	out   func(e core.Effect, out []core.Effect) []core.Effect
}

func (f *filter) Step(in *core.Input, now core.Instant, out []core.Effect) []core.Effect {
	if f.in != nil && !f.in(in) {
		return out
	}
	from := len(out)
	out = f.inner.Step(in, now, out)
	if f.out == nil {
		return out
	}
	effects := append([]core.Effect(nil), out[from:]...)
	out = out[:from]
	for _, e := range effects {
		out = f.out(e, out)
	}
	return out
}

func said(in *core.Input, kind wire.Kind) bool {
	return in.Kind == core.Received && in.Message.Kind == kind
}

func says(e *core.Effect, kind wire.Kind) bool {
	return e.Kind == core.Send && e.Message.Kind == kind
}

// onSend changes outgoing messages of one kind.
func onSend(inner core.Machine, kind wire.Kind, change func(*wire.Message)) core.Machine {
	return &filter{inner: inner, out: func(e core.Effect, out []core.Effect) []core.Effect {
		if says(&e, kind) {
			change(&e.Message)
		}
		return append(out, e)
	}}
}

func truncate(inner core.Machine) core.Machine {
	const limit = 1 << 10
	return onSend(inner, wire.Deliver, func(m *wire.Message) { m.Payload = m.Payload[:min(limit, len(m.Payload))] })
}

func denyStored(inner core.Machine) core.Machine {
	return onSend(inner, wire.LookupReply, func(m *wire.Message) {
		if m.Answer == wire.Stored {
			m.Answer, m.MessageID, m.Reason = wire.NotSeen, "", ""
		}
	})
}

func settleStored(inner core.Machine) core.Machine {
	return onSend(inner, wire.LookupReply, func(m *wire.Message) {
		if m.Answer == wire.Stored {
			m.Answer = wire.Settled
		}
	})
}

// ignoreDelay replaces the delay of every NACK by the shortest possible.
func ignoreDelay(inner core.Machine) core.Machine {
	return &filter{inner: inner, in: func(in *core.Input) bool {
		if said(in, wire.Nack) && in.Message.Delay >= 0 {
			in.Message.Delay = 1
		}
		return true
	}}
}

func changeTTL(inner core.Machine, change func(time.Duration) time.Duration) core.Machine {
	return &filter{inner: inner, in: func(in *core.Input) bool {
		if said(in, wire.Publish) && in.Message.TTL >= 0 {
			in.Message.TTL = change(in.Message.TTL)
		}
		return true
	}}
}

func shortenTTL(inner core.Machine) core.Machine {
	return changeTTL(inner, func(d time.Duration) time.Duration { return d / 1000 })
}

func ignoreTTL(inner core.Machine) core.Machine {
	return changeTTL(inner, func(time.Duration) time.Duration { return 365 * 24 * time.Hour })
}

// secondRow makes the machine store a repeated message ID under a new one, and
// answers with the old one.
func secondRow(inner core.Machine) core.Machine {
	const mark = "#again"
	seen := map[string]bool{}
	return &filter{
		inner: inner,
		in: func(in *core.Input) bool {
			if id := in.Message.MessageID; said(in, wire.Publish) && id != "" {
				if seen[id] {
					in.Message.MessageID = id + mark
				}
			}
			return true
		},
		out: func(e core.Effect, out []core.Effect) []core.Effect {
			if !says(&e, wire.PublishReply) {
				return append(out, e)
			}
			id, marked := strings.CutSuffix(e.Message.MessageID, mark)
			e.Message.MessageID = id
			e.Message.Again = e.Message.Again || marked
			if e.Message.Answer == wire.Accepted {
				seen[id] = true
			}
			return append(out, e)
		},
	}
}

// asked remembers each publish by its request until it is answered.
type asked map[[2]uint64]wire.Message

func (a asked) note(in *core.Input) {
	if said(in, wire.Publish) {
		a[[2]uint64{uint64(in.Session), in.Message.Request}] = in.Message
	}
}

func (a asked) answered(e *core.Effect) (wire.Message, bool) {
	if !says(e, wire.PublishReply) {
		return wire.Message{}, false
	}
	key := [2]uint64{uint64(e.Session), e.Message.Request}
	m, ok := a[key]
	delete(a, key)
	return m, ok && e.Message.Answer == wire.Declined
}

func declinedID(n int, m wire.Message) string {
	if m.MessageID != "" {
		return m.MessageID
	}
	return fmt.Sprintf("declined-%d-%s", n, m.BusinessID)
}

func storeDeclined(inner core.Machine) core.Machine {
	publishes, n := asked{}, 0
	var now core.Instant
	f := &filter{
		in: func(in *core.Input) bool { publishes.note(in); return true },
		out: func(e core.Effect, out []core.Effect) []core.Effect {
			if m, declined := publishes.answered(&e); declined && m.Topic != "" {
				n++
				ttl := m.TTL
				if ttl <= 0 {
					ttl = time.Hour
				}
				// Ticket 0: no one waits for the result.
				out = append(out, core.Effect{Kind: core.Persist, Operation: store.Operation{Kind: store.Insert, Row: store.Row{
					State: store.Pending, MessageID: declinedID(n, m), BusinessID: m.BusinessID, Topic: m.Topic, Key: m.Key,
					Headers: m.Headers, Payload: m.Payload, Version: wire.Version, InsertedAt: now.Wall, ExpiresAt: now.Wall.Add(ttl),
				}}})
			}
			return append(out, e)
		},
	}
	f.inner = timed{inner, &now}
	return f
}

// timed records the time of each step for the filter around it.
type timed struct {
	core.Machine
	now *core.Instant
}

func (t timed) Step(in *core.Input, now core.Instant, out []core.Effect) []core.Effect {
	*t.now = now
	return t.Machine.Step(in, now, out)
}

// listener is a subscription as a filter sees it.
type listener struct {
	session core.Session
	request uint64
	filter  string
	mode    wire.Mode
}

// listeners tracks subscriptions from the inputs.
type listeners []listener

func (l *listeners) note(in *core.Input) {
	keep := func(drop func(listener) bool) {
		kept := (*l)[:0]
		for _, x := range *l {
			if !drop(x) {
				kept = append(kept, x)
			}
		}
		*l = kept
	}
	switch {
	case said(in, wire.Subscribe):
		*l = append(*l, listener{in.Session, in.Message.Request, in.Message.Topic, in.Message.Mode})
	case said(in, wire.Unsubscribe):
		keep(func(x listener) bool {
			return x.session == in.Session && x.filter == in.Message.Topic && x.mode == in.Message.Mode
		})
	case in.Kind == core.Closed:
		keep(func(x listener) bool { return x.session == in.Session })
	}
}

// deliverDeclined delivers a declined message to any listener of the topic,
// whatever the mode; if there is none, it keeps the message for the next
// subscriber.
func deliverDeclined(inner core.Machine) core.Machine {
	publishes, n := asked{}, 0
	var who listeners
	var kept []wire.Message
	const keepAtMost = 1000
	deliver := func(to listener, m wire.Message) core.Effect {
		return core.Effect{Kind: core.Send, Session: to.session, Message: wire.Message{
			Kind: wire.Deliver, Request: to.request, Topic: m.Topic, BusinessID: m.BusinessID, MessageID: m.MessageID,
			Key: m.Key, Headers: m.Headers, Attempt: 1, Payload: m.Payload,
		}}
	}
	return &filter{
		inner: inner,
		in:    func(in *core.Input) bool { publishes.note(in); who.note(in); return true },
		out: func(e core.Effect, out []core.Effect) []core.Effect {
			out = append(out, e)
			if says(&e, wire.SubscribeReply) && e.Message.Answer == wire.Accepted {
				to := who[len(who)-1]
				rest := kept[:0]
				for _, m := range kept {
					if core.Matches(to.filter, m.Topic) {
						out = append(out, deliver(to, m))
					} else {
						rest = append(rest, m)
					}
				}
				kept = rest
			}
			m, declined := publishes.answered(&e)
			if !declined || m.Topic == "" {
				return out
			}
			n++
			m.MessageID = declinedID(n, m)
			for _, to := range who {
				if core.Matches(to.filter, m.Topic) {
					return append(out, deliver(to, m))
				}
			}
			if len(kept) < keepAtMost {
				kept = append(kept, m)
			}
			return out
		},
	}
}

func deliverToAll(inner core.Machine) core.Machine {
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
				itself := to.session == e.Session && to.request == e.Message.Request
				if !itself && to.mode == wire.AtLeastOnce && core.Matches(to.filter, e.Message.Topic) {
					copied := e
					copied.Session, copied.Message.Request = to.session, to.request
					out = append(out, copied)
				}
			}
			return out
		},
	}
}

// settleOnDelivery acknowledges each delivery in the consumer's name, and answers
// the consumer's own ACK as if it had taken effect.
func settleOnDelivery(inner core.Machine) core.Machine {
	const ours = 1<<64 - 1 // request number of the forged ACK
	return &early{inner: inner, ours: ours, settled: map[string]bool{}}
}

type early struct {
	inner   core.Machine
	ours    uint64
	settled map[string]bool
}

func (f *early) Step(in *core.Input, now core.Instant, out []core.Effect) []core.Effect {
	if said(in, wire.Ack) && f.settled[in.Message.MessageID] {
		return append(out, core.Effect{Kind: core.Send, Session: in.Session, Message: wire.Message{
			Kind: wire.AckReply, Request: in.Message.Request, MessageID: in.Message.MessageID, Answer: wire.Accepted,
		}})
	}
	from := len(out)
	out = f.inner.Step(in, now, out)
	for i := from; i < len(out); i++ { // out grows: an ACK makes room for the next delivery
		e := out[i]
		switch {
		case says(&e, wire.Deliver):
			f.settled[e.Message.MessageID] = true
			ack := core.Input{Kind: core.Received, Session: e.Session, Message: wire.Message{
				Kind: wire.Ack, Request: f.ours, MessageID: e.Message.MessageID, Attempt: e.Message.Attempt,
			}}
			out = f.inner.Step(&ack, now, out)
		case says(&e, wire.AckReply) && e.Message.Request == f.ours:
			out[i] = core.Effect{}
		}
	}
	return out
}

// renameRedelivery translates between the message ID that the machine knows and
// the one that a redelivery carries.
func renameRedelivery(inner core.Machine) core.Machine {
	const mark = "#redelivered"
	return &filter{
		inner: inner,
		in: func(in *core.Input) bool {
			if said(in, wire.Ack) || said(in, wire.Nack) {
				in.Message.MessageID = strings.TrimSuffix(in.Message.MessageID, mark)
			}
			return true
		},
		out: func(e core.Effect, out []core.Effect) []core.Effect {
			if says(&e, wire.Deliver) && e.Message.Again {
				e.Message.MessageID += mark
			}
			return append(out, e)
		},
	}
}

// unmarkRedelivery hides the attempt from deliveries, and applies the consumer's
// acknowledgement to whichever attempt is in flight.
func unmarkRedelivery(inner core.Machine) core.Machine {
	return &filter{
		inner: inner,
		in: func(in *core.Input) bool {
			if said(in, wire.Ack) || said(in, wire.Nack) {
				in.Message.Attempt = 0
			}
			return true
		},
		out: func(e core.Effect, out []core.Effect) []core.Effect {
			if says(&e, wire.Deliver) {
				e.Message.Again, e.Message.Attempt = false, 1
			}
			return append(out, e)
		},
	}
}

// ignoreDisconnect hides the end of a session from the machine and, while a lost
// session holds messages, also the passing of time that would redeliver them.
func ignoreDisconnect(inner core.Machine) core.Machine {
	held := map[core.Session]map[string]bool{}
	lost := map[core.Session]bool{}
	return &filter{
		inner: inner,
		in: func(in *core.Input) bool {
			switch in.Kind {
			case core.Closed:
				lost[in.Session] = true
				return false
			case core.Tick:
				for session := range lost {
					if len(held[session]) > 0 {
						return false
					}
				}
			}
			return true
		},
		out: func(e core.Effect, out []core.Effect) []core.Effect {
			switch id := e.Message.MessageID; {
			case says(&e, wire.Deliver):
				if held[e.Session] == nil {
					held[e.Session] = map[string]bool{}
				}
				held[e.Session][id] = true
			case says(&e, wire.AckReply), says(&e, wire.NackReply):
				delete(held[e.Session], id)
			}
			return append(out, e)
		},
	}
}
