package amqp

import (
	"cmp"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/custodymq/custody/evidence"
	"github.com/custodymq/custody/links"
)

// conversation is the state shared by both directions of a connection.
type conversation struct {
	mu       sync.Mutex
	channels map[uint16]*channel // bounded by the 16-bit channel number
}

// channel holds what is numbered on one channel and not yet settled.
type channel struct {
	confirms  bool // confirm.select was sent: publishes are numbered from here
	published numbered
	delivered numbered
}

// Methods, as class<<16 | method.
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
		delete(c.channels, u.channel) // numbering starts over
	case confirmSelect:
		c.on(u.channel).confirms = true
	case basicPublish:
		item := itemOf(u)
		if ch := c.on(u.channel); ch.confirms {
			ch.published.add(ch.published.last+1, item)
		}
		return links.Frame{Kind: links.FramePublish, Items: itemsOf(item)}
	case basicAck:
		return links.Frame{Kind: links.FrameAck, Items: c.on(u.channel).delivered.settle(u.settlement())}
	case basicNack:
		return links.Frame{Kind: links.FrameNack, Items: c.on(u.channel).delivered.settle(u.settlement())}
	case basicReject:
		number, _ := u.settlement()
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
		return links.Frame{Kind: links.FrameAccept, Status: links.Yes, Items: c.on(u.channel).published.settle(u.settlement())}
	case basicNack:
		return links.Frame{Kind: links.FrameAccept, Status: "nack", Items: c.on(u.channel).published.settle(u.settlement())}
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

// maxUnsettled bounds the unsettled messages per channel and direction; the
// oldest is dropped. Deliveries without acknowledgement are never settled.
const maxUnsettled = 1 << 14

// numbered holds unsettled messages in the order of their numbers.
type numbered struct {
	last uint64
	open []numberedItem
}

type numberedItem struct {
	number uint64
	item   evidence.FrameItem
}

// add appends a message. A number that does not increase is a peer's mistake
// and ignored.
func (n *numbered) add(number uint64, item evidence.FrameItem) {
	if number <= n.last {
		return
	}
	n.last = number
	if len(n.open) == maxUnsettled {
		n.open = slices.Delete(n.open, 0, maxUnsettled/2) // amortises the memmove
	}
	n.open = append(n.open, numberedItem{number, item})
}

// settle removes and returns the message of this number, or with multiple all
// up to it (0 for all). Messages without an envelope are not listed.
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

// itemOf returns the identities of a message.
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

// settlement parses basic.ack, basic.nack and basic.reject: delivery-tag, then
// a bit that is multiple (for reject, requeue).
func (u *unit) settlement() (number uint64, multiple bool) {
	if len(u.arguments) < 9 {
		return 0, false
	}
	return binary.BigEndian.Uint64(u.arguments), u.arguments[8]&1 != 0
}

// deliveryTag parses the delivery tag of basic.deliver and basic.get-ok.
func (u *unit) deliveryTag() (uint64, bool) {
	rest := u.arguments
	if u.method == basicDeliver { // the consumer-tag precedes it
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
