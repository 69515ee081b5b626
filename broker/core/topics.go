package core

import "strings"

// topic connects the messages published under one name with their listeners.
type topic struct {
	name       string
	queue      heap[*message] // pending, the oldest first
	unsettled  int            // messages that keep the topic remembered
	persisting int            // of these, being stored
	listeners  uint64         // filters.version for which copies and matches were computed
	copies     []*audience    // matching, at-most-once
	matches    []*match       // matching, at-least-once: these compete
	turn       int            // of the filters, in both modes
	touched    bool           // is in Core.touched
	stocked    int            // place in Core.stocked, counted from 1
	charged    int64          // to the memory budget

	links[topic] // in Core.idle while unsettled is 0
}

// match is a filter's view of one topic. While the topic has messages that none
// of the filter's competitors could take, the match is in the filter's heap.
type match struct {
	topic *topic
	of    *competitors
	rank  uint64 // a lower bound for the rank of the topic's first message, corrected on reaching the front
	place place
}

const (
	topicCost = 320 // approximate, in bytes
	matchCost = 64
)

// topic returns the topic of a name, creating it if necessary, or nil if the
// limit is reached and all topics hold messages. A topic that someone subscribes
// to by name is always admitted: there are no more of these than subscriptions,
// so that filling up the others cannot displace it.
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

// recoveredTopic never fails: what was accepted must be kept.
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
	return t // charged to the memory budget by listen
}

// chargeTopic updates a topic's share of the memory budget.
func (c *Core) chargeTopic(t *topic) {
	cost := topicCost + int64(len(t.name)) + matchCost*int64(len(t.matches)) + 8*int64(len(t.copies))
	c.held += cost - t.charged
	t.charged = cost
}

// forgetIdleTopic forgets the least recently used topic without messages.
func (c *Core) forgetIdleTopic() bool {
	t := c.idle.head
	if t == nil {
		return false
	}
	c.idle.remove(t)
	for _, m := range t.matches {
		m.of.stocked.remove(m)
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

// listen updates a topic's listeners if filters have changed since.
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

// touch queues a topic for dispatch.
func (c *Core) touch(t *topic) {
	if !t.touched {
		t.touched = true
		c.touched.push(t)
	}
}

// stock adds a topic with untaken messages to each matching filter's heap.
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

// unstock records that a topic has no pending messages left. The filters' heaps
// are corrected when they are next read.
func (c *Core) unstock(t *topic) {
	if t.stocked == 0 {
		return
	}
	last := c.stocked[len(c.stocked)-1]
	c.stocked[t.stocked-1], last.stocked = last, t.stocked
	c.stocked[len(c.stocked)-1] = nil
	c.stocked = c.stocked[:len(c.stocked)-1]
	t.stocked = 0
}

// dequeue takes a message out of its topic's queue, if it is there.
func (c *Core) dequeue(m *message) {
	m.topic.queue.remove(m)
	if m.topic.queue.len() == 0 {
		c.unstock(m.topic)
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

// validTopic reports whether a name may be published to: it is not empty and has
// no wildcard (MQTT 5, 4.7.1 and 4.7.3).
func validTopic(name string) bool {
	return name != "" && !strings.ContainsAny(name, "+#\x00")
}
