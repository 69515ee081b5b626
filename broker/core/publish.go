package core

import (
	"errors"
	"fmt"
	"time"

	"github.com/custodymq/custody/broker/store"
	"github.com/custodymq/custody/broker/wire"
)

// publish decides whether to accept a message. A Declined publish writes nothing.
func (c *Core) publish(s *session, m *wire.Message) {
	if reason := c.invalid(m); reason != "" {
		c.decline(s, m, wire.BadRequest, reason)
		return
	}
	if m.Mode == wire.AtMostOnce {
		c.route(s, m)
		return
	}
	c.accept(s, m)
}

func (c *Core) invalid(m *wire.Message) string {
	switch {
	case m.Request == 0:
		return "a publish needs a request number"
	case !validTopic(m.Topic):
		return fmt.Sprintf("topic %q: must not be empty or hold + or #", m.Topic)
	case m.Mode != wire.AtMostOnce && m.Mode != wire.AtLeastOnce:
		return "mode is missing: at-most-once or at-least-once"
	case m.Mode == wire.AtLeastOnce && !c.cfg.HasStore:
		return "at-least-once needs a store, and this broker has none"
	case m.TTL < 0:
		return fmt.Sprintf("time to live %v: must be positive, or left out for the default", m.TTL)
	case m.TTL > c.cfg.MaxTTL:
		return fmt.Sprintf("time to live %v is over the limit of %v", m.TTL, c.cfg.MaxTTL)
	}
	return ""
}

func (c *Core) decline(s *session, m *wire.Message, why wire.Cause, reason string) {
	c.stats.Declined++
	c.send(s.id, wire.Message{Kind: wire.PublishReply, Request: m.Request, MessageID: m.MessageID, Answer: wire.Declined, Cause: why, Reason: Clip(reason)})
}

// route sends an at-most-once message to the current listeners: one copy per
// subscription without a group, and one per group. It is neither stored nor
// retried; a subscription without credit is skipped.
func (c *Core) route(s *session, m *wire.Message) {
	t := c.topic(m.Topic)
	if t == nil {
		c.decline(s, m, wire.Limit, fmt.Sprintf("limit of %d topics reached", c.cfg.Limits.Topics))
		return
	}
	c.listen(t)
	listeners := 0
	for _, a := range t.copies {
		listeners += a.members
	}
	if listeners > c.cfg.Limits.FanOut {
		c.decline(s, m, wire.Limit, fmt.Sprintf("%d subscriptions match this topic, and a message has at most %d copies", listeners, c.cfg.Limits.FanOut))
		return
	}
	if sent := c.copy(t, m); sent == 0 {
		c.declineFor(s, m, t, wire.AtMostOnce)
		return
	}
	c.stats.Accepted++
	c.send(s.id, wire.Message{Kind: wire.PublishReply, Request: m.Request, MessageID: m.MessageID, Answer: wire.Accepted})
}

// copy sends the copies. A group may have members under several matching filters:
// the filters take turns, and the first with a ready member serves the group.
func (c *Core) copy(t *topic, m *wire.Message) (sent int) {
	t.turn++
	served := map[string]bool{} // groups
	for i := range t.copies {
		a := t.copies[(t.turn+i)%len(t.copies)]
		if a.credit == 0 {
			continue // no member is ready; skip checking each
		}
		for sub := a.subs.head; sub != nil; {
			next := sub.next
			if sub.credit > 0 && !served[sub.group] {
				c.sendCopy(sub, m)
				sent++
				if sub.group != "" {
					served[sub.group] = true
					a.subs.remove(sub)
					a.subs.push(sub)
				}
			}
			sub = next
		}
	}
	return sent
}

func (c *Core) sendCopy(sub *subscription, m *wire.Message) {
	c.addCredit(sub, -1)
	c.stats.Delivered++
	c.send(sub.session.id, wire.Message{
		Kind: wire.Deliver, Request: sub.request, Topic: m.Topic, BusinessID: m.BusinessID, MessageID: c.messageID(m),
		Key: m.Key, Headers: m.Headers, Attempt: 1, Payload: m.Payload,
	})
}

