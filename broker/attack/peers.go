package attack

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/custodymq/custody/broker/client"
	"github.com/custodymq/custody/broker/wire"
)

// All returns every attack: those of peers that have said a valid Hello, and
// those of strangers.
func All() []Attack {
	all := []Attack{
		{"10000-groups", groupBurst},
		{"topics-at-the-limit", topicsAtTheLimit},
		{"60000-topics-and-a-wildcard", wildcardOverTopics},
		{"one-business-ID", oneBusinessID},
		{"pipelined-rows", pipelinedRows},
		{"dead-letters-listed", deadLettersListed},
		{"peers-that-do-not-read", peersThatDoNotRead},
		{"flood-unread", flood},
		{"large-messages", largeMessages},
		{"huge-frames-announced", hugeFrames},
		{"sessions-come-and-go", sessionsComeAndGo},
		{"consumers-leave-with-much", consumersLeave},
	}
	for _, s := range Strangers() {
		all = append(all, s.attack())
	}
	return all
}

func groupBurst(p *Party) error {
	for i := range 40 {
		c, err := p.dial("groups")
		if err != nil {
			return err
		}
		for g := range 250 {
			_, err := c.Subscribe(p.ctx, client.Filter{Topic: "many", Mode: wire.AtMostOnce, Group: fmt.Sprintf("g%d-%d", i, g)})
			if err != nil && !errors.Is(err, client.ErrRefused) {
				return err
			}
		}
	}
	return p.sayForever(1000, wire.Message{Kind: wire.Publish, Request: 5, Topic: "many", Mode: wire.AtMostOnce})
}

// fillTopics leaves one unconsumed message in each of n topics.
func (p *Party) fillTopics(n int) error {
	c, _, err := p.subscribed("tt/#", wire.AtLeastOnce, 0)
	if err != nil {
		return err
	}
	return p.publishAll(c, n, func(i int) wire.Message {
		return wire.Message{Topic: fmt.Sprint("tt/", i), Mode: wire.AtLeastOnce, Payload: []byte("x")}
	})
}

func topicsAtTheLimit(p *Party) error {
	if err := p.fillTopics(64 << 10); err != nil {
		return err
	}
	nc, err := p.enter(true)
	n := 0
	p.forever(func() error {
		n++
		return p.say(nc, 1, wire.Message{Kind: wire.Publish, Request: 5, Topic: fmt.Sprint("new/", n), Mode: wire.AtMostOnce})()
	})
	return err
}

func wildcardOverTopics(p *Party) error {
	if err := p.fillTopics(60_000); err != nil {
		return err
	}
	_, sub, err := p.subscribed("tt/#", wire.AtLeastOnce, 64)
	if err != nil {
		return err
	}
	p.consume(sub)
	others, err := p.dial("others")
	if err != nil {
		return err
	}
	p.forever(func() error { // a new subscription each time
		p.requests.Add(2)
		sub, err := others.Subscribe(p.ctx, client.Filter{Topic: "+/#", Mode: wire.AtLeastOnce})
		if err != nil {
			return err
		}
		return sub.Unsubscribe(p.ctx)
	})
	return nil
}

func oneBusinessID(p *Party) error {
	_, sub, err := p.subscribed("chain", wire.AtLeastOnce, 4096)
	if err != nil {
		return err
	}
	p.consume(sub)
	c, err := p.dial("p")
	if err != nil {
		return err
	}
	publish := func() error {
		return p.publishAll(c, 50_000, func(int) wire.Message {
			return wire.Message{Topic: "chain", Mode: wire.AtLeastOnce, BusinessID: "same", Payload: []byte("x")}
		})
	}
	for range 3 {
		if err := publish(); err != nil {
			return err
		}
	}
	p.forever(publish)
	return p.sayForever(100, wire.Message{Kind: wire.Lookup, Request: 5, BusinessID: "same"})
}

func pipelinedRows(p *Party) error {
	c, _, err := p.subscribed("adm", wire.AtLeastOnce, 0)
	if err != nil {
		return err
	}
	err = p.publishAll(c, 5000, func(int) wire.Message {
		return wire.Message{Topic: "adm", Mode: wire.AtLeastOnce, BusinessID: "b", Payload: []byte("x")}
	})
	if err != nil {
		return err
	}
	return p.sayForever(300, wire.Message{Kind: wire.Admin, Request: 5, Topic: "rows"})
}

// deadLettersListed creates dead letters, lists a thousand of them over and over,
// and discards the rest, because nothing else would ever remove them.
func deadLettersListed(p *Party) error {
	c, sub, err := p.subscribed("dead", wire.AtLeastOnce, 64)
	if err != nil {
		return err
	}
	made := 0
	p.forever(func() error {
		d, err := sub.Receive(p.ctx)
		if err == nil {
			p.requests.Add(1)
			_, err = d.Nack(p.ctx, client.Rejection{DeadLetter: true, Reason: "an attack"})
		}
		if made++; err == nil && made > 1000 {
			p.requests.Add(1)
			_, err = c.Admin(p.ctx, "dlq.discard", d.MessageID)
		}
		return err
	})
	publish := func() error {
		return p.publishAll(c, 1000, func(int) wire.Message {
			return wire.Message{Topic: "dead", Mode: wire.AtLeastOnce, Payload: []byte("x")}
		})
	}
	if err := publish(); err != nil {
		return err
	}
	p.forever(publish)
	return p.sayForever(300, wire.Message{Kind: wire.Admin, Request: 5, Topic: "dlq.list"})
}

