package amqp

import (
	"cmp"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
)

// conversation is what the two directions of one connection know together.
type conversation struct {
	mu       sync.Mutex
	channels map[uint16]*channel // at most as many as there are numbers
}

// channel is what is numbered on one channel and not settled yet.
type channel struct {
	confirms  bool // confirm.select was sent: publishes are numbered from there
	published numbered
	delivered numbered
}

// The methods that are understood, as class<<16 | method.
const (
	connectionClose = 10<<16 | 50
	channelOpen     = 20<<16 | 10
	channelClose    = 20<<16 | 40
	basicConsume    = 60<<16 | 20
	basicConsumeOK  = 60<<16 | 21
	basicCancel     = 60<<16 | 30
	basicPublish    = 60<<16 | 40
	basicReturn     = 60<<16 | 50
	basicDeliver    = 60<<16 | 60
	basicGet        = 60<<16 | 70
	basicGetOK      = 60<<16 | 71
	basicAck        = 60<<16 | 80
	basicReject     = 60<<16 | 90
	basicNack       = 60<<16 | 120
	confirmSelect   = 85<<16 | 10
)

func (c *conversation) fromClient(u *unit) links.Frame {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch u.method {
	case channelOpen:
		delete(c.channels, u.channel) // numbers begin again
	case confirmSelect:
		c.on(u.channel).confirms = true
	case basicPublish:
		item := itemOf(u)
		if ch := c.on(u.channel); ch.confirms {
			ch.published.add(ch.published.last+1, item)
		}
		return links.Frame{Kind: links.FramePublish, Items: itemsOf(item)}
	case basicAck:
		return links.Frame{Kind: links.FrameAck, Items: c.on(u.channel).delivered.settle(u.settles())}
	case basicNack:
		return links.Frame{Kind: links.FrameNack, Items: c.on(u.channel).delivered.settle(u.settles())}
	case basicReject:
		number, _ := u.settles()
		return links.Frame{Kind: links.FrameNack, Items: c.on(u.channel).delivered.settle(number, false)}
	case basicConsume:
		return links.Frame{Kind: links.FrameSubscribe}
	case basicCancel:
		return links.Frame{Kind: links.FrameUnsubscribe}
	case basicGet:
		return links.Frame{Kind: FrameGet}
	}
	return links.Frame{}
}

func (c *conversation) fromBroker(u *unit) links.Frame {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch u.method {
	case basicAck:
		return links.Frame{Kind: links.FrameAccept, Status: links.Yes, Items: c.on(u.channel).published.settle(u.settles())}
	case basicNack:
		return links.Frame{Kind: links.FrameAccept, Status: "nack", Items: c.on(u.channel).published.settle(u.settles())}
	case basicReturn:
		return links.Frame{Kind: FrameReturn, Items: itemsOf(itemOf(u))}
	case basicDeliver, basicGetOK:
		item := itemOf(u)
		if number, ok := u.deliveryTag(); ok {
			c.on(u.channel).delivered.add(number, item)
		}
		return links.Frame{Kind: links.FrameDeliver, Items: itemsOf(item)}
	case basicConsumeOK:
		return links.Frame{Kind: links.FrameSubscribed}
	case basicCancel:
		return links.Frame{Kind: FrameCancel}
	case channelClose, connectionClose:
		return links.Frame{Kind: links.FrameError}
	}
	return links.Frame{}
}

func (c *conversation) on(number uint16) *channel {
	ch := c.channels[number]
	if ch == nil {
		ch = &channel{}
		c.channels[number] = ch
	}
	return ch
}

// maxUnsettled is how many unsettled messages of one channel and direction are
// remembered; the oldest is forgotten. Deliveries without acknowledgement are
// never settled.
const maxUnsettled = 1 << 14

// numbered are messages in the order of their numbers, until they are settled.
type numbered struct {
	last uint64
	open []numberedItem
}

type numberedItem struct {
	number uint64
	item   evidence.FrameItem
}

// add notes a message. A number that is not the next greater one comes from a
// peer that does not count: it is not remembered.
func (n *numbered) add(number uint64, item evidence.FrameItem) {
	if number <= n.last {
		return
	}
	n.last = number
	if len(n.open) == maxUnsettled {
		n.open = slices.Delete(n.open, 0, maxUnsettled/2) // seldom, for a memmove each time
	}
	n.open = append(n.open, numberedItem{number, item})
}

// settle gives the message of this number, or with multiple all up to it
// (0 is all), and forgets them. A message without an envelope is not listed.
func (n *numbered) settle(number uint64, multiple bool) (items []evidence.FrameItem) {
	begin, end := 0, len(n.open)
	if !multiple || number != 0 {
		at, found := slices.BinarySearchFunc(n.open, number, func(o numberedItem, number uint64) int {
			return cmp.Compare(o.number, number)
		})
		end = at
		if found {
			end++
		}
		if !multiple {
			begin = at
		}
	}
	for _, o := range n.open[begin:end] {
		items = append(items, itemsOf(o.item)...)
	}
	n.open = slices.Delete(n.open, begin, end)
	return items
}

// itemOf reads the identities of a message.
func itemOf(u *unit) evidence.FrameItem {
	item := evidence.FrameItem{MessageID: messageID(u.header)}
	payload := []byte(nil)
	if len(u.body) == 1 {
		payload = u.body[0]
	} else {
		payload = slices.Concat(u.body...)
	}
	if e, err := evidence.ParseEnvelope(payload); err == nil {
		item.BusinessID, item.PublishID = e.BusinessID, e.PublishID
	}
	return item
}

func itemsOf(item evidence.FrameItem) []evidence.FrameItem {
	if item == (evidence.FrameItem{}) {
		return nil
	}
	return []evidence.FrameItem{item}
}

// settles reads the arguments of basic.ack, basic.nack and basic.reject:
// delivery-tag, and a bit that is multiple (of reject: requeue).
func (u *unit) settles() (number uint64, multiple bool) {
	if len(u.arguments) < 9 {
		return 0, false
	}
	return binary.BigEndian.Uint64(u.arguments), u.arguments[8]&1 != 0
}

// deliveryTag of basic.deliver and basic.get-ok.
func (u *unit) deliveryTag() (uint64, bool) {
	rest := u.arguments
	if u.method == basicDeliver { // the consumer-tag stands before it
		var ok bool
		if _, rest, ok = shortString(rest); !ok {
			return 0, false
		}
	}
	if len(rest) < 8 {
		return 0, false
	}
	return binary.BigEndian.Uint64(rest), true
}
