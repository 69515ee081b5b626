package core

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/custodymq/custody/broker/wire"
)

type session struct {
	id         Session
	name       string
	subs       []*subscription
	unanswered int // publishes on their way to the store
	held       int // bytes of payload assigned and in flight
	errors     int
}

// subscription takes deliveries as long as it has credit. At-least-once credit
// is a window: a delivery takes one, and the end of the delivery (ACK, NACK,
// time-out) gives it back. At-most-once credit is used up.
type subscription struct {
	session  *session
	request  uint64 // of its Subscribe; every Deliver carries it
	filter   string
	group    string
	mode     wire.Mode
	credit   int
	topics   []*topic              // that it matches
	pipeline []*message            // assigned, in the order in which they will be delivered
	inFlight map[*message]struct{} // delivered and unanswered
	closed   bool
}

func (c *Core) open(id Session, hello *wire.Message) {
	if len(c.sessions) >= c.cfg.Limits.Sessions {
		reason := fmt.Sprintf("limit of %d sessions reached", c.cfg.Limits.Sessions)
		c.send(id, wire.Message{Kind: wire.Error, Request: hello.Request, Reason: reason})
		c.out = append(c.out, Effect{Kind: CloseSession, Session: id, Reason: reason})
		return
	}
	c.sessions[id] = &session{id: id, name: hello.Client}
	c.stats.Sessions++
	c.send(id, wire.Message{
		Kind: wire.Welcome, Request: hello.Request, Client: c.cfg.Name,
		Credit: c.cfg.Limits.PublishWindow, TTL: c.cfg.Heartbeat,
	})
}

func (c *Core) close(id Session) {
	s := c.sessions[id]
	if s == nil {
		return
	}
	for _, sub := range slices.Clone(s.subs) {
		c.endSubscription(sub, "the consumer disconnected")
	}
	delete(c.sessions, id)
	c.stats.Sessions--
}

func (c *Core) subscribe(s *session, m *wire.Message) {
	reply := wire.Message{Kind: wire.SubscribeReply, Request: m.Request, Answer: wire.Accepted}
	if reply.Reason = c.cannotSubscribe(s, m); reply.Reason != "" {
		reply.Answer = wire.Declined
		c.send(s.id, reply)
		return
	}
	sub := &subscription{
		session: s, request: m.Request, filter: m.Topic, group: m.Group, mode: m.Mode,
		credit: m.Credit, inFlight: map[*message]struct{}{},
	}
	s.subs = append(s.subs, sub)
	c.subs = append(c.subs, sub)
	var known []*topic
	for _, t := range c.topics {
		if Matches(sub.filter, t.name) {
			known = append(known, t)
		}
	}
	slices.SortFunc(known, func(a, b *topic) int { return cmp.Compare(a.name, b.name) })
	for _, t := range known {
		t.join(sub)
	}
	c.send(s.id, reply)
	c.feed(sub)
}

func (c *Core) cannotSubscribe(s *session, m *wire.Message) string {
	switch {
	case m.Request == 0:
		return "a subscription needs a request number: its deliveries carry it"
	case !validFilter(m.Topic):
		return fmt.Sprintf("topic filter %q: + must fill a level, # must fill the last one", m.Topic)
	case m.Mode != wire.AtMostOnce && m.Mode != wire.AtLeastOnce:
		return "mode is missing: at-most-once or at-least-once"
	case m.Mode == wire.AtLeastOnce && !c.cfg.HasStore:
		return "at-least-once needs a store, and this broker has none"
	case m.Credit > c.cfg.Limits.InFlight:
		return fmt.Sprintf("credit %d is over the limit of %d", m.Credit, c.cfg.Limits.InFlight)
	case len(s.subs) >= c.cfg.Limits.Subscriptions:
		return fmt.Sprintf("limit of %d subscriptions reached", c.cfg.Limits.Subscriptions)
	}
	for _, sub := range s.subs {
		if sub.request == m.Request || sub.is(m) {
			return "this session has this subscription already"
		}
	}
	return ""
}

func (sub *subscription) is(m *wire.Message) bool {
	return sub.filter == m.Topic && sub.group == m.Group && sub.mode == m.Mode
}

func (c *Core) unsubscribe(s *session, m *wire.Message) {
	reply := wire.Message{Kind: wire.UnsubscribeReply, Request: m.Request, Answer: wire.Refused, Reason: "this session has no such subscription"}
	for _, sub := range s.subs {
		if sub.is(m) {
			c.endSubscription(sub, "the consumer unsubscribed")
			reply.Answer, reply.Reason = wire.Accepted, ""
			break
		}
	}
	c.send(s.id, reply)
}

// credit widens the window of the subscription that was made with this request.
// For one that has ended since, it means nothing, and is no fault of the client.
func (c *Core) credit(s *session, m *wire.Message) {
	for _, sub := range s.subs {
		if sub.request == m.Request {
			sub.credit = min(sub.credit+m.Credit, c.cfg.Limits.InFlight)
			c.feed(sub)
			return
		}
	}
}

// endSubscription puts back what it held, in order, for the other competitors.
func (c *Core) endSubscription(sub *subscription, why string) {
	sub.closed = true
	sub.session.subs = without(sub.session.subs, sub)
	c.subs = without(c.subs, sub)
	for _, t := range sub.topics {
		t.leave(sub)
	}
	for _, m := range sub.pipeline {
		sub.session.held -= m.size
		c.requeue(m) // never left the broker: no attempt was made
	}
	sub.pipeline = nil
	for _, m := range byRank(sub.inFlight) {
		c.release(m, why, 0)
	}
}

func without[T comparable](list []T, x T) []T {
	if i := slices.Index(list, x); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}

func byRank(set map[*message]struct{}) []*message {
	list := make([]*message, 0, len(set))
	for m := range set {
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b *message) int { return cmp.Compare(a.rank, b.rank) })
	return list
}

// topic joins what is published under one name with who listens to it.
type topic struct {
	name       string
	queue      queue
	unsettled  int             // messages that keep it remembered
	persisting int             // of these, on their way to the store
	most       []*subscription // matching, at-most-once
	least      []*subscription // matching, at-least-once: these compete
	turn       int             // of the competitors
	groupTurn  map[string]int  // of at-most-once groups
}

func (t *topic) join(sub *subscription) {
	if sub.mode == wire.AtMostOnce {
		t.most = append(t.most, sub)
	} else {
		t.least = append(t.least, sub)
	}
	sub.topics = append(sub.topics, t)
}

func (t *topic) leave(sub *subscription) {
	t.most = without(t.most, sub)
	t.least = without(t.least, sub)
}

// topic finds or remembers one; nil if there are too many that hold messages.
func (c *Core) topic(name string) *topic {
	if t := c.topics[name]; t != nil {
		return t
	}
	if len(c.topics) >= c.cfg.Limits.Topics {
		c.forgetIdleTopics()
		if len(c.topics) >= c.cfg.Limits.Topics {
			return nil
		}
	}
	t := &topic{name: name, groupTurn: map[string]int{}}
	c.topics[name] = t
	for _, sub := range c.subs {
		if Matches(sub.filter, name) {
			t.join(sub)
		}
	}
	return t
}

func (c *Core) forgetIdleTopics() {
	for name, t := range c.topics {
		if t.unsettled == 0 {
			delete(c.topics, name)
		}
	}
	for _, sub := range c.subs {
		sub.topics = slices.DeleteFunc(sub.topics, func(t *topic) bool { return t.unsettled == 0 })
	}
}