func peersThatDoNotRead(p *Party) error {
	for range 50 {
		nc, err := p.enter(false)
		if err != nil {
			return err
		}
		if err := p.say(nc, 1, wire.Message{Kind: wire.Subscribe, Request: 2, Topic: "deaf", Mode: wire.AtMostOnce, Credit: 1 << 16})(); err != nil {
			return err
		}
	}
	return p.sayForever(1, wire.Message{Kind: wire.Publish, Request: 5, Topic: "deaf", Mode: wire.AtMostOnce, Payload: make([]byte, 64<<10)})
}

// flood publishes as much as it can without reading any reply, and reconnects
// after the broker ends its session for that.
func flood(p *Party) error {
	if _, _, err := p.subscribed("flood", wire.AtLeastOnce, 0); err != nil {
		return err
	}
	p.forever(func() error {
		nc, err := p.enter(false)
		if err != nil {
			return err
		}
		defer p.drop(nc)
		for say := p.say(nc, 100, wire.Message{Kind: wire.Publish, Request: 5, Topic: "flood", Mode: wire.AtLeastOnce, Payload: make([]byte, 256)}); say() == nil; {
		}
		return nil
	})
	return nil
}

// largeMessages publishes, holds and consumes payloads of the maximum size.
func largeMessages(p *Party) error {
	c, sub, err := p.subscribed("large", wire.AtLeastOnce, 2)
	if err != nil {
		return err
	}
	p.consume(sub)
	for range 2 {
		p.forever(func() error {
			return p.publishAll(c, 8, func(int) wire.Message {
				return wire.Message{Topic: "large", Mode: wire.AtLeastOnce, Payload: make([]byte, wire.MaxPayload)}
			})
		})
	}
	return nil
}

// hugeFrames announces payloads of the maximum size, sends half of each and waits
// to be disconnected; every fourth connection announces more than any frame may
// have.
func hugeFrames(p *Party) error {
	head := Frames(wire.Message{Kind: wire.Publish, Request: 5, Topic: "huge", Mode: wire.AtMostOnce})
	head = head[:len(head)-9] // strip the empty payload
	for i := range 32 {
		size, sent := uint64(wire.MaxPayload), wire.MaxPayload/2
		if i%4 == 0 {
			size, sent = 1<<62, 0
		}
		p.forever(func() error {
			nc, err := p.enter(false)
			if err != nil {
				return err
			}
			defer p.drop(nc)
			for _, b := range [][]byte{head, Header(0, size), make([]byte, sent)} {
				if _, err := nc.Write(b); err != nil {
					return nil // disconnected
				}
			}
			_, _ = nc.Read(make([]byte, 1<<10)) // the Welcome
			_, _ = nc.Read(make([]byte, 1<<10)) // a Ping, or EOF
			return nil
		})
	}
	return nil
}

func sessionsComeAndGo(p *Party) error {
	for range 8 {
		p.forever(func() error {
			c, err := p.dial("passing")
			if err != nil {
				return err
			}
			defer p.drop(c)
			p.requests.Add(1)
			_, err = c.Subscribe(p.ctx, client.Filter{Topic: "passing/#", Mode: wire.AtLeastOnce, Window: 16})
			return err
		})
	}
	return nil
}

// consumersLeave takes tens of thousands of messages and disconnects without
// acknowledging. Another consumer then acknowledges them, as they would otherwise
// become dead letters.
func consumersLeave(p *Party) error {
	const much = 20_000
	c, _, err := p.subscribed("hoard", wire.AtLeastOnce, 0)
	if err != nil {
		return err
	}
	publish := func() error {
		return p.publishAll(c, much, func(int) wire.Message {
			return wire.Message{Topic: "hoard", Mode: wire.AtLeastOnce, Payload: []byte("x")}
		})
	}
	take := func(then func(*client.Delivery) error) error {
		c, sub, err := p.subscribed("hoard", wire.AtLeastOnce, much)
		if err != nil {
			return err
		}
		defer p.drop(c)
		for range much {
			ctx, cancel := context.WithTimeout(p.ctx, 5*time.Second)
			d, err := sub.Receive(ctx)
			cancel()
			if errors.Is(err, context.DeadlineExceeded) {
				return nil // the rest have expired or were never accepted
			}
			if err == nil {
				err = then(d)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	if err := publish(); err != nil {
		return err
	}
	p.forever(func() error {
		if err := take(func(*client.Delivery) error { return nil }); err != nil {
			return err
		}
		if err := take(func(d *client.Delivery) error { p.requests.Add(1); _, err := d.AckStart(); return err }); err != nil {
			return err
		}
		return publish()
	})
	return nil
}
