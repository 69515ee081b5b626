package core

import (
	"container/heap"
	"fmt"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/wire"
)

// requeue makes a message pending, for whoever competes for it.
func (c *Core) requeue(m *message) {
	m.sub = nil
	if m.attempts >= c.cfg.MaxAttempts {
		reason := fmt.Sprintf("%d attempts without an acknowledgement", m.attempts)
		if m.reason != "" {
			reason += ": " + m.reason
		}
		c.deadLetter(m, reason)
		return
	}
	m.state = pending
	heap.Push(&m.topic.queue, m)
	c.stocked = append(c.stocked, m.topic)
}

// feed notes that a subscription may take more.
func (c *Core) feed(sub *subscription) {
	if sub.mode == wire.AtLeastOnce && !sub.closed {
		c.hungry = append(c.hungry, sub)
	}
}

// room: a session's unanswered bytes are bounded, so that a window of large
// messages does not fill the queue of a peer that is only slow.
func (c *Core) room(s *session, size int) bool {
	return s.held == 0 || s.held+size <= c.cfg.Limits.InFlightBytes
}

// giveBack returns the credit and the room that a message took.
func (c *Core) giveBack(sub *subscription, m *message) {
	sub.credit = min(sub.credit+1, c.cfg.Limits.InFlight)
	sub.session.held -= m.size
	for _, other := range sub.session.subs { // the room is all of theirs
		c.feed(other)
	}
}

// dispatch serves what this step made possible: after everything else, so that
// no answer waits for a delivery.
func (c *Core) dispatch() {
	for len(c.stocked)+len(c.hungry) > 0 {
		if n := len(c.stocked); n > 0 {
			t := c.stocked[n-1]
			c.stocked = c.stocked[:n-1]
			c.serve(t)
			continue
		}
		n := len(c.hungry)
		sub := c.hungry[n-1]
		c.hungry = c.hungry[:n-1]
		c.fill(sub)
	}
}

// serve gives a topic's messages to its competitors, in turn.
func (c *Core) serve(t *topic) {
	for {
		m := c.front(t)
		if m == nil {
			return
		}
		sub := c.nextReady(t, m.size)
		if sub == nil {
			return
		}
		heap.Pop(&t.queue)
		c.assign(m, sub)
	}
}

func (c *Core) nextReady(t *topic, size int) *subscription {
	for i := range t.least {
		at := (t.turn + i) % len(t.least)
		if sub := t.least[at]; sub.credit > 0 && c.room(sub.session, size) {
			t.turn = at + 1
			return sub
		}
	}
	return nil
}

// fill gives a subscription the oldest messages of all topics that it matches.
func (c *Core) fill(sub *subscription) {
	for sub.credit > 0 && !sub.closed {
		var oldest *message
		for _, t := range sub.topics {
			if m := c.front(t); m != nil && (oldest == nil || m.rank < oldest.rank) {
				oldest = m
			}
		}
		if oldest == nil || !c.room(sub.session, oldest.size) {
			return
		}
		heap.Pop(&oldest.topic.queue)
		c.assign(oldest, sub)
	}
}

// front is the oldest deliverable message. What expired is filtered here,
// whatever the last purge left.
func (c *Core) front(t *topic) *message {
	for len(t.queue) > 0 {
		m := t.queue[0]
		if m.state != pending {
			heap.Pop(&t.queue)
			continue
		}
		if !c.isExpired(m) {
			return m
		}
		heap.Pop(&t.queue)
		c.expire(m)
	}
	return nil
}

// assign gives a message to one competitor. It is sent when its attempt is
// durable, and never before what was assigned to the same competitor earlier.
func (c *Core) assign(m *message, sub *subscription) {
	sub.credit--
	sub.session.held += m.size
	m.state, m.sub = assigned, sub
	sub.pipeline = append(sub.pipeline, m)
	if attempt := m.attempts + 1; m.recorded < attempt && m.recording < attempt {
		c.record(m, attempt)
	}
	c.flush(sub)
}

func (c *Core) record(m *message, attempt int) {
	m.recording = attempt
	c.persist(ticket{kind: store.Attempt, m: m, attempt: attempt}, store.Row{
		MessageID: m.id, Attempts: attempt, LastConsumer: m.sub.session.name, Group: m.sub.group,
	})
}

func (c *Core) flush(sub *subscription) {
	for len(sub.pipeline) > 0 && !c.draining {
		m := sub.pipeline[0]
		if m.recorded <= m.attempts {
			return
		}
		sub.pipeline[0] = nil
		sub.pipeline = sub.pipeline[1:]
		if c.isExpired(m) {
			c.expire(m)
			c.giveBack(sub, m)
			continue
		}
		c.deliver(m, sub)
	}
}

func (c *Core) deliver(m *message, sub *subscription) {
	m.state = inFlight
	m.attempts++
	m.lastConsumer = sub.session.name
	sub.inFlight[m] = struct{}{}
	c.timers.set(m, c.now.Elapsed+c.cfg.Visibility)
	c.stats.Delivered++
	if m.attempts > 1 {
		c.stats.Redelivered++
	}
	c.send(sub.session.id, wire.Message{
		Kind: wire.Deliver, Request: sub.request, Topic: m.topic.name, BusinessID: m.businessID, MessageID: m.id,
		Key: m.key, Headers: m.headers, Attempt: m.attempts, Again: m.attempts > 1, Payload: m.payload,
	})
}

