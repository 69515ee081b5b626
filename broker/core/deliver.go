package core

import (
	"fmt"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/wire"
)

// The work that one step does beyond its own input is bounded: deliveries,
// expired messages, returned messages, topics scanned for a new filter. A Tick
// armed for immediately does the rest, so that other inputs are processed in
// between. Steps other than ticks do less of it, because many may come at once,
// such as the results of one store turn, and clients wait until all are
// processed.
const (
	tickBudget = 256
	stepBudget = 32
)

// requeue makes a message pending again, or dead-letters it after its last
// attempt.
func (c *Core) requeue(m *message) {
	if int(m.attempts) >= c.cfg.MaxAttempts {
		reason := fmt.Sprintf("%d attempts without an acknowledgement", m.attempts)
		if m.reason != "" {
			reason += ": " + m.reason
		}
		c.deadLetter(m, reason)
		return
	}
	c.become(m, pending)
	c.limitLife(m)
	c.reside(m)
	m.topic.queue.push(m)
	c.touch(m.topic)
}

// feed records that a subscription can take more messages.
func (c *Core) feed(sub *subscription) {
	if sub.of == nil || sub.closed != "" || sub.credit == 0 || !sub.of.joined {
		return
	}
	if !sub.ready {
		sub.ready = true
		sub.of.ready.push(sub)
	}
	if !sub.hungry && sub.of.stocked.len() > 0 {
		sub.hungry = true
		c.hungry.push(sub)
	}
}

// room reports whether a session has room for size more bytes. Its unacknowledged
// bytes are bounded, so that a window of large messages does not fill the queue
// of a peer that is merely slow.
func (c *Core) room(s *session, size int) bool {
	return s.inFlight == 0 || s.inFlight+size <= c.cfg.Limits.InFlightBytes
}

// cramp records that a subscription waits for room in its session.
func (c *Core) cramp(sub *subscription) {
	if !sub.cramped {
		sub.cramped = true
		sub.session.cramped = append(sub.session.cramped, sub)
	}
}

// giveBack returns the credit and the room that a message occupied.
func (c *Core) giveBack(sub *subscription, m *message) {
	s := sub.session
	s.inFlight -= m.size
	if sub.credit < c.cfg.Limits.InFlight {
		c.addCredit(sub, 1)
	}
	waiting := s.cramped
	s.cramped = nil
	for _, other := range waiting { // they share the session's room
		other.cramped = false
		c.feed(other)
	}
}

// dispatch serves what this step made possible. It runs last in a step, so that
// no answer waits for a delivery.
func (c *Core) dispatch() {
	// A new filter looks whatever else there is to do: load must not starve it.
	if c.joining.len() > 0 && c.look(c.joining.first()) {
		c.joining.pop()
	}
	for c.budget > 0 {
		switch {
		case c.leaving.len() > 0:
			if c.giveUp(c.leaving.first()) {
				c.leaving.pop()
			}
		case c.touched.len() > 0:
			t := c.touched.pop()
			t.touched = false
			c.serve(t)
		case c.hungry.len() > 0:
			sub := c.hungry.pop()
			sub.hungry = false
			c.fill(sub)
		default:
			return
		}
	}
}

// unfinished reports whether dispatch or maintain has more to do immediately.
func (c *Core) unfinished() bool {
	return c.maintaining || c.leaving.len()+c.joining.len()+c.touched.len()+c.hungry.len() > 0
}

// serve assigns a topic's messages to its competitors in turn.
func (c *Core) serve(t *topic) {
	c.listen(t)
	for {
		m := c.front(t)
		if m == nil {
			return
		}
		if c.budget <= 0 {
			c.touch(t)
			return
		}
		sub := c.nextReady(t, m.size)
		if sub == nil {
			c.stock(t)
			return
		}
		c.assign(m, sub)
	}
}

// nextReady alternates among the filters that match a topic, and among each
// filter's subscriptions.
func (c *Core) nextReady(t *topic, size int) *subscription {
	for i := range t.matches {
		at := (t.turn + i) % len(t.matches)
		of := t.matches[at].of
		for of.joined && of.ready.len() > 0 {
			sub := of.ready.pop()
			sub.ready = false
			switch {
			case sub.credit == 0 || sub.closed != "":
			case !c.room(sub.session, size):
				c.cramp(sub)
			default:
				sub.ready = true
				of.ready.push(sub)
				t.turn = at + 1
				return sub
			}
		}
	}
	return nil
}

