package core

import "strings"

// topic joins what is published under one name with who listens to it.
type topic struct {
	name       string
	queue      heap[*message] // pending, the oldest first
	unsettled  int            // messages that keep it remembered
	persisting int            // of these, on their way to the store
	listeners  uint64         // the version of the filters with which copies and matches were found
	copies     []*audience    // matching, at-most-once
	matches    []*match       // matching, at-least-once: these compete
	turn       int            // of the filters, for both modes
	touched    bool           // waits for dispatch
	stocked    int            // place in Core.stocked, counted from 1
	charged    int64          // to the memory budget

	links[topic] // of Core.idle, while unsettled is 0
}

// match is a filter's view of one topic: with messages that none of its
// competitors could take, it stands in the filter's heap.
type match struct {
	topic *topic
	of    *competitors
	rank  uint64 // of the topic's first message, or less: it is corrected when it comes to the front
	place place
}

const (
	topicCost = 320 // bytes, about
	matchCost = 64
)

// topic finds or remembers one; nil if all that may be remembered hold messages.
// A topic to whose very name somebody subscribes always has a place: there are no
// more of these than subscriptions, and who fills the others cannot take it.
func (c *Core) topic(name string) *topic {
	if t := c.topics[name]; t != nil {
		if t.unsettled == 0 {
			c.idle.remove(t)
			c.idle.push(t)
		}
		return t
	}
	if len(c.topics) >= c.cfg.Limits.Topics && !c.forgetIdleTopic() && !c.filters.has(name) {
		return nil
	}
	return c.newTopic(name)
}

// recoveredTopic is never refused: what was accepted once is kept.
func (c *Core) recoveredTopic(name string) *topic {
	if t := c.topics[name]; t != nil {
		return t
	}
	return c.newTopic(name)
}

func (c *Core) newTopic(name string) *topic {
	t := &topic{name: name, queue: byRank()}
	c.topics[name] = t
	c.idle.push(t)
	return t // charged by listen
}

// chargeTopic brings what the budget knows of a topic up to date.
func (c *Core) chargeTopic(t *topic) {
	cost := topicCost + int64(len(t.name)) + matchCost*int64(len(t.matches)) + 8*int64(len(t.copies))
	c.held += cost - t.charged
	t.charged = cost
}

// forgetIdleTopic forgets the topic that has been idle for the longest.
func (c *Core) forgetIdleTopic() bool {
	t := c.idle.head
	if t == nil {
		return false
	}
	c.idle.remove(t)
	for _, m := range t.matches {
		m.leave()
	}
	delete(c.topics, t.name)
	c.held -= t.charged
	return true
}

// occupy and vacate count the messages that keep a topic from being forgotten.
func (c *Core) occupy(t *topic) {
	if t.unsettled == 0 {
		c.idle.remove(t)
	}
	t.unsettled++
	c.unsettled++
}

func (c *Core) vacate(t *topic) {
	c.unsettled--
	if t.unsettled--; t.unsettled == 0 {
		c.idle.push(t)
	}
}

// listen finds who listens to a topic, if filters have come or gone since.
func (c *Core) listen(t *topic) {
	if t.listeners == c.filters.version {
		return
	}
	t.listeners = c.filters.version
	for _, m := range t.matches {
		m.of.known = m
	}
	before := t.matches
	t.copies, t.matches = nil, nil
	c.filters.match(t.name, func(n *filterNode) {
		if n.copies != nil {
			t.copies = append(t.copies, n.copies)
		}
		if of := n.competitors; of != nil {
			m := of.known
			if m == nil {
				m = &match{topic: t, of: of}
			}
			t.matches = append(t.matches, m)
		}
	})
	for _, m := range before {
		m.of.known = nil
	}
	c.chargeTopic(t)
}

// touch has dispatch look at a topic.
func (c *Core) touch(t *topic) {
	if !t.touched {
		t.touched = true
		c.touched.push(t)
	}
}

// stock notes in each filter's heap that a topic has messages which nobody took.
func (c *Core) stock(t *topic) {
	c.listen(t)
	if t.stocked == 0 {
		c.stocked = append(c.stocked, t)
		t.stocked = len(c.stocked)
	}
	rank := t.queue.first().rank
	for _, m := range t.matches {
		m.enter(rank)
	}
}

// unstock: the topic's last pending message is gone. The filters' heaps are
// corrected when they are looked at.
func (c *Core) unstock(t *topic) {
	if t.stocked == 0 {
		return
	}
	last := c.stocked[len(c.stocked)-1]
	c.stocked[t.stocked-1], last.stocked = last, t.stocked
	c.stocked[len(c.stocked)-1] = nil
	c.stocked = c.stocked[:len(c.stocked)-1]
	t.stocked = 0
	if last != t && c.joining.len() > 0 {
		c.stock(last) // it may have moved to where a joining filter has been already
	}
}

func (m *match) enter(rank uint64) {
	switch {
	case m.place == 0:
		m.rank = rank
		m.of.stocked.push(m)
	case rank < m.rank:
		m.rank = rank
		m.of.stocked.fix(m)
	}
}

func (m *match) leave() {
	if m.place > 0 {
		m.of.stocked.remove(m)
	}
}

// validTopic: a name to publish to has at least one character and no wildcard
// (MQTT 5, 4.7.1 and 4.7.3).
func validTopic(name string) bool {
	return name != "" && !strings.ContainsAny(name, "+#\x00")
}
