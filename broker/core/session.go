package core

import (
	"fmt"
	"slices"

	"github.com/custodymq/custody/broker/wire"
)

type session struct {
	id         Session
	name       string
	subs       []*subscription
	unanswered int             // publishes being stored
	inFlight   int             // bytes of payload assigned and in flight
	cramped    []*subscription // could take a message if these bytes were fewer
	errors     int
}

// subscription receives deliveries as long as it has credit. For at-least-once,
// credit is a window: a delivery takes one and its end (ACK, NACK, timeout)
// returns it. For at-most-once, credit is used up.
type subscription struct {
	session *session
	request uint64 // of its Subscribe; every Deliver carries it
	filter  string
	group   string
	mode    wire.Mode
	credit  int

	of       *competitors // at-least-once
	among    *audience    // at-most-once
	pipeline messages     // assigned, in delivery order
	inFlight messages     // delivered and unacknowledged, in delivery order

	links[subscription] // in among.subs

	ready   bool // is in of.ready
	hungry  bool // is in Core.hungry
	cramped bool // is in session.cramped
	closed  string
}

// audience holds the at-most-once subscriptions to one filter. Of a group the one
// that was served last is the last of them.
type audience struct {
	node    *filterNode
	subs    chain[subscription, *subscription]
	members int
	credit  int // sum over all of them
}

// competitors holds the at-least-once subscriptions to one filter.
type competitors struct {
	node    *filterNode
	filter  string
	subs    []*subscription
	ready   fifo[*subscription] // with credit, in turn; entries without credit are removed on reaching the front
	credit  int                 // sum over all of them
	stocked heap[*match]        // topics with messages that none of them could take
	known   *match              // scratch space of Core.listen
	// A new filter scans the topics that hold messages in several steps, and is
	// not served before it has seen all of them, because older messages go first.
	joined bool
	unseen int // topics of Core.stocked, from its beginning, that are still to be scanned
}

const subscriptionCost = 512 // approximate, in bytes

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
	sub := &subscription{session: s, request: m.Request, filter: m.Topic, group: m.Group, mode: m.Mode}
	node := c.filters.find(m.Topic)
	if reply.Reason = c.join(sub, node); reply.Reason != "" {
		c.filters.prune(node)
		reply.Answer = wire.Declined
		c.send(s.id, reply)
		return
	}
	s.subs = append(s.subs, sub)
	c.subscriptions++
	c.held += sub.cost()
	c.send(s.id, reply)
	c.addCredit(sub, m.Credit)
}

func (sub *subscription) cost() int64 {
	return subscriptionCost + 2*int64(len(sub.filter)) + int64(len(sub.group))
}