// fill assigns a subscription the oldest messages of all topics that it matches.
func (c *Core) fill(sub *subscription) {
	for sub.credit > 0 && sub.closed == "" {
		if c.budget <= 0 {
			c.feed(sub)
			return
		}
		m := c.oldest(sub.of)
		switch {
		case m == nil:
			return
		case !c.room(sub.session, m.size):
			c.cramp(sub)
			return
		}
		c.assign(m, sub)
	}
}

// oldest returns the first message of all topics that a filter matches, or nil.
func (c *Core) oldest(of *competitors) *message {
	for of.stocked.len() > 0 {
		at := of.stocked.first()
		m := c.front(at.topic)
		switch {
		case m == nil:
			of.stocked.remove(at)
		case m.rank > at.rank:
			at.rank = m.rank
			of.stocked.fix(at)
		default:
			return m
		}
	}
	return nil
}

// front returns a topic's oldest deliverable message, or nil. It expires messages
// itself, independent of the last purge.
func (c *Core) front(t *topic) *message {
	for t.queue.len() > 0 {
		m := t.queue.first()
		if !c.isExpired(m) {
			return m
		}
		if c.budget <= 0 {
			c.touch(t)
			return nil
		}
		c.budget--
		c.expire(m)
	}
	return nil
}

// assign assigns a pending message to one competitor. The message is sent once
// its attempt is durable and its content in memory, and never before messages
// assigned earlier to the same competitor.
func (c *Core) assign(m *message, sub *subscription) {
	c.budget--
	c.dequeue(m)
	c.settleDown(m)
	c.addCredit(sub, -1)
	sub.session.inFlight += m.size
	c.become(m, assigned)
	m.sub = sub
	sub.pipeline.push(m)
	if attempt := m.attempts + 1; m.recorded < attempt && m.recording < attempt {
		c.record(m, attempt)
	}
	if m.content == nil {
		c.want(m)
	}
	c.flush(sub)
}

// unassign removes a message from its competitor's pipeline.
func (c *Core) unassign(m *message) *subscription {
	sub := m.sub
	sub.pipeline.remove(m)
	m.sub = nil
	c.giveBack(sub, m)
	return sub
}

func (c *Core) record(m *message, attempt int32) {
	m.recording = attempt
	c.persist(ticket{kind: store.Attempt, m: m, attempt: attempt}, store.Row{
		MessageID: m.id, Attempts: int(attempt), LastConsumer: m.sub.session.name, Group: m.sub.group,
	})
}

func (c *Core) flush(sub *subscription) {
	for sub.closed == "" && !c.draining {
		m := sub.pipeline.head
		if m == nil || m.recorded <= m.attempts || m.content == nil {
			return
		}
		sub.pipeline.remove(m)
		if c.isExpired(m) {
			c.giveBack(sub, m)
			c.expire(m)
			continue
		}
		c.deliver(m, sub)
	}
}

func (c *Core) deliver(m *message, sub *subscription) {
	c.become(m, inFlight)
	m.attempts++
	m.lastConsumer = sub.session.name
	sub.inFlight.push(m)
	c.wake(m, c.now.Elapsed+c.cfg.Visibility)
	c.stats.Delivered++
	if m.attempts > 1 {
		c.stats.Redelivered++
	}
	c.send(sub.session.id, wire.Message{
		Kind: wire.Deliver, Request: sub.request, Topic: m.topic.name, BusinessID: m.businessID, MessageID: m.id,
		Key: m.content.key, Headers: m.content.headers, Attempt: int(m.attempts), Again: m.attempts > 1, Payload: m.content.payload,
	})
	c.reside(m)
}

func (c *Core) attemptRecorded(t ticket, err error) {
	m := t.m
	switch {
	case err == nil:
		m.recorded = t.attempt
	case m.recording == t.attempt:
		m.recording = m.recorded
	}
	switch {
	case m.state != assigned:
	case err == nil:
		c.flush(m.sub)
	case m.recording <= m.attempts: // the store failed to count the attempt, so it is not made
		sub := c.unassign(m)
		c.delay(m, c.cfg.StoreRetry)
		c.flush(sub)
	}
}

// end ends a delivery, whatever its outcome.
func (c *Core) end(m *message) {
	sub := m.sub
	c.timers.remove(m)
	sub.inFlight.remove(m)
	m.sub = nil
	c.giveBack(sub, m)
}

// release ends an attempt that was not acknowledged, and schedules the next.
func (c *Core) release(m *message, why string, delay time.Duration) {
	c.end(m)
	m.reason = Clip(why)
	if delay > 0 && int(m.attempts) < c.cfg.MaxAttempts {
		c.delay(m, delay)
		return
	}
	c.requeue(m)
}

