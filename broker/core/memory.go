package core

import (
	"fmt"

	"github.com/custodymq/custody/broker/store"
)

// The memory for messages is bounded in bytes: their content, and what each costs
// without it. Content stays in memory while there is room, and may be dropped
// once it is durable; it is then fetched from the store when the message is about
// to be delivered. If that does not make enough room, publishes are declined.

// messageCost is the memory, in bytes, that a message takes without its content
// and IDs: the struct, its entries in two maps and its places in the heaps. It
// was measured: see TestWhatAMessageCosts.
const messageCost = 400

func (m *message) cost() int64 {
	return messageCost + int64(len(m.id)+len(m.businessID))
}

// hold adds content to memory.
func (c *Core) hold(m *message, b *content) {
	m.content = b
	c.held += int64(m.size)
}

// drop removes content from memory.
func (c *Core) drop(m *message) {
	c.settleDown(m)
	if m.content != nil {
		m.content = nil
		c.held -= int64(m.size)
	}
}

// reside records that a message's content may be dropped: it is both in memory
// and in the store, and not needed soon.
func (c *Core) reside(m *message) {
	if m.content == nil || c.cfg.StoreInMemory || m.resident > 0 {
		return
	}
	c.resident = append(c.resident, m)
	m.resident = place(len(c.resident))
}

// settleDown removes a message from those whose content may be dropped.
func (c *Core) settleDown(m *message) {
	if m.resident == 0 {
		return
	}
	last := c.resident[len(c.resident)-1]
	c.resident[m.resident-1], last.resident = last, m.resident
	c.resident[len(c.resident)-1] = nil
	c.resident = c.resident[:len(c.resident)-1]
	m.resident = 0
}

// makeRoom reports whether n more bytes may be held, dropping content and idle
// topics as needed.
func (c *Core) makeRoom(n int64) bool {
	limit := c.cfg.Limits.Memory
	for c.held+n > limit && len(c.resident) > 0 {
		c.drop(c.resident[len(c.resident)-1])
	}
	for range idleForgotten {
		if c.held+n <= limit || c.idle.head == c.idle.tail {
			break // keep the most recently used topic: room may be made for its sake
		}
		c.forgetIdleTopic()
	}
	return c.held+n <= limit
}

// idleForgotten bounds the topics that one request drops to make room.
const idleForgotten = 64

func (c *Core) memoryReason() string {
	return fmt.Sprintf("the broker holds %d MiB of messages, topics and subscriptions, and may hold %d MiB", c.held>>20, c.cfg.Limits.Memory>>20)
}

// want queues a message for its content to be fetched.
func (c *Core) want(m *message) {
	if !m.fetching {
		m.fetching = true
		c.wanted.push(m)
	}
}

// fetch requests content while there is room for it. One request is always
// allowed, because the waiting messages themselves may be what takes up the room.
func (c *Core) fetch() {
	for c.wanted.len() > 0 && c.fetches < fetchesAtOnce {
		m := c.wanted.first()
		if m.state != assigned || m.content != nil {
			c.wanted.pop().fetching = false
			continue
		}
		if c.fetches > 0 && !c.makeRoom(c.fetched+int64(m.size)) {
			return
		}
		c.wanted.pop()
		c.fetches++
		c.fetched += int64(m.size)
		c.out = append(c.out, Effect{Kind: Fetch, ID: m.id, Size: m.size})
	}
}

const fetchesAtOnce = 256

// contentHere handles the result of a Fetch.
func (c *Core) contentHere(row *store.Row, size int, err error) {
	c.fetches--
	c.fetched -= int64(size)
	m := c.messages[row.MessageID]
	if m == nil || !m.fetching {
		return // it has finished meanwhile
	}
	m.fetching = false
	ok := err == nil && row.State == store.Pending
	if ok && m.content == nil {
		c.hold(m, &content{key: row.Key, headers: row.Headers, payload: row.Payload})
	}
	switch {
	case m.state != assigned:
		c.reside(m)
	case row.State == store.Damaged && err == nil:
		sub := c.unassign(m)
		c.stats.Damaged++
		c.finish(m, damaged)
		c.flush(sub)
	case !ok: // the store failed, or the row is gone: if it has expired, a purge says so
		sub := c.unassign(m)
		c.delay(m, c.cfg.StoreRetry)
		c.flush(sub)
	default:
		c.flush(m.sub)
	}
}