func (c *Core) cannotSubscribe(s *session, m *wire.Message) string {
	switch {
	case m.Request == 0:
		return "a subscription needs a request number: its deliveries carry it"
	case !ValidFilter(m.Topic):
		return fmt.Sprintf("topic filter %q: + must fill a level, # must fill the last one", m.Topic)
	case m.Mode != wire.AtMostOnce && m.Mode != wire.AtLeastOnce:
		return "mode is missing: at-most-once or at-least-once"
	case m.Mode == wire.AtLeastOnce && !c.cfg.HasStore:
		return "at-least-once needs a store, and this broker has none"
	case m.Credit > c.cfg.Limits.InFlight:
		return fmt.Sprintf("credit %d is over the limit of %d", m.Credit, c.cfg.Limits.InFlight)
	case len(s.subs) >= c.cfg.Limits.Subscriptions:
		return fmt.Sprintf("limit of %d subscriptions reached", c.cfg.Limits.Subscriptions)
	case !c.makeRoom(subscriptionCost):
		return c.memoryReason()
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

// join adds a subscription to its filter, or returns the reason why it cannot.
func (c *Core) join(sub *subscription, node *filterNode) string {
	limit := c.cfg.Limits.Listeners
	full := fmt.Sprintf("limit of %d subscriptions to one topic filter in one mode reached", limit)
	if sub.mode == wire.AtMostOnce {
		a := node.copies
		if a == nil {
			a = &audience{node: node}
			node.copies = a
			c.filters.version++
		}
		if a.members >= limit {
			return full
		}
		sub.among = a
		a.members++
		a.subs.push(sub)
		return ""
	}
	of := node.competitors
	if of == nil {
		of = &competitors{node: node, filter: sub.filter, unseen: len(c.stocked), stocked: heap[*match]{
			before: func(a, b *match) bool { return a.rank < b.rank },
			place:  func(m *match) *place { return &m.place },
		}}
		node.competitors = of
		c.filters.version++
		c.joining.push(of)
	}
	if len(of.subs) >= limit {
		return full
	}
	sub.of = of
	of.subs = append(of.subs, sub)
	return ""
}

// look lets a new filter scan the topics that hold messages, a part of them in
// each step, and reports whether it has seen all. It goes from the last to the
// first, because a topic that leaves is replaced by the last one, and those that
// come announce themselves.
func (c *Core) look(of *competitors) (all bool) {
	if exact := !hasWildcard(of.filter); exact {
		of.unseen = 0
		if t := c.topics[of.filter]; t != nil && t.stocked > 0 {
			c.stock(t)
		}
	}
	of.unseen = min(of.unseen, len(c.stocked))
	until := max(0, of.unseen-topicsAtOnce)
	for ; of.unseen > until; of.unseen-- {
		if t := c.stocked[of.unseen-1]; Matches(of.filter, t.name) {
			c.stock(t)
		}
	}
	if of.unseen > 0 {
		return false
	}
	of.joined = true
	for _, sub := range of.subs {
		c.feed(sub)
	}
	return true
}

const topicsAtOnce = 64 // scanned for a new filter in one step

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

// credit widens the window of the subscription made with this request number. If
// that has ended, the message is ignored: the client may not know yet.
func (c *Core) credit(s *session, m *wire.Message) {
	for _, sub := range s.subs {
		if sub.request == m.Request {
			c.addCredit(sub, min(m.Credit, c.cfg.Limits.InFlight-sub.credit))
			return
		}
	}
}

func (c *Core) addCredit(sub *subscription, n int) {
	sub.credit += n
	switch {
	case sub.closed != "":
	case sub.of != nil:
		sub.of.credit += n
	default:
		sub.among.credit += n
	}
	if n > 0 {
		c.feed(sub)
	}
}

// endSubscription removes a subscription from its filter. dispatch requeues what
// it held, in order, for the other competitors.
func (c *Core) endSubscription(sub *subscription, why string) {
	c.addCredit(sub, -sub.credit)
	sub.closed = why
	sub.session.subs = without(sub.session.subs, sub)
	c.subscriptions--
	c.held -= sub.cost()
	if a := sub.among; a != nil {
		a.subs.remove(sub)
		if a.members--; a.members == 0 {
			a.node.copies = nil
			c.filters.version++
			c.filters.prune(a.node)
		}
		return
	}
	of := sub.of
	if of.subs = without(of.subs, sub); len(of.subs) == 0 {
		of.node.competitors = nil
		of.unseen = 0 // no subscription waits for it any more
		c.filters.version++
		c.filters.prune(of.node)
	}
	c.leaving.push(sub)
}

// giveUp requeues what an ended subscription held, as far as the step's budget
// allows. It returns false if some is left.
func (c *Core) giveUp(sub *subscription) bool {
	for ; c.budget > 0; c.budget-- {
		if m := sub.pipeline.head; m != nil {
			sub.pipeline.remove(m)
			m.sub = nil
			sub.session.inFlight -= m.size
			c.requeue(m) // it was never sent, so no attempt was made
			continue
		}
		m := sub.inFlight.head
		if m == nil {
			return true
		}
		c.release(m, sub.closed, 0)
	}
	return false
}

func without[T comparable](list []T, x T) []T {
	if i := slices.Index(list, x); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}