// declineFor declines a publish that no subscription can take, with the reason.
func (c *Core) declineFor(s *session, m *wire.Message, t *topic, mode wire.Mode) {
	same, other, name := len(t.copies), len(t.matches), "at-least-once"
	if mode == wire.AtLeastOnce {
		same, other, name = other, same, "at-most-once"
	}
	switch {
	case same > 0:
		c.decline(s, m, wire.NoConsumer, "no matching consumer is ready: all are out of credit")
	case other > 0:
		c.decline(s, m, wire.WrongMode, "mode mismatch: only "+name+" consumers match this topic")
	default:
		c.decline(s, m, wire.NoConsumer, "no online consumer matches this topic")
	}
}

// accept takes an at-least-once message: it is stored first, and answered once
// the store has confirmed.
func (c *Core) accept(s *session, m *wire.Message) {
	if m.MessageID != "" && c.publishAgain(s, m) {
		return
	}
	t := c.topic(m.Topic)
	if t == nil {
		c.decline(s, m, wire.Limit, fmt.Sprintf("limit of %d topics reached", c.cfg.Limits.Topics))
		return
	}
	c.listen(t)
	body := &content{key: m.Key, headers: m.Headers, payload: m.Payload}
	size := body.size()
	switch {
	case len(t.matches) == 0:
		c.declineFor(s, m, t, wire.AtLeastOnce)
		return
	case c.unsettled >= c.cfg.Limits.Messages:
		c.decline(s, m, wire.Limit, fmt.Sprintf("limit of %d unsettled messages reached", c.cfg.Limits.Messages))
		return
	case s.unanswered >= c.cfg.Limits.PublishWindow:
		c.decline(s, m, wire.Limit, fmt.Sprintf("publish window of %d unanswered messages exceeded", c.cfg.Limits.PublishWindow))
		return
	case !c.makeRoom(messageCost + int64(size)):
		c.decline(s, m, wire.Limit, c.memoryReason())
		return
	}
	ttl := m.TTL
	if ttl == 0 {
		ttl = c.cfg.DefaultTTL
	}
	stored := &message{
		state: persisting, id: c.messageID(m), businessID: m.BusinessID, size: size,
		topic: t, inserted: c.now.Wall.UnixNano(), expires: c.now.Wall.Add(ttl).UnixNano(),
	}
	if to := t.willServe(); to != nil {
		stored.recording, stored.lastConsumer = 1, to.session.name
	}
	s.unanswered++
	c.remember(stored) // also keeps makeRoom from forgetting the topic
	c.hold(stored, body)
	t.persisting++
	c.persist(ticket{kind: store.Insert, m: stored, attempt: stored.recording, asker: caller{s.id, m.Request}}, stored.row())
}

// willServe returns a competitor with credit beyond the messages already being
// stored, or nil. It is a guess that saves a write; correctness does not depend
// on it.
func (t *topic) willServe() *subscription {
	credit := 0
	for _, m := range t.matches {
		if credit += m.of.credit; credit > t.persisting && m.of.ready.len() > 0 {
			return m.of.ready.first()
		}
	}
	return nil
}

// messageID returns the publisher's message ID, or assigns the next one.
func (c *Core) messageID(m *wire.Message) string {
	if m.MessageID == "" {
		c.lastID++
		m.MessageID = c.cfg.IDPrefix + appendBase32(c.lastID)
	}
	return m.MessageID
}

func appendBase32(n uint64) string {
	const digits = "0123456789abcdefghjkmnpqrstvwxyz"
	var buf [13]byte
	i := len(buf)
	for {
		i--
		buf[i] = digits[n&31]
		if n >>= 5; n == 0 {
			return string(buf[i:])
		}
	}
}