func (c *Core) delay(m *message, d time.Duration) {
	c.become(m, delayed)
	c.limitLife(m)
	c.reside(m)
	c.wake(m, c.now.Elapsed+d)
}

// delivery returns the message if this session holds this attempt of it,
// otherwise the reason.
func (c *Core) delivery(s *session, q *wire.Message) (*message, string) {
	m := c.messages[q.MessageID]
	switch {
	case m == nil:
		return nil, "no message with this ID is stored: it was settled, or never was one"
	case m.state == dead:
		return nil, "in the dead-letter queue already"
	case m.state != inFlight:
		return nil, "the delivery has ended: its time was up, or it was given back"
	case m.sub.session != s:
		return nil, "held by another consumer by now"
	case q.Attempt != 0 && q.Attempt != int(m.attempts):
		return nil, fmt.Sprintf("attempt %d has ended; attempt %d is under way", q.Attempt, m.attempts)
	}
	return m, ""
}

// ack stops delivery at once; the row is deleted afterwards.
func (c *Core) ack(s *session, q *wire.Message) {
	reply := wire.Message{Kind: wire.AckReply, Request: q.Request, MessageID: q.MessageID, Answer: wire.Accepted}
	m, why := c.delivery(s, q)
	if m == nil {
		reply.Answer, reply.Reason = wire.Refused, why
		c.send(s.id, reply)
		return
	}
	c.end(m)
	c.stats.Settled++
	m.reason = store.EndAcknowledged
	c.finish(m, settled)
	if c.cfg.ConfirmAfterDelete {
		c.settleInStore(m, caller{s.id, q.Request})
		return
	}
	c.send(s.id, reply)
	c.settleInStore(m, caller{})
}

// settleInStore deletes or marks the row. acker, if set, is answered once that is
// done.
func (c *Core) settleInStore(m *message, acker caller) {
	kind := store.Delete
	if c.cfg.KeepHistory && m.state == settled {
		kind = store.Settle
	}
	c.persist(ticket{kind: kind, m: m, asker: acker}, c.rowOf(m))
}

// settledInStore handles the result of a delete or mark. A failed one is retried
// as long as the broker runs. To clients the message is finished whatever the
// store reports.
func (c *Core) settledInStore(t ticket, err error) {
	m := t.m
	if t.asker != (caller{}) && c.sessions[t.asker.session] != nil {
		reply := wire.Message{Kind: wire.AckReply, Request: t.asker.request, MessageID: m.id, Answer: wire.Accepted}
		if err != nil {
			reply.Answer, reply.Reason = wire.Unknown, Clip("delivery has stopped, but the row could not be deleted yet: "+err.Error())
		}
		c.send(t.asker.session, reply)
	}
	switch {
	case err != nil:
		c.wake(m, c.now.Elapsed+c.cfg.StoreRetry)
	case m.state == uncertain:
		c.forget(m) // proven not stored
	}
}

func (c *Core) nack(s *session, q *wire.Message) {
	reply := wire.Message{Kind: wire.NackReply, Request: q.Request, MessageID: q.MessageID, Answer: wire.Accepted}
	m, why := c.delivery(s, q)
	switch {
	case m == nil:
		reply.Answer, reply.Reason = wire.Refused, why
	case q.Delay < 0:
		reply.Answer, reply.Reason = wire.Refused, "a delay must not be negative"
	}
	c.send(s.id, reply)
	if reply.Answer == wire.Refused {
		return
	}
	if q.DeadLetter {
		c.end(m)
		c.deadLetter(m, "rejected by the consumer: "+q.Reason)
		return
	}
	delay := q.Delay
	if delay == 0 {
		delay = c.cfg.Backoff.after(int(m.attempts))
	}
	c.release(m, q.Reason, delay)
}

// timeouts handles the timers that are due, as far as the budget allows.
func (c *Core) timeouts() {
	for ; c.timers.len() > 0 && c.budget > 0; c.budget-- {
		m := c.timers.first()
		if m.wakes > c.now.Elapsed {
			return
		}
		c.timers.remove(m)
		switch m.state {
		case inFlight:
			c.release(m, fmt.Sprintf("no answer within %v from %s", c.cfg.Visibility, m.lastConsumer), 0)
		case delayed:
			c.requeue(m)
		case dead:
			c.persist(ticket{kind: store.DeadLetter, m: m}, c.rowOf(m))
		default: // settled, expired, uncertain: the delete failed
			c.settleInStore(m, caller{})
		}
	}
}