func (c *Core) attemptRecorded(t ticket, err error) {
	m := t.m
	if err == nil {
		m.recorded = max(m.recorded, t.attempt)
	} else if m.recording == t.attempt {
		m.recording = m.recorded
	}
	if m.state != assigned || m.recording >= m.attempts+1 && m.recorded <= m.attempts {
		return
	}
	sub := m.sub
	if err == nil {
		c.flush(sub)
		return
	}
	// Without the store the attempt cannot be counted, so it is not made.
	sub.pipeline = without(sub.pipeline, m)
	c.delay(m, c.cfg.StoreRetry)
	c.giveBack(sub, m)
	c.flush(sub)
}

// end takes a message out of a consumer's hands.
func (c *Core) end(m *message) {
	sub := m.sub
	c.timers.stop(m)
	delete(sub.inFlight, m)
	m.sub = nil
	c.giveBack(sub, m)
}

// release ends an attempt that was not acknowledged.
func (c *Core) release(m *message, why string, delay time.Duration) {
	c.end(m)
	m.reason = Clip(why)
	if delay > 0 && m.attempts < c.cfg.MaxAttempts {
		c.delay(m, delay)
		return
	}
	c.requeue(m)
}

func (c *Core) delay(m *message, d time.Duration) {
	m.state, m.sub = delayed, nil
	c.timers.set(m, c.now.Elapsed+d)
}

// held is the message if this session holds this attempt of it, or why not.
func (c *Core) held(s *session, q *wire.Message) (*message, string) {
	m := c.messages[q.MessageID]
	switch {
	case m == nil:
		return nil, "no message with this ID is stored"
	case m.state == settled:
		return nil, "settled already"
	case m.state == dead:
		return nil, "in the dead-letter queue already"
	case m.state != inFlight:
		return nil, "the delivery has ended: its time was up, or it was given back"
	case m.sub.session != s:
		return nil, "held by another consumer by now"
	case q.Attempt != 0 && q.Attempt != m.attempts:
		return nil, fmt.Sprintf("attempt %d has ended; attempt %d is under way", q.Attempt, m.attempts)
	}
	return m, ""
}

// ack stops delivery at once. The row goes later.
func (c *Core) ack(s *session, q *wire.Message) {
	reply := wire.Message{Kind: wire.AckReply, Request: q.Request, MessageID: q.MessageID, Answer: wire.Accepted}
	m, why := c.held(s, q)
	if m == nil {
		reply.Answer, reply.Reason = wire.Refused, why
		c.send(s.id, reply)
		return
	}
	c.end(m)
	c.stats.Settled++
	m.reason = ""
	c.finish(m, settled)
	if c.cfg.ConfirmAfterDelete {
		m.acker = caller{s.id, q.Request}
	} else {
		c.send(s.id, reply)
	}
	c.settleInStore(m)
}

func (c *Core) settleInStore(m *message) {
	kind := store.Delete
	if c.cfg.KeepHistory && m.state == settled {
		kind = store.Settle
	}
	c.persist(ticket{kind: kind, m: m}, c.rowOf(m))
}

// settledInStore ends a delete or mark; a failed one is tried again for as long
// as the broker runs. The message is finished here whatever the store says.
func (c *Core) settledInStore(t ticket, err error) {
	m := t.m
	if m.acker != (caller{}) {
		reply := wire.Message{Kind: wire.AckReply, Request: m.acker.request, MessageID: m.id, Answer: wire.Accepted}
		if err != nil {
			reply.Answer, reply.Reason = wire.Unknown, Clip("delivery has stopped, but the row could not be deleted yet: "+err.Error())
		}
		if c.sessions[m.acker.session] != nil {
			c.send(m.acker.session, reply)
		}
		m.acker = caller{}
	}
	switch {
	case err != nil:
		c.timers.set(m, c.now.Elapsed+c.cfg.StoreRetry)
	case m.state == uncertain:
		c.forget(m) // proven not stored
	}
}

func (c *Core) nack(s *session, q *wire.Message) {
	reply := wire.Message{Kind: wire.NackReply, Request: q.Request, MessageID: q.MessageID, Answer: wire.Accepted}
	m, why := c.held(s, q)
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
		delay = c.cfg.Backoff.after(m.attempts)
	}
	c.release(m, q.Reason, delay)
}

// timeouts serves the timers that are due.
func (c *Core) timeouts() {
	for {
		at, ok := c.timers.next()
		if !ok || at > c.now.Elapsed {
			return
		}
		m := c.timers[0]
		c.timers.stop(m)
		switch m.state {
		case inFlight:
			c.release(m, fmt.Sprintf("no answer within %v from %s", c.cfg.Visibility, m.lastConsumer), 0)
		case delayed:
			c.requeue(m)
		case dead:
			c.persist(ticket{kind: store.DeadLetter, m: m}, c.rowOf(m))
		default: // settled, expired, uncertain: the delete failed
			c.settleInStore(m)
		}
	}
}