// publishAgain answers a publish whose message ID is known with the first result,
// even if no one listens any more. It returns false for a new ID.
func (c *Core) publishAgain(s *session, m *wire.Message) bool {
	old := c.messages[m.MessageID]
	st, businessID := state(0), ""
	if old != nil {
		st, businessID = old.state, old.businessID
	} else if r, there := c.finished.find(m.MessageID); there {
		st, businessID = r.state, string(r.businessID)
	} else {
		return false
	}
	reply := wire.Message{Kind: wire.PublishReply, Request: m.Request, MessageID: m.MessageID, Again: true, Answer: wire.Accepted}
	switch {
	case businessID != m.BusinessID:
		reply.Again, reply.Answer, reply.Cause, reply.Reason = false, wire.Declined, wire.BadRequest, "this message ID belongs to another business ID"
	case st == refused || st == damaged:
		reply.Again, reply.Answer, reply.Cause, reply.Reason = false, wire.Declined, wire.BadRequest, "this message ID belongs to a stored row: "+lookups[st].reason
	case st == uncertain:
		reply.Answer, reply.Reason = wire.Unknown, lookups[uncertain].reason
	case st == persisting:
		if s.unanswered >= c.cfg.Limits.PublishWindow {
			reply.Again, reply.Answer, reply.Reason = false, wire.Unknown, "publish window exceeded while the first publish of this message ID is on its way to the store"
			break
		}
		s.unanswered++
		if old.repeaters == nil {
			old.repeaters = new([]caller)
		}
		*old.repeaters = append(*old.repeaters, caller{s.id, m.Request})
		return true
	}
	c.send(s.id, reply)
	return true
}

// stored handles the store's result for one operation.
func (c *Core) stored(number uint64, err error) {
	t, ok := c.tickets[number]
	if !ok {
		return
	}
	delete(c.tickets, number)
	if err != nil {
		c.stats.StoreFailures++
	}
	outcomes[t.kind](c, t, err)
}

var outcomes = map[store.OperationKind]func(*Core, ticket, error){
	store.Insert:     (*Core).inserted,
	store.Attempt:    (*Core).attemptRecorded,
	store.Settle:     (*Core).settledInStore,
	store.Delete:     (*Core).settledInStore,
	store.DeadLetter: (*Core).deadInStore,
	store.Redrive:    (*Core).redriveStored,
	store.Discard:    (*Core).discardStored,
}

func (c *Core) inserted(t ticket, err error) {
	m := t.m
	m.topic.persisting--
	first := wire.Message{Kind: wire.PublishReply, MessageID: m.id}
	first.Answer, first.Reason = answerOf(err)
	// The ID has been forgotten here, but the store still knows it.
	again := errors.Is(err, store.ErrExists)
	answer := func(who caller, repeated bool) {
		if s := c.sessions[who.session]; s != nil {
			s.unanswered--
			reply := first
			reply.Request, reply.Again = who.request, repeated || again
			if again {
				reply.Answer, reply.Reason = wire.Accepted, "published before, and finished"
			}
			c.send(who.session, reply)
		}
	}
	answer(t.asker, false)
	if m.repeaters != nil {
		for _, who := range *m.repeaters {
			answer(who, true)
		}
		m.repeaters = nil
	}
	switch first.Answer {
	case wire.Accepted:
		c.stats.Accepted++
		m.recorded = t.attempt
		c.requeue(m)
	case wire.Rejected:
		c.stats.Rejected++
		c.finish(m, uncertain)
		c.forget(m)
	default:
		// What a failed commit left behind shows only after a later successful
		// commit: after a failed sync, SQLite in WAL mode shows no row, yet the
		// row is back after a restart. Deleting it settles the matter.
		c.stats.Unknown++
		c.finish(m, uncertain)
		c.persist(ticket{kind: store.Delete, m: m}, c.rowOf(m))
	}
}

// answerOf maps an insert's result. Only a failure that the store reports as not
// written is Rejected.
func answerOf(err error) (wire.Answer, string) {
	var failure *store.Failure
	switch {
	case err == nil:
		return wire.Accepted, ""
	case errors.As(err, &failure) && failure.NotWritten:
		return wire.Rejected, Clip(err.Error())
	}
	return wire.Unknown, Clip(err.Error())
}

// rowOf returns the fields that an operation ending a message needs.
func (c *Core) rowOf(m *message) store.Row {
	row := store.Row{MessageID: m.id, BusinessID: m.businessID, Attempts: int(m.attempts), LastConsumer: m.lastConsumer, Reason: m.reason}
	if m.keepUntil > 0 {
		row.KeepUntil = time.Unix(0, m.keepUntil)
	}
	return row
}
