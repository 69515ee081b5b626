package core

import (
	"encoding/json"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/wire"
)

func (c *Core) isExpired(m *message) bool { return c.now.Wall.UnixNano() >= m.expires }

// expire ends a message that no consumer holds. Its row leaves a marker, for a
// lookup after a restart.
func (c *Core) expire(m *message) {
	c.stats.Expired++
	m.reason = store.EndExpired
	c.finish(m, expired)
	c.settleInStore(m, caller{})
}

// maintain expires messages that are not requested, forgets IDs whose time is
// over, and lets the store purge expired rows unknown here. Each step does a part
// of it.
func (c *Core) maintain() {
	if !c.maintaining {
		if c.now.Elapsed < c.nextPurge {
			return
		}
		c.nextPurge = c.now.Elapsed + c.cfg.ExpiryEvery
		if c.cfg.HasStore {
			c.out = append(c.out, Effect{Kind: Purge, Wall: c.now.Wall})
		}
	}
	c.maintaining = true
	for ; c.budget > 0; c.budget-- {
		switch {
		case c.deadlines.len() > 0 && c.isExpired(c.deadlines.first()):
			m := c.deadlines.first()
			c.deadlines.remove(m)
			switch m.state {
			case pending, delayed:
				c.expire(m)
			case assigned: // its attempt or its content takes longer than it lives
				sub := c.unassign(m)
				c.expire(m)
				c.flush(sub)
			} // otherwise it is checked when its delivery ends
		case c.finished.n > 0 && c.finished.oldest().until <= c.now.Wall.UnixNano():
			c.forgetOldest()
		default:
			c.maintaining = false
			return
		}
	}
}

// purged handles rows that the store has deleted. A delivery in progress may
// still be answered.
func (c *Core) purged(ids []string) {
	for _, id := range ids {
		m := c.messages[id]
		if m == nil {
			continue
		}
		switch m.state {
		case assigned:
			sub := c.unassign(m)
			c.expirePurged(m)
			c.flush(sub)
		case pending, delayed:
			c.expirePurged(m)
		case inFlight:
			c.deadlines.remove(m)
			m.expires = 0
		}
	}
}

func (c *Core) expirePurged(m *message) {
	c.stats.Expired++
	c.finish(m, expired)
}

func (c *Core) deadLetter(m *message, reason string) {
	c.stats.DeadLettered++
	m.reason = Clip(reason)
	c.finish(m, dead)
	c.persist(ticket{kind: store.DeadLetter, m: m}, c.rowOf(m))
}

func (c *Core) deadInStore(t ticket, err error) {
	if err != nil && t.m.state == dead {
		c.wake(t.m, c.now.Elapsed+c.cfg.StoreRetry)
	}
}

// admin answers what the state machine knows; the server reads what needs rows.
func (c *Core) admin(s *session, q *wire.Message) {
	switch q.Topic {
	case "stats":
		text, _ := json.Marshal(c.Stats()) // marshalling a struct of numbers cannot fail
		c.send(s.id, wire.Message{Kind: wire.AdminReply, Request: q.Request, Answer: wire.Accepted, Payload: text})
	case "rows", "dlq.list", "dlq.show", "dlq.redrive", "dlq.discard":
		if !c.cfg.HasStore {
			c.adminReply(caller{s.id, q.Request}, q.MessageID, wire.Refused, "this broker has no store")
			return
		}
		c.out = append(c.out, Effect{Kind: Inspect, Session: s.id, Message: *q})
	case "swap", "backup":
		if !c.cfg.HasStore {
			c.adminReply(caller{s.id, q.Request}, q.MessageID, wire.Refused, "this broker has no store")
			return
		}
		c.out = append(c.out, Effect{Kind: Swap, Session: s.id, Message: *q})
	default:
		c.adminReply(caller{s.id, q.Request}, q.MessageID, wire.Refused, "no such command; there are stats, rows, dlq.list, dlq.show, dlq.redrive, dlq.discard, swap, backup")
	}
}

func (c *Core) adminReply(to caller, id string, answer wire.Answer, reason string) {
	if c.sessions[to.session] != nil {
		c.send(to.session, wire.Message{Kind: wire.AdminReply, Request: to.request, MessageID: id, Answer: answer, Reason: Clip(reason)})
	}
}

// found continues dlq.redrive and dlq.discard once the dead letter has been read.
func (c *Core) found(in *Input) {
	q, to := &in.Message, caller{in.Session, in.Message.Request}
	m := c.messages[q.MessageID]
	switch {
	case m == nil || m.state != dead || m.timer > 0: // something else has become of it meanwhile
		c.adminReply(to, q.MessageID, wire.Refused, "not in the dead-letter queue (or not yet, or not any more)")
	case q.Topic == "dlq.discard":
		row := c.rowOf(m)
		row.KeepUntil, row.Reason = c.now.Wall.Add(c.cfg.Settled), store.EndDiscarded // for a lookup after a restart
		c.persist(ticket{kind: store.Discard, m: m, asker: to}, row)
	default:
		if c.isExpired(m) { // otherwise it would expire at once
			m.expires = c.now.Wall.Add(c.cfg.DefaultTTL).UnixNano()
		}
		m.topic = c.recoveredTopic(in.Row.Topic)
		c.occupy(m.topic) // keeps the topic while the row is being stored
		c.become(m, redriven)
		c.persist(ticket{kind: store.Redrive, m: m, asker: to}, store.Row{MessageID: m.id, BusinessID: m.businessID, ExpiresAt: time.Unix(0, m.expires)})
	}
}

func (c *Core) redriveStored(t ticket, err error) {
	answer, reason := answerOf(err)
	c.adminReply(t.asker, t.m.id, answer, reason)
	if err != nil {
		c.finish(t.m, dead)
		return
	}
	t.m.attempts, t.m.recorded, t.m.recording, t.m.reason = 0, 0, 0, ""
	c.requeue(t.m)
}

func (c *Core) discardStored(t ticket, err error) {
	answer, reason := answerOf(err)
	c.adminReply(t.asker, t.m.id, answer, reason)
	if err == nil && t.m.state == dead {
		c.finish(t.m, discarded)
	}
}
